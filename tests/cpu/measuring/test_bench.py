"""Measuring without a GPU: the order of timed calls, a small real run, and reports of made-up measurements."""

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen import __main__ as command_line
from codegen.checking import draw
from codegen.explain.launching import Binding
from codegen.explain.traffic import fused_bytes
from codegen.language.sizes import bench_shapes, default_shape
from codegen.measuring.times import bench, results
from codegen.measuring.times.bench import make_inputs, measure, sets_of, typical
from codegen.measuring.times.measurement import Measurement
from codegen.runtime.call.arguments import Types
from codegen.runtime.compiled import platform
from tests.making import make_jnp_op, make_op, spec_text
from tests.turns import some

WHERE = {"gpu": "NVIDIA Test 80GB", "driver": "1.2", "jax": "0.11", "date": "2026-11-21", "empty call": "5 us"}


def made_up(op: str = "bias_relu", ours: float = 2.0, **more) -> Measurement:
    times = {"ours": (ours, ours, 9 * ours), "xla": (3.0, 3.0, 3.0), "copy": (1.0, 1.5, 2.0)}
    return Measurement(op, (("...", 8), ("N", 4096)), (("T", "bfloat16"),), 3_000_000, tuple(times.items()), **more)


@pytest.fixture
def charts():
    """The module that draws, and matplotlib's reader of pictures: half a second to import."""
    from matplotlib import image

    from codegen.measuring.times import plot

    return plot, image


# Timing


def test_candidates_take_turns_and_the_first_group_of_each_does_not_count():
    """The calls are the clock: a call of `slow` lasts three ticks, one of `fast` one."""
    now, order = 0.0, []

    def candidate(name: str, ticks: float):
        def call(number: int):
            nonlocal now
            now += ticks * 1e-6 * (100 if len(order) < 8 else 1)  # slow in the first calls
            order.append((name, number))
            return jnp.zeros(())

        return call

    times = measure({"fast": candidate("fast", 1), "slow": candidate("slow", 3)}, 2, 3, clock=lambda: now)
    assert times == {"fast": pytest.approx((1.0, 1.0)), "slow": pytest.approx((3.0, 3.0))}
    # one call first, then the timed ones; in the opposite order in every other group
    group = [0, 0, 1, 2]
    turns = ["slow", "fast", "fast", "slow", "slow", "fast"]
    assert order == [(name, number) for name in turns for number in group]


def test_numbers_of_a_measurement():
    m = made_up(ours=2.0)
    assert (m.us("ours"), m.us("copy")) == (2.0, 1.5)  # medians
    assert m.bandwidth("ours") == pytest.approx(1.5)  # TB/s
    assert (m.over_xla, m.of_copy) == (1.5, 0.75)


def test_the_limit_is_what_takes_longest():
    m = made_up(ours=2.0)
    assert (m.limit, m.of_limit) == (("bytes", 1.5), 0.75)
    m = replace(m, instructions=(("issue", 1.8), ("special", 0.3), ("half", 0.9)))
    assert (m.limit, m.of_limit) == (("issue", 1.8), 0.9)
    assert results.cells(m)[-2:] == ("0.75", "0.90 issue")


def test_small_arrays_go_round_a_cache():
    assert sets_of(2**30) == 1
    assert sets_of(bench.BEYOND_CACHE // 3) == 3
    assert sets_of(0) == sets_of(100) == bench.MOST_SETS


# halves, bools, integers, float8 from a type chosen, params static and dynamic, a position, an input with a domain
KINDS = (
    "alibi_bias", "bias_relu", "dropout_apply", "float64_polynomial", "integer_add_clip", "leaky_relu_dynamic",
    "quantize_fp8", "relu_mask", "silu_mul_fp8", "softcap", "swiglu", "triple_split", "where_select",
)  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_ops_of_every_kind_can_be_measured(name):
    """On a CPU, with the jnp form in place of the kernel, at a small size."""
    op = getattr(generated, name)
    shape = {axis: op.spec.extents.get(axis, 4) for axis in default_shape(op.spec)}
    binding = typical(op.spec, {"T": "float64"}) or typical(op.spec, {})
    m = bench.bench_op(op, binding, shape, groups=1, calls=2, implementation="xla")
    assert m.bytes == fused_bytes(binding, shape, op.statements)
    assert [name for name, _ in m.groups] == ["ours", "xla", "copy"]
    assert all(time > 0 for _, times in m.groups for time in times)


@pytest.mark.parametrize("name", ["rmsnorm", "softmax", "bias_gelu", "swiglu", "leaky_relu_dynamic"])
def test_backwards_can_be_measured(name):
    """Both candidates compute the same gradients."""
    op = getattr(generated, name).kernels[-1]
    binding = bench.typical(op.spec, {"T": "float32"})
    shape = dict.fromkeys(op.origin.spec.axes, 16)
    m = bench.bench_op(op, binding, shape, groups=1, calls=2, implementation="xla")
    assert m.op == f"{name}_backward"
    assert m.bytes == fused_bytes(binding, shape, op.statements)
    arrays = bench.make_inputs(op.origin.spec, replace(binding, spec=op.origin.spec), shape, 0)
    static = {p.name: p.default for p in op.origin.spec.params if p.static}
    ours, xla, sets, others = bench.backward_calls(op, [arrays], static, binding, "xla")
    names = [a.name for a in op.origin.spec.inputs] + [p.name for p in op.origin.spec.params if not p.static]
    for found in zip(names, ours(sets[0]), strict=True):
        np.testing.assert_allclose(found[1], xla(others[0])[0][found[0]], rtol=1e-3, atol=1e-4)


def test_a_contractions_backward_gives_the_factors_gradients_in_both():
    op = generated.dense_gelu.kernels[-1]
    binding = bench.typical(op.spec, {"T": "float32"})
    shape = dict.fromkeys(op.origin.spec.axes, 16)
    arrays = bench.make_inputs(op.origin.spec, replace(binding, spec=op.origin.spec), shape, 0)
    ours, xla, sets, others = bench.backward_calls(op, [arrays], {}, binding, "xla")
    got, expected = dict(zip([a.name for a in op.origin.spec.inputs], ours(sets[0]), strict=True)), xla(others[0])[0]
    assert expected.keys() == got.keys() >= op.origin.multiplied
    for name, gradient in expected.items():
        np.testing.assert_allclose(got[name], gradient, rtol=2e-2, atol=2e-2)


def test_inputs_are_random_and_in_their_domain():
    spec = generated.silu_mul_fp8.spec
    shape = {"...": 16, "N": 64}
    one, two = (make_inputs(spec, typical(spec, {}), shape, seed) for seed in (0, 1))
    assert one["x"].shape == (16, 128)
    assert one["x"].dtype == jnp.bfloat16
    assert len(jnp.unique(one["x"])) > 100
    assert not (one["x"] == two["x"]).all()
    assert one["scale"] > 0
    assert abs(float(one["x"].astype("float32").mean())) < 0.2


DOMAINS = {
    "": (-100, 100), "positive": (1, 100), "nonzero": (-100, 100), "[0, 4294967295]": (0, 2**32 - 1),
    "[4294967290, 4294967295]": (2**32 - 6, 2**32 - 1), "[-5, 1e30]": (-5, 2**63 - 1), "[0.5, 2.5]": (1, 2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("domain", "dtype"), some(itertools.product(DOMAINS, ["int8", "uint8", "int32", "uint32", "int64"]), 3)
)
def test_integers_are_in_their_domain_and_their_type(domain, dtype):
    """In the inputs of benchmarks and of property tests."""
    more = f"domain:\n  x: {domain}" if domain else ""
    op = make_jnp_op(spec_text(f"x: {dtype}[..., N]", f"y: {dtype}[..., N]", "y = x", "y = x", more))
    info = np.iinfo(dtype)
    low, high = (min(max(bound, info.min), info.max) for bound in DOMAINS[domain])
    with jax.enable_x64(dtype == "int64"):
        found = [np.asarray(make_inputs(op.spec, typical(op.spec, {}), {"...": 300, "N": 7}, 0)["x"])]
    case = draw.Case(Types(()), (300,), (("N", 7),), (), (), False, 1.0, 0)
    found += [draw.arrays(op, case)["x"], draw.arrays(op, replace(case, specials=True))["x"]]
    for x in found[: 3 if domain not in ("", "nonzero", "positive") else 2]:
        assert x.dtype == dtype
        wide = [int(v) for v in (x.min(), x.max())]
        assert low <= wide[0] and wide[1] <= high
        assert wide[1] - wide[0] >= 0.95 * (high - low)
    assert domain != "nonzero" or all((x != 0).all() for x in found)
    assert domain != "positive" or all((x > 0).all() for x in found)


def test_types_are_bfloat16_where_an_op_takes_it():
    assert typical(generated.swiglu.spec, {}).types == (("T", "bfloat16"),)
    assert typical(generated.swiglu.spec, {"T": "float32"}).types == (("T", "float32"),)
    assert typical(generated.swiglu.spec, {"T": "int8"}) is None
    assert dict(typical(generated.float64_polynomial.spec, {"T": "float64"}).types) == {"T": "float64"}


# Reports


def test_the_machine_is_described():
    where = bench.machine()
    assert set(where) == {"gpu", "driver", "jax", "cutlass-dsl", "python", "date", "clock", "empty call"}
    assert where["cutlass-dsl"].startswith("4.")
    assert where["empty call"].endswith("us")


def test_results_are_written(tmp_path, charts):
    measured = [
        replace(made_up(kind="elementwise"), instructions=(("issue", 1.8), ("special", 0.3))),
        made_up("swiglu", ours=1.6),
        made_up("gelu", error="OutOfMemory: too | large"),
    ]
    paths = results.write(measured, WHERE, tmp_path / "new", "elementwise", "codegen bench")
    assert [p.name for p in paths] == ["elementwise.json", "elementwise.md", "elementwise.png"]
    result = json.loads(paths[0].read_text())
    assert result["machine"] == WHERE
    first, _, last = result["measurements"]
    assert first["us"] == {"ours": 2.0, "xla": 3.0, "copy": 1.5}
    assert first["groups_us"]["ours"] == [2.0, 2.0, 18.0]
    assert (first["over_xla"], first["of_copy"], first["kind"]) == (1.5, 0.75, "elementwise")
    assert (first["limit"], first["of_limit"]) == ("issue", 0.9)
    assert results.from_json(result) == ([*measured[:2], replace(measured[2], groups=())], WHERE)
    assert last["error"] == "OutOfMemory: too | large"
    page = paths[1].read_text()
    assert (
        "| bias_relu | ...=8, N=4096 | bfloat16 | 3 MB | 2 us | 3 us | 1.5 us | 1.50 | 1.00 | 2.00 | 1.50x | 0.75 | 0.90 issue |"
        in page
    )
    assert "NVIDIA Test 80GB, driver 1.2, jax 0.11, 2026-11-21." in page
    assert "A call with nothing to do took 5 us" in page
    assert "too \\| large" in page
    picture = charts[1].imread(paths[2])
    assert 200 < picture.shape[0] < 1000 > picture.shape[1] > 300
    assert len({tuple(pixel) for row in picture[::7] for pixel in row[::7].round(2).tolist()}) > 5


def test_a_chart_groups_ops_by_kind_fastest_first_and_fits_a_screen(tmp_path, charts):
    plot, image = charts
    measured = [made_up("slow", 6.0, kind="row"), made_up("fast", 1.0, kind="row"), made_up("dense", 2.0, kind="gemm")]
    ((dense, fast, slow),) = plot.arranged(plot.bars([*measured, made_up("lost", error="no room")]))
    assert (dense.label, dense.over_xla, dense.of_limit) == ("dense", 1.5, None)  # a copy is not a bound for a product
    assert (fast.group, fast.label, fast.over_xla, fast.of_limit) == ("row", "fast", 3.0, 1.5)
    assert (slow.label, slow.over_xla) == ("slow", 0.5)
    many = [plot.Bar(f"kind {min(i // 10, 3)}", f"op{i}", 1 + i / 60, 0.9) for i in range(60)]
    assert [len(column) for column in plot.arranged(many)] == [30, 30]  # 10 + 10 + 10, and 30
    plot.chart(many, "sixty ops", tmp_path / "many.png")
    height, width, _ = image.imread(tmp_path / "many.png").shape
    assert height <= 900
    assert width <= 1500


def test_an_op_at_several_sizes_has_a_curve(tmp_path, charts):
    plot, image = charts
    sizes = [replace(made_up(), bytes=size, shape=(("N", size),)) for size in (3_000, 24_000, 6_000, 12_000)]
    assert [m.bytes for m in plot.curves([*sizes, made_up("swiglu")])["bias_relu"]] == [3_000, 6_000, 12_000, 24_000]
    assert not plot.curves(replace(m, bytes=m.bytes // 6000 + 1000) for m in sizes)  # four sizes, all about the same
    paths = results.write([*sizes, made_up("swiglu")], WHERE, tmp_path, "sweep", "codegen bench")
    assert [p.name for p in paths] == ["sweep.json", "sweep.md", "sweep.png", "sweep-bias_relu.png"]
    assert min(image.imread(paths[-1]).shape[:2]) > 300


def run(monkeypatch, *words) -> int:
    monkeypatch.setattr(sys, "argv", ["codegen", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    return stopped.value.code or 0


@pytest.fixture
def pretended_gpu(monkeypatch):
    """Replaces measuring by a function that takes no time, and gives the tasks that it got."""
    tasks = []

    def timed(op, binding: Binding, shape, groups):
        tasks.append((op.spec.op, dict(binding.types), shape, groups))
        if op.spec.op == "gelu":
            raise MemoryError("no room\nat all")
        return made_up(op.spec.op)

    monkeypatch.setattr(platform, "on_gpu", lambda: True)
    monkeypatch.setattr(bench, "bench_op", timed)
    monkeypatch.setattr(bench, "machine", lambda: WHERE)
    return tasks


KINDS = "attention-column-elementwise-gemm-row-row+column-scan-selection-staged"  # of the library: what a run of all of them is called


def test_the_command_measures_what_specs_ask_for(pretended_gpu, monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, "bench", "--out", tmp_path, "--repeat", 2) == 0
    expected = [(n, s) for n in generated.__all__ for s in bench_shapes(getattr(generated, n).spec)]
    assert [(name, shape) for name, _, shape, _ in pretended_gpu] == expected
    assert {groups for *_, groups in pretended_gpu} == {2}
    assert "over XLA" in capsys.readouterr().out
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{KINDS}.{suffix}" for suffix in ("json", "md", "png")]
    assert "`codegen bench --out" in (tmp_path / f"{KINDS}.md").read_text()


def test_the_command_takes_shapes_and_types(pretended_gpu, monkeypatch, capsys, tmp_path):
    shapes = ["--shape", "N=8191", "--shape", "...=1,N=8192", "--shape", "N=3"]
    words = ["bench", "bias_relu", *shapes, "--types", "T=float32", "--name", "awkward", "--json", "--out", tmp_path]
    assert run(monkeypatch, *words) == 0
    wanted = [{"...": 32768, "N": 8191}, {"...": 1, "N": 8192}, {"...": 32768, "N": 3}]
    assert pretended_gpu == [("bias_relu", {"T": "float32"}, shape, 5) for shape in wanted]
    assert len(json.loads(capsys.readouterr().out)["measurements"]) == 3
    assert (tmp_path / "awkward.png").exists()


def test_one_failure_is_a_row_and_status_1(pretended_gpu, monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, "bench", "gelu", "relu", "--out", tmp_path, "--name", "two") == 1
    out = capsys.readouterr().out
    assert "MemoryError: no room" in out
    assert "relu" in out
    assert [m.get("error") for m in json.loads((tmp_path / "two.json").read_text())["measurements"]] == [
        "MemoryError: no room",
        None,
    ]


def test_ctrl_c_leaves_what_was_measured(pretended_gpu, monkeypatch, capsys, tmp_path):
    timed = bench.bench_op

    def interrupted(*task):
        if len(pretended_gpu) == 2:
            raise KeyboardInterrupt
        return timed(*task)

    monkeypatch.setattr(bench, "bench_op", interrupted)
    assert run(monkeypatch, "bench", "--kind", "row", "--out", tmp_path) == 130
    out, err = capsys.readouterr()
    assert "over XLA" in out
    assert "interrupted: these are 2 of " in err
    assert {p.name for p in tmp_path.iterdir()} == {f"row-partial.{suffix}" for suffix in ("json", "md", "png")}
    assert len(json.loads((tmp_path / "row-partial.json").read_text())["measurements"]) == 2


def test_the_table_fits_80_columns():
    from rich.console import Console

    console = Console(width=80)
    with console.capture() as shown:
        console.print(results.as_table([made_up("dense_row_scaled_residual"), made_up("relu")]))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in shown.get()
    words = shown.get().split()
    for cell in results.cells(made_up("relu"))[3:8]:
        assert cell.split()[0] in words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no NVIDIA GPU"),
        (["nonsuch"], "no op 'nonsuch'"),
        (["relu", "--shape", "M=3"], "no axis 'M'"),
        (["relu", "--types", "T=int8"], "T=int8"),
        (
            ["--kind", "matrix"],
            "of the kinds attention, column, elementwise, gemm, row, row+column, scan, selection, staged",
        ),
        (["--package", "nowhere"], "codegen build"),
    ],
)
def test_errors_end_in_one_message(words, message, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(platform, "on_gpu", lambda: False)
    assert run(monkeypatch, "bench", *words, "--out", tmp_path / "results") == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert not Path(tmp_path / "results").exists()


def test_bytes_of_sums_by_index(tmp_path):
    """A cotangent and an index are read once, and a table's gradient is written; what a kernel reads counts there."""
    shape = {"...": 100, "V": 10, "N": 8}
    given = "t: bfloat16[V, N]; i: int32[...]"
    taken = make_op(tmp_path, spec_text(given, "y: bfloat16[..., N]", "y = take(t, i, axis=V)"))._backward
    summed = 100 * 8 * 2 + 100 * 4 + 10 * 8 * 2
    assert bench.bytes_of(taken, Binding(taken.spec, ()), shape) == summed
    text = spec_text(f"{given}; x: bfloat16[..., N]", "y: bfloat16[..., N]", "y = sin(x) + take(t, i, axis=V)")
    beside = make_op(tmp_path, text)._backward
    kernel = 3 * 100 * 8 * 2  # x, dy and dx: that reads the cotangent
    assert bench.bytes_of(beside, Binding(beside.spec, ()), shape) == kernel + summed - 100 * 8 * 2
