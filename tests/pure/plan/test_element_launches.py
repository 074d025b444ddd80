"""The vectors of element-wise kernels."""

import pytest

from codegen.pipeline import read_op
from codegen.plan.launches import Extents, PlannedCall
from tests.making import spec_text


def launch(inputs, chain, columns, total=2**26, dtype="bfloat16", **schedule):
    op = read_op("specs/made.yaml", spec_text(inputs, "y: T[M, N]", chain, types="{T: [float32, bfloat16]}"))
    dtypes = {a.name: dtype for a in op.spec.arrays}
    return op.plan.launch(PlannedCall(dtypes, Extents(columns, total), schedule))


@pytest.mark.parametrize(
    ("columns", "dtype", "vec", "ragged"),
    [(96, "bfloat16", 8, False), (100, "bfloat16", 4, False), (1028, "bfloat16", 8, True), (50, "bfloat16", 8, True), (51, "bfloat16", 8, True),
     (50, "float32", 2, False), (51, "float32", 4, True)],
)  # fmt: skip
def test_rows_are_filled_by_whole_vectors_or_halves(columns, dtype, vec, ragged):
    how = launch("x: T[M, N]; w: T[N]", "y = x * w", columns, dtype=dtype)
    assert (how.vec, how.ragged) == (vec, ragged)


def test_what_has_no_coordinates_has_whole_vectors():
    """One vector at the end is not whole."""
    how = launch("x: T[M, N]; z: T[M, N]", "y = x * z", 100, total=2**26 + 100)
    assert (how.vec, how.ragged) == (8, True)


def test_a_schedule_chooses_the_vectors():
    assert launch("x: T[M, N]; w: T[N]", "y = x * w", 100, vector_bytes=16).vec == 8


@pytest.mark.parametrize(
    ("chain", "dtype", "vec"), [("atan(x)", "bfloat16", 8), ("x * 2", "bfloat16", 4), ("x * 2", "int8", 8)]
)
def test_few_bytes_that_a_thread_reads_have_wider_vectors(chain, dtype, vec):
    """Where results are float32, unless little is computed and 8 bytes are read."""
    op = read_op("specs/made.yaml", spec_text(f"x: {dtype}[M, N]", "y: float32[M, N]", f"y = {chain}"))
    assert op.plan.launch(PlannedCall({"x": dtype, "y": "float32"}, Extents(4096, 2**26))).vec == vec


@pytest.mark.parametrize(("total", "vec"), [(2**26, 8), (2**18, 8), (2**17, 2), (2**16, 2), (2**12, 2), (2**10, 8)])
def test_small_calls_have_narrow_vectors(total, vec):
    """So that more SMs compute. A symbolic total, a divisor, is smaller than any of these calls."""
    assert launch("x: T[M, N]; w: T[N]", "y = x * w", 64, total=total).vec == vec


@pytest.mark.each
@pytest.mark.parametrize("inputs", ["x: T[M, N]; w: T[N]", "x: T[M, N]; w: T[M, N]"])
@pytest.mark.parametrize("columns", [3, 50, 64, 100, 1027, 4096])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_kernels_are_enough_for_any_number_of_rows(inputs, columns, dtype):
    """One of them for small calls. Where no array lacks an axis, it matters also whether all elements are whole vectors."""
    rows = [*range(1, 100), *(2**n + k for n in range(7, 18) for k in (0, 1, 2, 4))]
    found = {launch(inputs, "y = x * w", columns, n * columns, dtype) for n in rows}
    assert len({how.vec for how in found}) <= 2
    assert len(found) <= (2 if inputs.endswith("T[N]") else 4)


@pytest.mark.parametrize("inputs", ["w: T[M]; b: T[]", "w: T[N]; b: T[N]", "w: T[N]; b: T[M]"])
def test_long_rows_have_halves_where_several_vectors_are_put_together(inputs):
    assert launch(f"x: T[M, N]; {inputs}", "y = x * w + b", 1028).vec == 4


@pytest.mark.parametrize(("places", "ahead", "held"), [(33, 1, True), (32, 1, False), (33, 0, False), (128, 0, True)])
def test_tables_of_several_lines_that_elements_read_often_are_held(places, ahead, held):
    """A line of a cache is read at a time, and each of two elements reads one."""
    more = f" + take(t, cast(x, int32) + {ahead}, axis=P)" if ahead else ""
    text = spec_text(
        "t: float32[P]; x: float32[M, N]", "y: float32[M, N]", f"y = take(t, cast(x, int32), axis=P){more}"
    )
    op = read_op("specs/made.yaml", text)
    call = PlannedCall({a.name: "float32" for a in op.spec.arrays}, Extents(2048, 2**26, tables=(places,)))
    assert op.plan.launch(call).tables == ((places,) if held else ())
