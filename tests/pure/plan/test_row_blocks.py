"""The work of a block of several rows: a GPU starts a limited number of blocks in a given time."""

import pytest

from codegen.pipeline import read_op
from codegen.plan.launches import Extents
from codegen.shared import RowLaunch

SPEC = """
op: made
summary: Made here.
inputs: {{{inputs}}}
outputs: {{y: "{output}"}}
chain: y = {chain}
reference: y = {reference}
"""


def launch(inputs: str, output: str, chain: str, rows: int, columns: int) -> RowLaunch:
    names = " + ".join(part.split(":")[0] for part in inputs.split(", ") if ":" in part)
    op = read_op("specs/made.yaml", SPEC.format(inputs=inputs, output=output, chain=chain, reference=names))
    dtypes = {a.name: op.spec.dtypes(a)[0] for a in op.spec.arrays}
    extents = Extents(columns, rows * columns, columns, rows)
    how = op.plan.launch(dtypes, extents, {}, "sm_90a")
    assert isinstance(how, RowLaunch)
    return how


X, GROUPED = 'x: "bfloat16[..., N]"', 'x: "bfloat16[..., (B N=32)]"'


@pytest.mark.parametrize("columns", [8, 32, 64, 128, 512, 1024])
def test_blocks_move_much(columns):
    """A row's bytes are read and written once: those of shared arrays are no work. In 390 blocks a microsecond, that is more than an
    H200's memory moves."""
    for more, factor in (("", ""), (', w: "float32[N]"', " * w")):
        how = launch(X + more, "bfloat16[..., N]", f"x * rsqrt(mean(square(x), axis=N)){factor}", 10**6, columns)
        moved = how.rows_a_block * columns * 4
        assert moved >= 12 * 1024


def test_a_maximum_of_few_columns_has_large_blocks():
    """Of 64 bytes a row that are read, and two that are written."""
    how = launch(GROUPED + ', b: "bfloat16[(B N=32)]"', "bfloat16[..., B]", "max(x + b, axis=N)", 10**6, 32)
    assert how.threads > 256 and how.rows_a_block * 64 >= 12 * 1024


def test_rows_of_several_warps_are_in_smaller_blocks():
    how = launch(X + ', k: "bool[..., N]"', "float32[...]", "sum(where(k, sin(x), 0.0), axis=N)", 10**6, 3000)
    assert how.per_row > 32 and how.threads <= 256


# Of vectors of a row: the threads that have them. An H200 took up to a third less time than with a thread for each vector
@pytest.mark.parametrize(
    ("count", "per_row"),
    [(1, 1), (2, 2), (3, 2), (4, 2), (8, 4), (10, 4), (12, 4), (16, 8), (24, 8), (32, 16), (64, 32)],
)
def test_few_threads_share_a_short_row(count, per_row):
    how = launch(X, "bfloat16[..., N]", "x - mean(x, axis=N)", 10**6, 8 * count)
    assert (how.per_row, how.vectors) == (per_row, -(-count // per_row))


def test_a_thread_has_registers_for_its_vectors():
    """Of three arrays, each vector has a thread."""
    more = ', u: "bfloat16[..., N]", v: "bfloat16[..., N]"'
    how = launch(X + more, "bfloat16[..., N]", "x * u - mean(v, axis=N)", 10**6, 64)
    assert (how.per_row, how.vectors) == (8, 1)
