"""The launches of kernels that walk down rows."""

import pytest

from codegen.plan.rows import walking


def tiles(rows, columns, apart=1):
    """Of one bfloat16 array."""
    needs = {"width": 16, "written": 0, "lanes": 1, "values": False, "costly": False, "waves": 1, "alive": 2}
    return walking.tiles(8, False, *needs.values(), columns, rows, apart, {}, "sm_90a")


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 100])
def test_few_rows_leave_no_thread_without_one(rows):
    how = tiles(rows, 2**20)
    assert how.threads // how.per_row <= rows


def test_narrow_rows_have_as_many_threads_as_vectors():
    assert tiles(1, 40).per_row == 8


@pytest.mark.parametrize(("rows", "columns", "apart"), [(16, 2**20, 1), (16, 4096, 1), (24, 2**16, 8), (197, 4096, 83)])
def test_few_rows_are_not_read_with_many_that_are_not_there(rows, columns, apart):
    how = tiles(rows, columns, apart)
    step = how.parts * how.at_once * how.threads // how.per_row
    assert -rows % step <= rows * walking.MOST_IDLE


def test_neither_depends_on_the_number_of_many_rows():
    assert len({tiles(rows, 4096).constants["how"] for rows in (8192, 8193, 10_000, 65_536)}) == 1


def held(columns, width, threads=256, arch="sm_90a"):
    needs = walking.Needs(width=width, fixed=0, sums=64, stageable=True, costly=False, alive=4, folds=1)
    rows = walking._WholeRows(8, False, needs, 1, columns, 2**20, 1, {}, arch)
    return rows.may_pace(threads, rows.threads(1)[1])


def test_blocks_keep_pace_where_their_warps_meet_and_rows_are_long():
    assert held(4096, 32)
    assert not held(256, 32)  # a warp has a row
    assert not held(1024, 16, threads=64)  # a count for each 2 KiB
    assert not held(4096, 32, arch="sm_100a")
