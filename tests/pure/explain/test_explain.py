"""The report of `codegen explain`: bytes against counts by hand, access in words, drawings without overlaps."""

import itertools
import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from rich.console import Console

from codegen.errors import UserError
from codegen.explain.launching import bindings, launched
from codegen.explain.report import explain, graph, unfused_bytes
from codegen.explain.svg import draw
from codegen.explain.tables import as_text, size_text, time_text
from codegen.language.sizes import default_shape, parse_shape
from codegen.plan.rows.scanning import Scan
from codegen.render.package import find_specs
from codegen.targets import GPUS
from tests.places import SPECS
from tests.pure.explaining import costs, library, made, run
from tests.turns import some

NAMES = [path.stem for path in find_specs(SPECS)]


# Bytes


def test_bytes_of_bias_relu():
    chain, inputs = "z = x + bias; y = where(z <= 0, 0, z)", "x: T[..., N]; bias: T[N]"
    op = made(chain, inputs, "y: T[..., N]", "types: {T: [bfloat16, float32]}")
    report, cost = costs(op, {"...": 4, "N": 16}, T="bfloat16")
    count = 4 * 16
    assert cost["bytes"]["fused"] == 2 * count + 2 * 16 + 2 * count
    # add: x and bias to float32; le: to a bool; where: the bool and z to bfloat16
    assert cost["bytes"]["unfused"] == (2 * count + 2 * 16 + 4 * count) + (4 * count + count) + (
        count + 4 * count + 2 * count
    )
    assert report["kernels"] == {"fused": 1, "unfused": 3}
    assert cost["bytes"]["saved"] == 2 * count + 2 * 16


@pytest.mark.parametrize(
    ("op", "read_and_written"),
    [
        # an operand read twice by one operation is read once
        (made("y = x * x", "x: float32[N]", "y: float32[N]"), 4 + 4),
        # floats are computed in float64 where an input is
        (made("z = exp(x); y = z + w", "x: float32[N]; w: float64[N]", "y: float32[N]"), (4 + 8) + (8 + 8 + 4)),
        # a cast's result has the type it rounds to; integers become float as they are read
        (made("y = cast(x, float16) + i", "x: float32[N]; i: int8[N]", "y: float32[N]"), (4 + 2) + (2 + 1 + 4)),
        # one value, two outputs: the second is a copy
        (made("y = -x; z = -x", "x: float32[N]", "y: float16[N]; z: float32[N]"), (4 + 2) + (2 + 4)),
        # an output that is an input
        (made("y = x; z = -x", "x: float32[N]", "y: float16[N]; z: float32[N]"), (4 + 4) + (4 + 2)),
        # positions and constants are no memory
        (made("y = where(index(N) > 3, x, 0)", "x: float16[N]", "y: float16[N]"), 1 + (1 + 2 + 2)),
        # a bool takes a byte
        (made("y = x & ~w", "x: bool[N]; w: bool[N]", "y: bool[N]"), 2 + 3),
    ],
)
def test_unfused_bytes_an_element(op, read_and_written):
    assert unfused_bytes(op, next(bindings(op.spec)), {"N": 100}) == 100 * read_and_written


def test_take_reads_what_it_picks_of_a_table_at_most_all_of_it():
    op = made(
        "c = take(table, i, axis=P); y = x * c",
        "x: float32[..., N]; table: float32[P, N]; i: int32[...]",
        "y: float32[..., N]",
    )
    _, cost = costs(op, {"...": 10, "N": 8, "P": 1000})
    assert cost["bytes"]["fused"] == 4 * (80 + 10 * 8 + 10 + 80)
    _, cost = costs(op, {"...": 10, "N": 8, "P": 7})
    assert cost["bytes"]["fused"] == 4 * (80 + 7 * 8 + 10 + 80)
    assert cost["bytes"]["unfused"] == 4 * (10 + 80 + 80) + 4 * (80 + 80 + 80)


@pytest.mark.parametrize("name", some(NAMES, 2))
def test_every_op_is_explained(name):
    op = library(name)
    shape = default_shape(op.spec)
    if op.plan.kind in ("gemm", "staged") and (axes := launched(op).spec.outputs[0].axes):
        shape[axes[0]] *= 1024  # few elements have narrow vectors, such as the factors of rows that a table gains
    report = explain(op, shape)
    json.dumps(report)
    assert len(report["costs"]) == len(list(bindings(op.spec)))
    for cost in report["costs"]:
        assert 0 < cost["bytes"]["fused"] <= cost["bytes"]["unfused"]
        widest = max(cost["launch"]["vector_bytes"].values())
        if isinstance(op.plan, Scan) and not op.plan.innermost:
            # Lanes have neighbouring columns, and several vectors each; with states, one element each
            assert cost["launch"]["vector"] == 1 if op.plan.states else widest == 4
            continue
        assert 16 <= widest <= 32  # 32: two accesses, of what rows share


# The graph, the kernel, the roofline


def test_graph_keeps_the_names_of_the_chain():
    op = made("s = exp(x[0]) * 2; y[0] = s; y[1] = s * x[1] - x[0]", "x: float16[N, 2]", "y: float16[N, 2]")
    found = graph(op)
    steps = [(o.name, o.op, o.args, o.type) for o in found.operations]
    assert steps == [
        ("%0", "exp", ("x[0]",), "float[N]"),
        ("s", "mul", ("%0", "2.0"), "float[N]"),
        ("%1", "mul", ("s", "x[1]"), "float[N]"),
        ("y[1]", "sub", ("%1", "x[0]"), "float[N]"),
    ]
    assert found.outputs == (("y[0]", "s"), ("y[1]", "y[1]"))


def modes(op) -> dict[str, str]:
    return {a["value"]: a["mode"] for a in explain(op, default_shape(op.spec))["accesses"]}


def test_access_of_each_array():
    assert modes(library("bias_relu")) == {"x": "flat", "bias": "tile", "y": "flat"}
    assert modes(library("rotary_pairs"))["x[0]"] == "flat"
    assert modes(library("silu_mul_fp8")) == {"x[0]": "tile", "x[1]": "tile", "scale": "scalar", "q": "flat"}
    assert modes(library("alibi_bias"))["index(K)"] == "index"


def test_ragged_words_name_who_stays_wide():
    words = explain(library("bias_relu"), {"...": 1, "N": 1})["ragged"]
    assert words.endswith("x and y keep wide accesses; bias goes element by element")
    words = explain(library("rmsnorm"), {"...": 1, "N": 1})["ragged"]  # whose short rows have no vectors
    assert "accesses stay wide" in words
    words = explain(library("gelu"), {"...": 1, "N": 1})["ragged"]
    assert "only" not in words and "the last ones are handled one by one" in words
    words = explain(made("y = x + 1.0", "x: float64[N]", "y: float64[N]", "schedule: {vector_bytes: 8}"), {"N": 5})[
        "ragged"
    ]
    assert "one element per thread" in words


@pytest.mark.parametrize(
    ("sizes", "ragged", "blocks"), [("...=64,N=4096", False, 129), ("...=64,N=8191", True, 256), ("...=8,N=3", True, 1)]
)
def test_launch(sizes, ragged, blocks):
    op = made("y = x + w", "x: float16[..., N]; w: float16[N]", "y: float16[..., N]", "schedule: {threads: 256}")
    _, cost = costs(op, parse_shape(op.spec, sizes))
    assert cost["launch"] == {
        "vector": 8, "vector_bytes": {"x": 16, "y": 16}, "threads": 256, "blocks": blocks, "ragged": ragged
    }  # fmt: skip


def test_roofline_is_bytes_over_bandwidth():
    report, cost = costs(library("silu_mul_fp8"), {"...": 1024, "N": 1024}, T="bfloat16")
    assert cost["bytes"]["fused"] == 1024 * 1024 * (2 * 2 + 1) + 4
    assert cost["limits_us"]["H100 SXM"]["bytes"] == pytest.approx(cost["bytes"]["fused"] / 3.35e6, abs=1e-3)
    assert cost["roofline_us"]["A100 80GB SXM"] is cost["limits_us"]["A100 80GB SXM"] is None  # no float8
    assert [g["arch"] for g in report["gpus"]] == [g.arch for g in GPUS]


def test_roofline_is_the_longest_of_bytes_and_instructions():
    """tanh has two special functions, of which an H100 has 16 results a clock and SM."""
    _, cost = costs(library("tanh"), {"...": 1024, "N": 1024}, T="bfloat16")
    limits, h100 = cost["limits_us"]["H100 SXM"], next(g for g in GPUS if g.name == "H100 SXM")
    assert cost["instructions"]["special"] == 2
    assert limits["special"] == pytest.approx(2**20 * 2 / 16 / h100.processors / h100.clock * 1e6, rel=1e-3)
    assert limits["issue"] == pytest.approx(
        2**20 * cost["instructions"]["issue"] / 128 / h100.processors / h100.clock * 1e6, rel=1e-3
    )
    assert cost["roofline_us"]["H100 SXM"] == max(limits.values())


def test_the_roofline_says_what_takes_longest():
    for name, found in (("softcap_softmax", True), ("relu", False)):
        console = Console(width=80)
        with console.capture() as shown:
            console.print(as_text(explain(library(name), {"...": 1024, "N": 4096})))
        assert ("issue" in shown.get().partition("roofline")[2]) == found


def test_products_and_float64_have_no_estimate_of_instructions():
    _, cost = costs(library("dense"), {"...": 1024, "K": 1024, "N": 1024}, T="bfloat16")
    assert cost["instructions"] is None and cost["limits_us"]["H100 SXM"].keys() == {"bytes", "products"}
    (*_, cost) = explain(library("float64_polynomial"), {"...": 1024, "N": 8})["costs"]
    assert cost["instructions"] is None


def test_what_is_saved_of_a_product():
    """Not in float16, in which it may overflow; and the factors."""
    shape = {"...": 32, "K": 16, "N": 8}
    for dtype, size in (("float16", 4), ("bfloat16", 2)):
        report, found = costs(library("dense_softcap"), shape, T=dtype)
        assert report["saved"]["names"] == ["acc", "x", "w"]
        assert found["bytes"]["saved"] == 32 * 8 * size + (32 * 16 + 16 * 8) * 2


def test_what_is_saved():
    """Inputs that the backward reads; an output if fewer arrays or reductions remain with it."""
    assert explain(library("silu_mul_fp8"), {"...": 1, "N": 1})["saved"]["names"] == []
    assert explain(library("dropout_apply"), {"...": 1, "N": 1})["saved"]["names"] == ["mask"]
    assert explain(library("rmsnorm"), {"...": 1, "N": 1})["saved"]["names"] == ["x", "weight"]
    assert explain(library("softmax"), {"...": 1, "N": 1})["saved"]["names"] == ["y"]
    assert explain(library("add_rmsnorm"), {"...": 1, "N": 1})["saved"]["names"] == ["residual_out", "weight"]
    assert explain(library("row_prod"), {"...": 1, "N": 1})["saved"]["names"] == ["x"]
    tables = made("y = take(x, i, axis=N)", "x: float32[N]; i: int32[M]", "y: float32[M]")
    assert explain(tables, {"N": 1, "M": 1})["backward"]["kernel"] is True
    tables = made("y = take(x[0], i, axis=N)", "x: float32[N, (C 2)]; i: int32[M]", "y: float32[M, C]")
    assert explain(tables, {"N": 1, "M": 1, "C": 1})["backward"]["kernel"] is True
    integers = made("y = x + 1", "x: int32[N]", "y: int32[N]")
    assert explain(integers, {"N": 1})["saved"]["names"] == []


# Shapes


def test_default_shapes_have_about_as_many_elements():
    assert default_shape(library("bias_relu").spec) == {"...": 32768, "N": 8192}  # its first bench entry
    assert default_shape(library("relu").spec) == {"...": 8192, "N": 4096}
    assert default_shape(library("rotary").spec) == {"B": 64, "S": 64, "H": 64, "D": 128}
    assert default_shape(made("y = x", "x: float32[]", "y: float32[]").spec) == {}
    blocks = made("y = x * s", "x: float32[..., (B G=128)]; s: float32[..., B]", "y: float32[..., (B G=128)]").spec
    assert default_shape(blocks) == {"...": 64, "B": 4096, "G": 128}
    table = made("y = take(t, i, axis=P)", "t: float32[P]; i: int32[...]", "y: float32[...]").spec
    assert default_shape(table) == {"...": 2**25, "P": 4096}


def test_an_axis_left_out_has_its_default():
    assert parse_shape(library("bias_relu").spec, " N = 3 ") == {"...": 32768, "N": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("N", "cannot read 'N'"),
        ("N=", "cannot read"),
        ("N=0", "cannot read"),
        ("N=-1", "cannot read"),
        ("N=1e3", "cannot read"),
        ("N=99999999999999999999999", "cannot read"),
        ("M=4", "no axis 'M'"),
        ("N=4,N=5", "given twice"),
    ],
)
def test_shapes_that_cannot_be_read(text, message):
    with pytest.raises(UserError, match=message):
        parse_shape(library("bias_relu").spec, text)


def test_fixed_extents_stay():
    spec = made("y = x", "x: float32[..., (B G=128)]", "y: float32[..., (B G=128)]").spec
    assert parse_shape(spec, "G=128,B=2") == {"...": 64, "B": 2, "G": 128}
    with pytest.raises(UserError, match="fixes G at 128"):
        parse_shape(spec, "G=64")


def test_units():
    assert [size_text(n) for n in (0, 999, 1000, 2.15e9)] == ["0 B", "999 B", "1 kB", "2.15 GB"]
    assert [time_text(t) for t in (0.5, 41.26, 641.4, 12345.0)] == ["0.5 us", "41.3 us", "641 us", "12.3 ms"]


# The drawing


@pytest.mark.parametrize("name", some(NAMES, 3))
def test_drawings_show_everything_without_overlaps(name):
    op = library(name)
    root = ElementTree.fromstring(draw(op))
    svg = "{http://www.w3.org/2000/svg}"
    texts = [t.text for t in root.iter(svg + "text")]
    arrays = {a.name for a in op.spec.arrays}
    assert arrays <= set(texts)
    assert {str(a) for a in op.spec.arrays} <= set(texts)
    boxes = [[float(r.get(k)) for k in ("x", "y", "width", "height")] for r in root.iter(svg + "rect") if r.get("x")]
    assert len(boxes) == (len(texts) - 1) / 2 >= len(graph(op).operations) + len(op.spec.outputs) + 1
    width, height = float(root.get("width")), float(root.get("height"))
    for x, y, w, h in boxes:
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
    for (x, y, w, _), (x2, y2, w2, _) in itertools.combinations(boxes, 2):
        assert y != y2 or x + w < x2 or x2 + w2 < x
    for path in (p.get("d") for p in root.iter(svg + "path") if p.get("class") == "edge"):
        numbers = [float(word.lstrip("MCV")) for word in path.split() if word not in "MCV"]
        assert numbers[1] < numbers[7]  # downwards


def test_drawings_escape_what_they_show():
    op = made("y = where(x < 1, 0, 1)", "x: float32[N]", "y: float32[N]")
    assert "x &lt; 1" in draw(op)


# The command


def test_the_command_prints_a_report(monkeypatch, capsys):
    assert run(monkeypatch, "explain", "swiglu", "--specs", SPECS) == 0
    text = capsys.readouterr().out
    for words in ("SiLU", "H100 SXM", "T=bfloat16", "sigmoid x[0]", "x[0]", "32768 x 16384"):
        assert words in text


def test_the_command_prints_json_and_draws(monkeypatch, capsys, tmp_path):
    file = tmp_path / "graph.svg"
    assert run(monkeypatch, "explain", "gelu", "--specs", SPECS, "--json", "--svg", file, "--shape", "N=3") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["shape"] == {"...": 8192, "N": 3}
    assert file.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gel"], "no op 'gel'"),
        (["gelu", "--shape", "M=1"], "no axis 'M'"),
        (["gelu", "--svg", "no/such/x.svg"], "No such file"),
    ],
)
def test_mistakes_end_in_one_message(words, message, monkeypatch, capsys):
    assert run(monkeypatch, "explain", *words, "--specs", SPECS) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


def test_explaining_imports_neither_jax_nor_cutlass():
    code = "import sys, codegen.explain.report, codegen.explain.svg, codegen.language.sizes; print([m for m in sys.modules if m in ('jax', 'cutlass')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=SPECS.parent)
    assert done.stdout.strip() == "[]"
