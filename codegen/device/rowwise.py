"""Device functions of kernels that reduce along rows: a thread's view of its row, with what it reads, writes and reduces.

`Row` is what a thread knows of one row, `Row.part` one of the passes' pieces of it, `vectors` at a time, and `Row.vector`
one vector of that. How memory is accessed stands in `access`, how values are reduced in `reduce`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Numeric

from codegen.device import access, places, reduce, runs
from codegen.device.functions import Vector
from codegen.device.math.division import divide_by_count
from codegen.device.math.narrow import bytes_of
from codegen.device.math.opaque import unseen
from codegen.device.places import start_of
from codegen.device.runs import Run, Slots, arrive, fetch, first_column, half_of, halves, run_of, send, slots, step_of  # noqa: F401  for kernels
from codegen.shared import WARP, RowLaunch, Walk


def grid(how: RowLaunch, rows: Int32, stream: Any) -> dict[str, Any]:
    """The grid and block of a launch for so many rows."""
    return {
        "grid": (how.blocks(rows), 1, 1), "block": (how.threads, 1, 1), "cluster": (how.cluster, 1, 1), "stream": stream,
        "min_blocks_per_mp": how.resident, "preferred_smem_carveout": -1,  # as much as the driver sees fit
    }  # fmt: skip


def walking_grid(how: Walk, blocks: Int32, stream: Any) -> dict[str, Any]:
    """The grid and block of a launch, in so many blocks, of a kernel that loops over rows."""
    paced = {} if how.first is None else {"use_pdl": how.paced}
    return {
        "grid": (blocks, 1, 1), "block": (how.threads, 1, 1), "cluster": (max(how.cluster, how.meets), 1, 1),
        "stream": stream, "min_blocks_per_mp": how.resident, "preferred_smem_carveout": -1, **paced,
    }  # fmt: skip


def places_grid(how: Walk, places: Int32, columns: Int32, stream: Any) -> dict[str, Any]:
    """The grid and block of a launch of a kernel whose threads reduce all rows of a place. There is one block even if
    there are no places."""
    units = places * _pieces_of_place(how, columns)
    blocks = units // (how.threads // how.per_row) + 1
    return {"grid": (blocks, 1, 1), "block": (how.threads, 1, 1), "stream": stream, "preferred_smem_carveout": -1}


def place_of(how: Walk, columns: Int32) -> tuple[Int32, Int32]:
    """The place whose rows this thread reduces together with its neighbours, and the number of these threads' piece of
    the columns."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    count = _pieces_of_place(how, columns)
    count = cutlass.select_(count > 0, count, 1)
    unit = bidx * (how.threads // how.per_row) + tidx // how.per_row
    return unit // count, unit % count


def _pieces_of_place(how: Walk, columns: Int32) -> Int32:
    return (columns + how.width_of_piece - 1) // how.width_of_piece


def sizes(how: Walk) -> tuple[int, int, int, int, int, int]:
    """The number of columns of a vector, of vectors, threads, threads and blocks of a row, and rows that a thread holds."""
    return how.vec, how.vectors, how.threads, how.per_row, how.cluster, how.at_once


def pieces(how: Walk, columns: Int32, least: int = 0) -> Int32 | int:
    """The number of blocks that together have all columns of a row; at least `least`, which is 0 or 1."""
    if how.whole:
        return how.cluster
    width = how.width_of_piece
    count = (columns + width - 1) // width
    return cutlass.select_(count > 0, count, 1) if least else count


def columns_of(how: Walk, piece: Int32) -> tuple[Int32, int]:
    """This thread's first column in the piece of its block, and the distance from one of its vectors to the next."""
    return first_column(how, piece), step_of(how)


def rows_of(how: Walk, parts: Int32) -> tuple[int, Int32]:
    """The number of rows that a block has at a time, and the distance from one row of a thread to its next."""
    rows = how.threads // how.per_row
    return rows, parts * rows


def first_row(how: RowLaunch) -> Int32:
    """The first of the neighbouring rows that this thread has a part of."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    return (bidx // how.cluster * (how.threads // how.per_row) + tidx // how.per_row) * how.at_once


def shared(how: RowLaunch, *dtypes: type[Numeric]) -> list[cute.Tensor]:
    """Shared memory in which the threads of a row exchange their partial results of these types."""
    return reduce.shared(how.threads, how.per_row, how.cluster, dtypes)


@dataclass(frozen=True)
class Row:
    """A thread's view of a row: its vectors lie `step` columns apart, from column `first` on."""

    how: RowLaunch | Walk
    there: Boolean  # whether there is such a row
    length: Int32  # its columns
    columns: Int32  # the same; 0 past the last row, of which nothing is accessed
    first: Int32
    passes: Int32 | int  # how many times `vectors` vectors of each thread the row takes
    column: Int32  # that of this thread's first vector in a pass
    once: bool  # whether each of its vectors is read once
    together: bool  # whether it is read and written with its neighbours
    shifts: bool  # whether vectors of ragged rows are aligned in memory, and not in the row
    reads: bool = True  # whether arrays of the row's own are read here: once, if it stays in registers, or in each pass
    leads: Boolean | bool = False  # whether this thread is the row's first
    sweeps: bool = False  # whether this is one of the row's passes, which read it from shared memory if it is there
    v: int = 0  # the number of a vector in it
    c: Int32 | None = None  # its column

    @property
    def step(self) -> int:
        return step_of(self.how)

    @property
    def chunk(self) -> Int32 | int:
        """The first column of those that this block has of a row which is a run of its own."""
        if not self.how.splits:
            return 0
        return self.first - self.own

    @property
    def own(self) -> Int32:
        """This thread's first column among its block's."""
        tidx, _, _ = cute.arch.thread_idx()
        return Int32(tidx % self.how.per_row * self.how.vec)

    @property
    def apart(self) -> bool:
        """Whether a vector may have columns of two groups."""
        return self.how.ragged or self.how.crossing or self.together

    def part(self, p: Int32) -> Row:
        """This thread's vectors in pass `p`."""
        reads = isinstance(self.how, RowLaunch) and not self.how.holds_row
        return replace(self, column=self.first + p * (self.step * self.how.vectors), reads=reads, sweeps=True)

    def vector(self, v: int) -> Row:
        """One of the vectors of a pass."""
        return replace(self, v=v, c=self.column + v * self.step)

    @property
    def holds(self) -> bool:
        """Whether all of the row's vectors are in registers."""
        return isinstance(self.how, RowLaunch) and self.how.holds_row

    @property
    def certain(self) -> bool:
        """Whether this vector has neither the first nor the last column of a row that exists."""
        return self.holds and reduce.within(self.v, self.how.vectors, self.how.ragged and not self.in_one_run)

    def is_own(self) -> Boolean | bool:
        """Whether this single column is inside the row, and no thread before this one has it too; True where it certainly is."""
        apart = runs.neighbouring(self.how)
        if self.how.exact or (self.v < self.how.vectors - 1 and not apart):
            return True
        return runs.own_first(self.how) - self.column <= self.v if apart else self.c < self.length

    @property
    def in_one_run(self) -> bool:
        """Whether it comes and goes through shared memory, and vectors begin with it."""
        return self.how.by_runs and self.how.vec > 1

    # Memory. Nothing is read of an input that is left out: its registers hold the default.

    def load(
        self, src: cute.Tensor | None, place: cute.Coord, dst: cute.Tensor, parts: int = 1, aligned: bool = True,
        run: Run | Slots | None = None,
    ) -> None:  # fmt: skip
        """Load this thread's vectors of an array's own row, which begins at `place` (`access.load_row`); or, in each
        pass, from the `run` in shared memory. An array that is not `aligned` with the others may have one row for
        several rows: the L1 cache keeps it."""
        if src is not None and run is not None:
            start = start_of(src, place)
            if isinstance(run, Run) and self.in_one_run:
                if self.reads:
                    runs.take_vectors(run, start + self.chunk * parts, self.there, self.own, self.step, dst, parts)
            elif not self.sweeps:
                return
            elif isinstance(run, Slots):
                runs.take_row(
                    run.of(0, start, self.length * parts), start, self.column, self.step, self.columns, dst, parts
                )
            else:
                runs.take(run, start, self.there, self.column, self.step, self.length, dst, parts)
        elif self.reads:
            self._load(src, place, self.column, dst, parts, aligned and self.shifts, self.once and aligned)

    def load_shared(self, src: cute.Tensor | None, place: cute.Coord, dst: cute.Tensor, parts: int = 1) -> None:
        """Load, from an array that all rows share, this vector, or all vectors of this thread."""
        by_column = isinstance(self.how, RowLaunch) and self.how.by_runs and not self.in_one_run
        if src is not None and self.c is not None and by_column:
            runs.load_column(src, start_of(src, place), self.c, self.length, dst, parts, self.is_own() is True)
            return
        aligned = src is not None and self.in_one_run and isinstance(start_of(src, place), int)
        self._load(src, place, self.column if self.c is None else self.c, dst, parts, aligned, False)

    def _load(
        self, src: cute.Tensor | None, place: cute.Coord, column: Int32, dst: cute.Tensor, parts: int, aligned: bool, once: bool
    ) -> None:  # fmt: skip
        if src is not None:
            # What a row's threads leave of a sector is not read twice
            once = once and (self.how.vectors == 1 or self.step * parts * src.element_type.width >= access.SECTOR)
            # The first of a thread's vectors that may have the row's end
            last = self.how.vectors - (1 if self.in_one_run else 2) if self.holds else 0
            last = max(0, last if self.c is None else last - self.v)
            at: tuple[Any, ...] = (start_of(src, place), column, self.step, self.columns)
            if src.element_type.width < 8:  # two numbers are in a byte
                at, src, dst = tuple(x // 2 for x in at), bytes_of(src), bytes_of(dst)
            access.load_row(src, *at, dst, parts, self.how.ragged, aligned, once, last)

    def load_one(self, src: cute.Tensor | None, place: cute.Coord, dst: cute.Tensor) -> None:
        """Load a row's single value."""
        load_one(src, place, self.there, dst)

    def fetch(
        self, src: cute.Tensor | None, place: cute.Coord, memory: cute.Tensor | Slots | None, u: int, parts: int = 1
    ) -> None:
        """Start asynchronous copies of this thread's vectors to its part of shared memory for the u-th of its rows."""
        if src is None or memory is None:
            return
        start = start_of(src, place)
        if isinstance(memory, Slots):
            run = memory.of(u, start + self.chunk * parts, self.length * parts)
            runs.fetch_row(src, run, self.end(run, parts, src), self.how, memory.kept)
        else:
            access.fetch_row(src, start, self.column, self.step, self.columns, memory[None, None, u], parts)

    def take(
        self, src: cute.Tensor | None, place: cute.Coord, memory: cute.Tensor | Slots | None, u: int, dst: cute.Tensor,
        parts: int = 1,
    ) -> None:  # fmt: skip
        """Load the vectors that `fetch` has copied to registers."""
        if src is None or memory is None:
            return
        if isinstance(memory, Slots):
            start = start_of(src, place) + self.chunk * parts
            run = memory.of(u, start, self.length * parts)
            if self.in_one_run:
                runs.take_vectors(run, start, Boolean(True), self.own, self.step, dst, parts)
            else:
                runs.take_row(run, start, self.column, self.step, self.columns, dst, parts)
        else:
            access.take_row(memory[None, None, u], self.column, self.step, self.columns, dst)

    def send(self, dst: cute.Tensor, place: cute.Coord, slots: Slots | None, parts: int = 1) -> None:
        """Copy to memory what was stored in the run of this row."""
        if slots is not None:
            run = slots.of(0, start_of(dst, place) + self.chunk * parts, self.length * parts)
            runs.send_row(run, dst, self.end(run, parts, dst), self.how)

    def end(self, run: Run, parts: int, tensor: cute.Tensor) -> Int32:
        """Where this block's part of this row ends in a run of its own, or its rows in one run; 0 if there is none."""
        if runs.joins(self.how):
            return runs.end_of_rows(run, self.how.threads // self.how.per_row * self.length * parts, tensor)
        columns = self.columns - self.chunk
        if self.how.splits:
            most = self.how.per_row * self.how.vectors * self.how.vec
            columns = cutlass.select_(columns < most, columns, Int32(most))
        return cutlass.select_(columns > 0, run.skip + columns * parts, Int32(0))

    def gather(
        self, src: cute.Tensor | None, place: cute.Coord, modes: tuple, extents: tuple, dst: cute.Tensor,
        back: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Load this thread's columns, or their neighbours, of an array that has a row of its own but lacks some of the
        column axes (`access.gather_row`)."""
        if self.reads:
            self.gather_shared(src, place, modes, extents, dst, back)

    def gather_shared(
        self, src: cute.Tensor | None, place: cute.Coord, modes: tuple, extents: tuple, dst: cute.Tensor,
        back: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """As `gather`, from an array that all rows share."""
        if src is not None:
            column = self.column if self.c is None else self.c
            where, how = (column, self.step, self.columns, dst), self.how
            if how.vec == 1 and isinstance(how, RowLaunch) and how.holds_row and not back:
                places.gather(src, place, modes, extents, *where, how.neighbours)
            else:
                access.gather_row(src, place, modes, extents, *where, self.apart, back)

    def pick(
        self, src: cute.Tensor | None, place: cute.Coord, modes: tuple, extents: tuple, index: tuple, dst: cute.Tensor
    ) -> None:
        """Load, for each column, the element that an index of the row's own selects. `index` is the mode that it
        selects along, its array, the position of a row in that, and its modes (`access.pick_row`)."""
        if self.reads:
            self.pick_shared(src, place, modes, extents, index, dst)

    def pick_shared(
        self, src: cute.Tensor | None, place: cute.Coord, modes: tuple, extents: tuple, index: tuple, dst: cute.Tensor
    ) -> None:
        """As `pick`, from arrays that all rows share."""
        if src is not None:
            where = self.column, self.step, self.columns
            access.pick_row(src, place, modes, extents, *index, *where, dst, self.apart)

    def load_index(self, mode: int, extents: tuple, dst: cute.Tensor) -> None:
        """The coordinate of each column along one of the column axes."""
        access.load_index(mode, extents, self.column, self.step, dst, self.apart)

    def store(
        self, values: Vector | cute.Tensor, dst: cute.Tensor, place: cute.Coord, registers: cute.Tensor | None = None,
        parts: int = 1, aligned: bool = True, run: Run | Slots | None = None,
    ) -> None:  # fmt: skip
        """Store this vector, given as registers or as values, to memory or to the `run` of the block's rows. Where a
        thread's rows are written together, its values stay in `registers` until then."""
        src = _held(values, dst, registers)
        if run is not None:
            start = start_of(dst, place)
            run = run.of(0, start, self.length * parts) if isinstance(run, Slots) else run
            if self.in_one_run:
                runs.put_vector(run, src, self.own + self.v * self.step, self.how.vec)
                return
            runs.put(run, start, src, self.c, self.is_own())
        elif not self.together:
            start, offset, how = start_of(dst, place), self.v * self.step, self.how
            access.store_row(
                src, dst, start, self.column, offset, self.columns, parts, how.ragged, aligned and self.shifts, how.per_row,
                self.certain,
            )  # fmt: skip

    def scatter(
        self, values: Vector, dst: cute.Tensor, place: cute.Coord, modes: tuple, extents: tuple, width: int
    ) -> None:
        """Store this vector to an array that lacks some of the column axes: one value for `width` columns."""
        if not self.together:
            access.scatter_row(
                _held(values, dst, None), dst, place, modes, extents, self.c, self.columns, width, self.apart
            )

    def store_one(
        self, value: Vector, dst: cute.Tensor, place: cute.Coord, registers: cute.Tensor | None = None
    ) -> None:
        """Store a row's single value."""
        src = _held(value, dst, registers)
        if not self.together:
            dst[place] = src[0]

    def forget(self, *arrays: tuple[cute.Tensor | None, cute.Tensor]) -> Row:
        """Return the row. If its registers are to hold `only_row`, hide from the compiler where their contents come from: then it
        keeps no other values computed from them."""
        if not self.how.only_row:
            return self
        first = unseen(self.first)
        forget(*arrays)
        return replace(self, first=first)

    def writes(self) -> Boolean:
        """Whether this thread writes the row's single values: its first thread does, or all threads where rows are
        written together."""
        return self.there & self.leads | self.together

    # Values

    def inside(self) -> reduce.Inside:
        """A mask of this vector's columns that are inside the row; None if all are."""
        how = self.how
        if isinstance(how, Walk) and how.whole and self.v < how.vectors - 1 and not (how.by_runs and how.cluster > 1):
            return None if self.alone else cute.full((how.vec,), self.there, Boolean)  # the last one may cross the end
        if runs.neighbouring(how) and not how.exact:
            return cute.full((how.vec,), self.is_own(), Boolean)
        return reduce.inside(self.c, self.columns, how.vec, how.ragged, how.exact or self.certain)

    def inside_columns(self) -> reduce.Inside:
        """Which columns of this vector count in results of their own: all, where only rows that exist do (`counts`). Results past the
        row's end are not written."""
        return None if self.alone and isinstance(self.how, Walk) and self.how.each is None else self.inside()

    @property
    def alone(self) -> bool:
        """Whether its warp has one row, or none past the last. A piece of one long row, which shifts, may end anywhere."""
        whole = isinstance(self.how, Walk) and self.how.whole and not self.shifts
        return self.how.exact or (whole and self.how.per_row >= WARP)

    def counts(self) -> Boolean | bool:
        """Whether results of several rows include this row. One past the last is read as zeros, of which a chain may make others."""
        return self.there if self.alone else True

    def inside_once(self) -> reduce.Inside:
        """A mask with the first column only, if the row exists: for single values of rows."""
        return reduce.inside(self.c, cutlass.select_(self.there, 1, 0), self.how.vec, True, False)

    def reduce(
        self, running: list[cute.Tensor], ops: tuple[str, ...], buffers: list[cute.Tensor], rescaled: tuple = (),
        turn: Int32 | int = 0,
    ) -> list[Numeric]:  # fmt: skip
        """The row's statistics, from all its threads' running values (`reduce.over_row`)."""
        how = self.how
        found = reduce.over_row(running, ops, buffers, how.per_row, how.cluster, turn, rescaled=rescaled)
        count = how.vec * how.vectors if self.together else self.length
        return [divide_by_count(x, type(x)(count)) if op == "mean" else x for op, x in zip(ops, found, strict=True)]


def row(how: RowLaunch, index: Int32, there: Boolean, length: Int32, shifts: bool) -> Row:
    """This thread's view of the row of this number, if it is `there`. Where rows are ragged and it `shifts`, vectors
    are aligned in memory instead of in the row."""
    tidx, _, _ = cute.arch.thread_idx()
    bidx, _, _ = cute.arch.block_idx()
    columns = cutlass.select_(there, length, 0)
    if how.at_once > 1:  # all rows of a thread are read together; what is read of one alone is what they share
        columns = how.vec * how.vectors
    first = runs.first_neighbour(how, length) if how.neighbours else first_column(how, bidx % how.cluster)
    shifts = shifts and how.ragged and not how.by_runs
    if shifts:
        first -= Int32(Int64(index) * length % how.vec)
    each = how.per_row * how.cluster * how.vec * how.vectors  # columns of a pass
    passes = 1 if how.holds_row else (length + how.vec + each - 2) // each
    leads = (bidx % how.cluster == 0) & (tidx % how.per_row == 0)
    alone = how.at_once == 1
    return Row(
        how, there, length, columns, first, passes, first, how.holds_row, not alone, shifts, how.holds_row and alone, leads
    )  # fmt: skip


def walked(how: Walk, there: Boolean, length: Int32, first: Int32) -> Row:
    """A thread's view of one of the rows that it loops over, if it is `there`, with its columns from `first` on."""
    columns = cutlass.select_(there, length, 0)
    return Row(how, there, length, columns, first, 1, first, once=True, together=False, shifts=False)


def walked_piece(how: Walk, index: Int32, total: Int64, first: Int32) -> Row:
    """As `walked`, where all arrays are one row of `total` elements: a view of one of the pieces that a block takes in
    a step."""
    width = how.threads * how.vec
    columns = reduce.columns_left(total, index, width)
    return Row(how, columns > 0, width, columns, first, 1, first, once=True, together=False, shifts=True)


def every_row(how: Walk, length: Int32, first: Int32) -> Row:
    """A view of what all rows share, for a thread's columns from `first` on."""
    return Row(how, Boolean(True), length, length, first, 1, first, once=False, together=False, shifts=False)


def staging(how: Walk, tensor: cute.Tensor | None, parts: int = 1) -> cute.Tensor | Slots | None:
    """Shared memory to which a thread's rows come: its own vectors, or, shared with its neighbours, whole rows."""
    if how.by_runs:
        return slots(how, tensor, how.at_once, parts)
    return access.staging(tensor, how.vec * parts, how.vectors, how.at_once, how.threads)


def arrived(how: Walk) -> None:
    """Wait for the oldest of the rows that were sent for."""
    cute.arch.cp_async_wait_group(how.at_once - 1)
    if how.by_runs:
        runs.meet(how)


def load_one(src: cute.Tensor | None, place: cute.Coord, there: Boolean | bool, dst: cute.Tensor) -> None:
    """Load one value of an array, or its default if the array is left out."""
    if src is not None:
        access.load_one(src, place, there, dst)


def forget(*arrays: tuple[cute.Tensor | None, cute.Tensor]) -> None:
    """Hide from the compiler where the contents of these arrays' registers come from, so that it keeps no other values
    computed from them."""
    for tensor, registers in arrays:
        if tensor is not None:
            access.forget(registers)


def meeting_place(how: RowLaunch, *registers: cute.Tensor) -> cute.Pointer | None:
    """Shared memory in which lanes exchange neighbouring rows (`access.meeting_place`). None if a thread has one at a time."""
    return access.meeting_place(how.threads, *registers) if how.at_once > 1 else None


def load_together(src: cute.Tensor | None, row: Int32, dst: cute.Tensor, place: cute.Pointer | None) -> None:
    """Load all rows that a thread has at once, from `row` on (`access.load_rows`), if it has several."""
    if src is not None and place is not None:
        access.load_rows(src, row, dst, place)


def store_together(src: cute.Tensor, dst: cute.Tensor, row: Int32, place: cute.Pointer | None) -> None:
    """Store all rows that a thread has at once, from `row` on (`access.store_rows`), if it has several."""
    if place is not None:
        access.store_rows(src, dst, row, place)


def _held(values: Vector | cute.Tensor, dst: cute.Tensor, registers: cute.Tensor | None) -> cute.Tensor:
    """Registers with these values."""
    if isinstance(values, cute.Tensor):
        return values
    held = access.registers(dst, (cute.size(values.shape),)) if registers is None else registers
    held.store(values)
    return held
