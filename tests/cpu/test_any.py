"""The benchmark of random ops, without a GPU: what it draws is right, what it compares and counts, and a tiny run."""

import json
import subprocess
import sys
from dataclasses import replace

import jax.numpy as jnp
import pytest

from benchmarks import any as benchmark
from codegen.measuring.compiled import limits
from codegen.runtime.compiled import platform
from codegen.runtime.ops.backward import backward_ops
from codegen.targets import GPUS
from tests.making import make_op, spec_text
from tests.random_specs.newer import LAYOUTS_OF, newer_spec
from tests.random_specs.trial import Effort, try_spec
from tests.random_specs.usual import BACK, LAYOUTS, usual_spec
from tests.turns import some


def smallest(layout: str, drawn=usual_spec):
    """The op with the shortest chain: kernels of long ones take ten times as long to compile."""
    return min((u for i in range(200) if (u := drawn(0, i)).layout == layout), key=lambda u: len(u.spec.text))


DRAWN = [(usual_spec, layout) for layout in ("blocks", "norm over the middle", "scores")] + [
    (newer_spec, layout)
    for layout in (
        "neighbours",
        "scan",
        "random numbers",
        "largest",
        "product",
        "computed index",
        "looked up",
        "transposed",
    )
]


@pytest.mark.parametrize(("drawn", "layout"), some(DRAWN, 5))
def test_an_op_agrees_with_its_reference(drawn, layout, tmp_path):
    outcome = try_spec(smallest(layout, drawn).spec, tmp_path, Effort(variants=1, calls=1, gradients=1))
    assert not outcome.failure, f"{outcome.failure}\n{outcome.message}"
    assert not outcome.refused


def test_a_softmax_over_rows_keeps_them(tmp_path):
    """In references too, of any number of leading axes."""
    usual = next(u for i in range(200) if "softmax(v2, axis=...)" in (u := usual_spec(46, i)).spec.text)
    op = make_op(tmp_path, usual.spec.text)
    given = {"x": jnp.ones((2, 3, 5)), "table": jnp.ones((4, 5)), "place": jnp.zeros((2, 3), "int32")}
    assert op.reference(**given, slope=0.1).shape == op(**given, slope=0.1, implementation="xla").shape == (2, 3, 5)


def test_two_hundred_ops_are_of_every_layout_and_hardly_two_alike():
    found = [usual_spec(3, i) for i in range(200)]
    assert {u.layout for u in found} == LAYOUTS.keys() | BACK.keys()
    assert len({u.spec.text.partition("summary")[2] for u in found}) > 190
    assert usual_spec(3, 7) == found[7]
    newer = [newer_spec(3, i) for i in range(200)]
    assert {u.layout for u in newer} == LAYOUTS_OF.keys()
    assert len({u.spec.text.partition("summary")[2] for u in newer}) > 150
    assert newer_spec(3, 7) == newer[7]


def test_a_tiny_run_compares_and_times_both_ways(tmp_path):
    """On a CPU, where ours is the jnp form too."""
    usual = smallest("row")
    tiny = replace(usual, shape=dict.fromkeys(usual.shape, 8))
    forward, backward = benchmark.trial(tiny, benchmark.WAYS, False, tmp_path)
    assert (forward["way"], backward["way"]) == ("forward", "backward")
    for row in (forward, backward):
        assert row["differs"] == 0
        assert 16 <= row["registers"] <= 255
        assert all(row["us"][name] > 0 for name in ("ours", "xla", "copy"))
        assert row["of_limit"] == pytest.approx(row["us"]["copy"] / row["us"]["ours"], rel=1e-2)


def row(number: int, of_limit: float, over_xla: float, **more) -> dict:
    us = {"ours": 1.0, "xla": over_xla, "copy": of_limit}
    own = {
        "way": "forward",
        "kind": "row",
        "launch": "",
        "registers": 32,
        "stack": 0,
        "left": "",
        "large": True,
        "differs": 0.0,
        "error_of_xla": 0.0,
    }
    own |= {"us": us, "of_limit": of_limit, "over_xla": over_xla} | more
    return {"number": number, "layout": "row", "shape": {"N": 8}, "text": f"chain of {number}", "rows": [own]}


def test_the_summary_has_means_and_the_worst_first():
    found = [row(0, 1.0, 1.0), row(1, 0.25, 4.0), row(2, 0.9, 0.02), row(3, 1.0, 1.0, differs=0.5, fault="off")]
    found.append(row(4, 1.0, 1.0, differs=0.5, fault=""))
    text = benchmark.summary(found)
    line = next(line for line in text.splitlines() if line.startswith("all large")).split()
    assert [float(word.strip("()")) for word in line[2:]] == [5, 0.742, 0.25, 0.603, 0.02, 2]
    assert text.index("chain of 2") < text.index("chain of 1") < text.index("chain of 0")
    assert "as far from float64: 1 rows" in text
    assert "Wrong (1):\n0.5 of the elements, by 0 at most; off\n#3 " in text


def test_a_dry_run_of_one_op(tmp_path):
    """Its worker compiles for sm_90a, and what it found is written."""
    out = tmp_path / "any.json"
    command = [sys.executable, "-m", "benchmarks.any", "--dry", "--only", "3", "--forward", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    (op,) = json.loads(out.read_text())["ops"]
    assert op["number"] == 3
    assert [r["way"] for r in op["rows"]] == ["forward"]
    assert op["rows"][0]["compiling"] > 0


def test_an_op_whose_process_dies_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark.Crew, "start", lambda crew: subprocess.Popen(
        ["false"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ))  # fmt: skip
    given = benchmark.argparse.Namespace(seed=0, minutes=1, kinds="usual")
    found = benchmark.Crew(given, tmp_path, range(3)).run(2)
    assert [op["number"] for op in found] == [0, 1, 2]
    assert all("its process ended with 1" in op["error"] for op in found)


def test_the_limit_of_a_row_is_what_takes_longest():
    times = {"ours": (2.0, 2.0, 9.0), "xla": (3.0,) * 3, "copy": (1.0,) * 3}
    found = benchmark.numbers(times, {"issue": 1.5, "special": 0.5})
    assert (found["limit"], found["of_limit"], found["over_xla"]) == ("issue", 0.75, 1.5)
    assert benchmark.numbers(times, {})["limit"] == "bytes"


def test_the_limit_counts_the_products_of_gradients(tmp_path, monkeypatch):
    text = spec_text(
        "x: T[M, K]; w: T[K, N]; b: T[N]", "y: T[M, N]", "y = tanh(x @ w) + b", "y = jnp.tanh(x @ w) + b",
        types="{T: [bfloat16]}",
    )  # fmt: skip
    op, shape = make_op(tmp_path, text), {"M": 512, "N": 256, "K": 128}
    monkeypatch.setattr(platform, "current_arch", lambda: "sm_90a")
    monkeypatch.setattr(limits, "this_gpu", lambda *_: GPUS[0])
    forward, frozen, backward = (benchmark.product_times(o, shape)["products"] for o in (op, *backward_ops(op)))
    assert forward == pytest.approx(2 * 512 * 256 * 128 / GPUS[0].tensor_cores * 1e6)
    assert (frozen, backward) == (forward, 2 * forward)
