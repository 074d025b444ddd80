"""Which launches are tried: each differs from the planned one, fits the GPU, and follows from the spec's own schedule."""

from dataclasses import replace
from pathlib import Path

import pytest

from codegen.pipeline import read_op
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.planner import overrides
from codegen.shared import RowLaunch, WalkLaunch
from codegen.tuning.candidates import neighbours
from codegen.tuning.choosing import changed, launch, unfit

ROOT = Path(__file__).parents[3]
SPEC = """\
op: made
summary: Made here.
types: {{T: [float32, bfloat16]}}
inputs: {{x: 'T[..., N]', w: 'T[N]'}}
outputs: {{{outputs}}}
chain: |
  {chain}
reference: "y = 0"
{more}
"""
ROW = {"outputs": "y: 'T[..., N]'", "chain": "y = x * w / sqrt(mean(square(x), axis=N))"}
COLUMN = {"outputs": "y: 'T[N]'", "chain": "y = sum(x * w, axis=...)"}
BOTH = {"outputs": "y: 'T[N]'", "chain": "y = sum(x * w / sqrt(mean(square(x), axis=N)), axis=...)"}


def op_of(outputs: str, chain: str, more: str = ""):
    return read_op("specs/made.yaml", SPEC.format(outputs=outputs, chain=chain, more=more))


def made_of(op, dtype: str, extents: Extents, arch: str = "sm_90a"):
    """A plan and a call of it, whose arrays are of one dtype."""
    dtypes = {a.name: dtype for a in op.spec.arrays}
    return op.plan, PlannedCall(dtypes, extents, overrides(op.spec, arch), arch)


def of(op, rows: int, columns: int):
    return made_of(op, "bfloat16", Extents(columns, rows * columns, columns, rows))


@pytest.mark.parametrize("made", [ROW, COLUMN, BOTH], ids=lambda m: m["chain"])
@pytest.mark.parametrize("columns", [1, 129, 4096, 65536])
def test_each_differs_and_fits(made, columns):
    call = of(op_of(**made), 8192, columns)
    planned = launch(*call)
    found = neighbours(*call, {})
    assert len(found) > 3 and planned not in found
    for how, changes in found.items():
        assert changed(*call, changes) == how
        assert unfit(call[0], how, call[1]) == ""
        assert len(changes) == 1
    first, base = next(iter(found.items()))
    for how, changes in neighbours(*call, base).items():  # a step further
        assert how != first and base.keys() <= changes.keys()
        assert sum(base.get(name) != value for name, value in changes.items()) == 1


def test_what_depends_on_a_change_follows_it():
    call = of(op_of(**ROW), 8192, 4096)
    how = changed(*call, {"threads_per_row": 64})
    assert isinstance(how, RowLaunch)
    assert how.per_row * how.vectors * how.vec == 4096 and how.exact
    how = changed(*call, {"vector_bytes": 4})
    assert (how.vec, how.per_row * how.vectors * how.vec) == (2, 4096)
    walk = of(op_of(**COLUMN), 8192, 4096)
    planned, other = launch(*walk), changed(*walk, {"parts": 2})
    assert isinstance(other, WalkLaunch)
    assert (other.parts, replace(other, parts=planned.parts)) == (2 * planned.parts, planned)


@pytest.mark.parametrize(
    "changes",
    [{"threads": 2048}, {"cluster": 16}, {"resident": 40}, {"resident": 17, "threads": 128}, {"vectors": 2}, {"at_once": 2}, {"holds_expensive": True}],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_is_none(changes):
    assert changed(*of(op_of(**ROW), 8192, 4096), changes) is None


def test_a_launch_that_needs_too_many_registers_or_too_much_shared_memory_does_not_fit():
    plan, call = of(op_of(**BOTH), 8192, 4096)
    how = launch(plan, call)
    assert isinstance(how, WalkLaunch) and how.staged
    assert "registers of data" in unfit(plan, replace(how, vectors=64), call)
    assert "bytes of shared memory" in unfit(plan, replace(how, threads=1024, at_once=8, resident=0), call)
    assert "clusters of 2" in unfit(plan, replace(how, cluster=2), replace(call, arch="sm_80"))


def test_what_the_spec_says_itself_stays():
    call = of(op_of(**ROW, more="schedule: {threads: 512}"), 8192, 4096)
    assert changed(*call, {"threads": 128}) == launch(*call)
    assert all("threads" not in changes for changes in neighbours(*call, {}).values())


@pytest.mark.parametrize("name", ["running_mean", "transpose_quantize_fp8", "write_kv_cache"])
def test_kernels_of_other_kinds_have_launches_to_try(name):
    """Those that the planner itself makes from other threads or vectors: their records have no field that is changed alone."""
    op = read_op(f"specs/{name}.yaml", (ROOT / f"specs/{name}.yaml").read_bytes())
    call = made_of(op, "float32", Extents(4096, 2**24, 4096, 4096, turned=4096))
    planned = launch(*call)
    assert {type(how) for how in neighbours(*call, {})} == {type(planned)}
    assert changed(*call, {"resident": 4}) is None


@pytest.mark.parametrize(
    ("rows", "columns", "arch", "names"),
    [(8192, 128, "sm_90a", {"tile_n", "stages"}), (8192, 64, "sm_80", {"tile_n", "stages"}), (1, 128, "sm_80", {"tile_n", "splits", "stages"})],
)  # fmt: skip
def test_tiles_of_attention(rows, columns, arch, names):
    """Widths of tiles that fit, and how many blocks share a row in decoding. The planned launches fit too."""
    op = read_op(str(ROOT / "specs" / "full_attention.yaml"))
    call = made_of(op, "bfloat16", Extents(columns, 8192, columns, rows, 8, 1), arch)
    planned, found = launch(*call), neighbours(*call, {})
    assert unfit(op.plan, planned, call[1]) == "" and planned not in found
    assert {name for changes in found.values() for name in changes} == names
    assert all(unfit(op.plan, how, call[1]) == "" for how in found)
    assert changed(*call, {"tile_n": 24}) is None and changed(*call, {"tile_n": 1024}) is None
