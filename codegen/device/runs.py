"""Device functions by which rows are loaded and stored through shared memory, if N is not a multiple of the vector width.

A block's rows are neighbours: in memory they are one run of elements. The block copies the run in aligned vectors. Where rows are
short, its threads read and write their columns in shared memory one by one: no vector of a thread needs a mask or a shift. Where a
block has one long row, its threads' vectors begin with the row, so arrays that all rows share need no shift. What comes from a run
is shifted, by the same amount for all threads. In a kernel that walks down rows, which may lie apart, each row is a run of its own,
which its threads copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32, Uint64
from cutlass.memory import SmemAllocator

from codegen.device import access
from codegen.device import functions as device
from codegen.shared import WARP, RowLaunch, Walk, slot_bytes


def first_column(how: RowLaunch | Walk, piece: Int32) -> Int32:
    """This thread's first column in a row's `piece`, of as many as blocks share the row."""
    tidx, _, _ = cute.arch.thread_idx()
    vectors = how.vectors if how.by_runs else 1  # of each thread, that are neighbours of those of its block's others
    return Int32((piece * (how.per_row * vectors) + tidx % how.per_row) * how.vec)


def neighbouring(how: RowLaunch | Walk) -> bool:
    """Whether a thread's columns are neighbours."""
    return isinstance(how, RowLaunch) and how.neighbours


def first_neighbour(how: RowLaunch, columns: Int32) -> Int32:
    """The first of this thread's neighbouring columns. All are inside the row: the last threads have the last columns
    of the row, some of which other threads have too."""
    first, last = own_first(how), columns - how.vectors
    return cutlass.select_(first < last, first, last)


def own_first(how: RowLaunch | Walk) -> Int32:
    """The first of the neighbouring columns that no thread before this one has."""
    tidx, _, _ = cute.arch.thread_idx()
    return Int32(tidx % how.per_row * how.vectors)


def step_of(how: RowLaunch | Walk) -> int:
    """The distance from one of a thread's vectors to the next. A block that copies runs has neighbouring columns."""
    if neighbouring(how):
        return 1
    return how.per_row * how.vec * (1 if how.by_runs else how.cluster)


@dataclass(frozen=True)
class Run:
    """The elements of a block's rows in one array: `memory` begins with element `start`, which is the first of a vector."""

    memory: cute.Tensor
    start: Int64
    skip: Int32  # elements of other rows before the block's own
    end: Int32  # where its own end, after `start`; 0 where it has no rows
    vec: int  # elements of 16 bytes

    def place(self, element: Int64) -> Int32:
        """Where an element of the array is in `memory`."""
        return Int32(element - self.start)


def run_of(
    how: RowLaunch, tensor: cute.Tensor | None, rows: Int32, each: Int32, parts: int = 1, half: int | None = None
) -> Run | None:
    """Shared memory to write the block's rows to, of `each` elements, of an array with `rows` of them; `parts` elements make a column.
    None if rows do not come and go this way, or if the array is left out. A long row, or its part `half`, is where its memory begins."""
    run = _run(how, tensor, rows, each, parts, half)
    return run if run is None or how.vec == 1 else replace(run, start=run.start + run.skip)


def fetch(
    how: RowLaunch, tensor: cute.Tensor | None, rows: Int32, each: Int32, parts: int = 1, half: int | None = None
) -> Run | None:
    """Shared memory to read them from, with the copies of the rows started."""
    run = _run(how, tensor, rows, each, parts, half)
    if run is not None:
        own, _, _ = cute.arch.thread_idx()
        _copy_in(tensor, run.memory, run.start, run.end, own, how.threads, run.vec, False, how.vec > 1)
        if how.vec == 1:
            _clear_if(run.end == 0, run.memory, how.threads)
    return run


def halves(
    make: Callable[..., Run | None], how: RowLaunch, tensor: cute.Tensor | None, rows: Int32, each: Int32, parts: int
) -> Run | tuple[Run | None, ...] | None:
    """What `run_of` or `fetch` makes of rows of halves. Each half of a long row is a run of its own, of which each block has a piece."""
    apart = range(parts) if how.vec > 1 else ()
    return tuple(make(how, tensor, rows, each, parts, h) for h in apart) or make(how, tensor, rows, each, parts)


def half_of(run: Run | tuple[Run | None, ...] | None, half: int) -> Run | None:
    """The run that has one of the halves."""
    return run[half] if isinstance(run, tuple) else run


def _run(
    how: RowLaunch, tensor: cute.Tensor | None, rows: Int32, row: Int32, parts: int, half: int | None
) -> Run | None:
    if tensor is None or not how.by_runs:
        return None
    bidx, _, _ = cute.arch.block_idx()
    parts, each = (parts, row) if half is None else (1, row // parts)
    vec = 128 // tensor.element_type.width
    most = how.per_row * how.vectors * how.vec * parts  # elements of a row in this block
    first = Int32(bidx // how.cluster * how.rows_a_block)
    left = cutlass.select_(rows - first < how.rows_a_block, rows - first, Int32(how.rows_a_block))
    begin, count = Int64(first) * row + each * (half or 0), left * each
    if how.cluster > 1:
        chunk = bidx % how.cluster * most
        begin, count = begin + chunk, cutlass.select_(count - chunk < most, count - chunk, Int32(most))
    skip = device.misalignment(begin, vec)
    size = how.rows_a_block * most + 2 * vec
    memory = SmemAllocator().allocate_tensor(tensor.element_type, cute.make_layout((-(-size // vec) * vec,)), 16)
    end = cutlass.select_((left > 0) & (count > 0), skip + count, Int32(0))
    return Run(memory, begin - skip, skip, end, vec)


@cute.jit
def _clear_if(empty: cutlass.Boolean, memory: cute.Tensor, threads: cutlass.Constexpr[int]) -> None:
    """Fill the memory of a block without rows: its threads read zeros."""
    if empty:
        tidx, _, _ = cute.arch.thread_idx()
        for at in cutlass.range(tidx, cute.size(memory), threads):
            memory[at] = memory.element_type(0)


@cute.jit
def _copy_in(
    src: cute.Tensor,
    memory: cute.Tensor,
    start: cutlass.Int64,
    end: cutlass.Int32,
    own: cutlass.Int32,
    threads: cutlass.Constexpr[int],
    vec: cutlass.Constexpr[int],
    kept: cutlass.Constexpr[bool],
    fills: cutlass.Constexpr[bool],
) -> None:
    """Start the copies of the elements from `start` to `start + end`. `threads` threads copy, and this is number `own` of them. `kept`:
    through the L1 cache. `fills`: the rest of the memory gets zeros."""
    left = device.whole_vectors(src, vec) - start  # elements in whole vectors of the array
    whole = Int32(cutlass.select_(left < end, left, Int64(end)))
    modes = cute.nvgpu.cpasync.LoadCacheMode
    mode = modes.ALWAYS if cutlass.const_expr(kept) else modes.GLOBAL
    atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(mode), src.element_type, num_bits_per_copy=128)
    for i in cutlass.range_constexpr(-(-cute.size(memory) // (vec * threads))):
        at = (own + i * threads) * vec
        if at < whole:
            cute.copy(atom, device.vector(src, start + at, vec), device.vector(memory, at, vec))
        elif cutlass.const_expr(fills):
            if (at >= end) & (at + vec <= cute.size(memory)):
                _zero(memory, at, vec)
    if (whole < end) & (end > 0):  # the array's last elements, which fill no vector
        for i in cutlass.range_constexpr(-(-vec // threads)):
            at = whole + own + i * threads
            if at < end:
                memory[at] = (src.iterator + (start + at)).load()
            elif cutlass.const_expr(fills):
                if at < whole + vec:
                    memory[at] = memory.element_type(0)


def _zero(memory: cute.Tensor, at: Int32, count: int) -> None:
    held = cute.make_rmem_tensor((count,), memory.element_type)
    held.fill(0)
    cute.autovec_copy(held, device.vector(memory, at, count))


@cute.jit
def _copy_out(
    memory: cute.Tensor,
    dst: cute.Tensor,
    start: cutlass.Int64,
    skip: cutlass.Int32,
    end: cutlass.Int32,
    own: cutlass.Int32,
    threads: cutlass.Constexpr[int],
    vec: cutlass.Constexpr[int],
) -> None:
    """Write the elements from `start + skip` to `start + end`. `threads` threads write, and this is number `own` of them."""
    for i in cutlass.range_constexpr(-(-cute.size(memory) // (vec * threads))):
        at = (own + i * threads) * vec
        if (at >= skip) & (at + vec <= end):
            held = cute.make_rmem_tensor((vec,), memory.element_type)
            cute.autovec_copy(device.vector(memory, at, vec), held)
            cute.autovec_copy(held, device.vector(dst, start + at, vec))
    # The elements in vectors that are shared with other rows
    last = end - end % vec
    for i in cutlass.range_constexpr(-(-vec // threads)):
        at = own + i * threads
        if at < vec:
            if (skip > 0) & (at >= skip) & (at < end):
                (dst.iterator + (start + at)).store(memory[at])
            if ((last > 0) | (skip == 0)) & (last + at < end):
                (dst.iterator + (start + last + at)).store(memory[last + at])


# Kernels that walk down rows: a run for each row


@dataclass(frozen=True)
class Slots:
    """Shared memory for a thread's row, or for several of them (rows, elements): each begins with the first element of a vector."""

    memory: cute.Tensor
    vec: int  # elements of 16 bytes
    kept: bool  # whether the L1 cache keeps what is read: other rows of the block read it too
    lower: int | Int32 = 0  # rows of the block's run before this one, where they are one run

    def of(self, u: int, start: Int64, length: Int32 | int = 0) -> Run:
        """The run of the u-th row, of `length` elements, which begins at element `start` of the array."""
        start -= self.lower * length
        skip = device.misalignment(start, self.vec)
        memory = cute.make_tensor(
            self.memory.iterator + u * self.memory.stride[0], cute.make_layout((self.memory.shape[1],))
        )
        return Run(memory, start - skip, skip, Int32(0), self.vec)


def slots(how: RowLaunch | Walk, tensor: cute.Tensor | None, rows: int, parts: int = 1) -> Slots | None:
    """Shared memory for so many rows of each thread, of an array with `parts` elements of a column. None if rows are not read and
    written this way, or if the array is left out. A kernel that does not walk has slots for arrays in which several rows share
    one."""
    if tensor is None or not how.by_runs:
        return None
    vec, beside = 128 // tensor.element_type.width, how.threads // how.per_row
    row = how.per_row * how.vectors * how.vec * parts * tensor.element_type.width // 8
    tidx, _, _ = cute.arch.thread_idx()
    number, joined = Int32(tidx // how.per_row), joins(how)
    if joined:
        row, beside = row * beside, 1
    size = slot_bytes(row, how.vec == 1) // 16 * vec
    whole = SmemAllocator().allocate_tensor(tensor.element_type, cute.make_layout((beside * rows * size,)), 16)
    own = whole.iterator if joined else whole.iterator + cute.assume(number * size, divby=vec)
    memory = cute.make_tensor(own, cute.make_layout((rows, size), stride=(beside * size, 1)))
    return Slots(memory, vec, isinstance(how, RowLaunch), number if joined else 0)


def joins(how: RowLaunch | Walk) -> bool:
    """Whether a block's rows are one run, which its threads copy together."""
    return isinstance(how, Walk) and how.joins


def copying(how: RowLaunch | Walk) -> tuple[Int32, int]:
    """The threads that copy a run: this one's number among them, and how many they are."""
    tidx, _, _ = cute.arch.thread_idx()
    return (tidx, how.threads) if joins(how) else (tidx % how.per_row, how.per_row)


def end_of_rows(run: Run, most: Int32, tensor: cute.Tensor) -> Int32:
    """Where a run of a block's rows ends, which has at most so many elements; 0 if the array ends before it."""
    left = device.extent_of(tensor) - run.start
    end = cutlass.select_(left < run.skip + most, left, Int64(run.skip + most))
    return Int32(cutlass.select_(left > run.skip, end, Int64(0)))


def fetch_row(src: cute.Tensor, run: Run, end: Int32, how: RowLaunch | Walk, kept: bool) -> None:
    """Start the copies of a row that ends at `end` of its run; 0 if there is none. Its threads have read what was there. `kept`: by way
    of the L1 cache."""
    meet(how)
    own, threads = copying(how)
    _copy_in(src, run.memory, run.start, end, own, threads, run.vec, kept, how.vec > 1)


def meet(how: RowLaunch | Walk) -> None:
    """Wait for the threads that copy a run."""
    if how.per_row > WARP or joins(how):
        cute.arch.sync_threads()
    else:
        cute.arch.sync_warp()


@cute.jit
def take_row(
    run: Run,
    start: cutlass.Int64,
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    columns: cutlass.Int32,
    dst: cute.Tensor,
    parts: cutlass.Constexpr[int],
) -> None:
    """As `take`, of a row of its own; zeros if there is none."""
    dst.fill(0)
    if first < columns:
        take(run, start, Boolean(True), first, step, columns, dst, parts)


def send_row(run: Run, dst: cute.Tensor, end: Int32, how: RowLaunch | Walk) -> None:
    """Write a row that ends at `end` of its run, once its threads have written theirs to that. A long row is where its memory begins."""
    meet(how)
    own, threads = copying(how)
    start = run.start if how.vec == 1 else run.start + run.skip
    _write(replace(run, start=start, end=end), dst, own, threads, how.vec > 1)


def _write(run: Run, dst: cute.Tensor, own: Int32, threads: int, long: bool) -> None:
    """Write a run to its array. `threads` threads write, and this is number `own` of them. A `long` row begins where its memory does."""
    if long:
        length = cutlass.select_(run.end > 0, run.end - run.skip, Int32(0))
        _shift_out(run.memory, dst, run.start, run.skip, length, own, threads, run.vec)
    else:
        _copy_out(run.memory, dst, run.start, run.skip, run.end, own, threads, run.vec)


def arrive(how: RowLaunch) -> None:
    """Wait until all that was fetched is there."""
    if how.by_runs:
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()


def send(how: RowLaunch, *runs: tuple[Run | tuple[Run | None, ...] | None, cute.Tensor]) -> None:
    """Write the rows to their arrays, once all threads have written theirs to the runs."""
    if how.by_runs:
        cute.arch.sync_threads()
        own, _, _ = cute.arch.thread_idx()
        for found, tensor in runs:
            for run in filter(None, found if isinstance(found, tuple) else (found,)):
                _write(run, tensor, own, how.threads, how.vec > 1)


def take(
    run: Run, start: Int64, there: Boolean, first: Int32, step: int, length: Int32, dst: cute.Tensor, parts: int
) -> None:
    """This thread's columns of a row that begins at element `start` of the array, into dst (vec, vectors) or (parts, vec, vectors) with
    a `vec` of one column. Past the row's end it is the last column again; of a row that is not `there`, those of the block's first
    row."""
    vectors = cute.size(dst) // parts
    to = cute.make_tensor(dst.iterator, cute.make_layout((cute.size(dst),)))
    base = cutlass.select_(there, run.place(start), run.skip)
    own = base + first * parts
    for v in range(vectors):
        at = own + v * step * parts
        if v == vectors - 1 and step > 1:  # neighbouring columns are all inside
            last = base + (length - 1) * parts
            at = cutlass.select_(first + v * step < length, at, last)
        for part in range(parts):
            to[v * parts + part] = run.memory[at + part]


def take_vectors(run: Run, start: Int64, there: Boolean, first: Int32, step: int, dst: cute.Tensor, parts: int) -> None:
    """Load this thread's vectors of a row that is a run of its own, or of a part of it, into dst (vec, vectors) or (parts, vec,
    vectors). The run begins at element `start` of the array. What is past the row's end may have any value."""
    vectors = cute.size(dst, mode=[cute.rank(dst) - 1])
    flat = cute.make_tensor(dst.iterator, cute.make_layout((cute.size(dst) // vectors, vectors)))
    base = cutlass.select_(there, run.place(start), Int32(0))
    _take_shifted(run.memory, base, first * parts, step * parts, flat)


@cute.jit
def _take_shifted(
    memory: cute.Tensor,
    skip: cutlass.Int32,
    first: cutlass.Int32,
    step: cutlass.Constexpr[int],
    dst: cute.Tensor,
) -> None:
    """Load the vectors that begin with elements skip + first, skip + first + step, ... of shared memory into dst (elements,
    vectors). `skip` is equal for all threads, and all else is aligned."""
    count, vectors = cute.size(dst, mode=[0]), cute.size(dst, mode=[1])
    each = _shared_vector(memory, count)
    if cutlass.const_expr(each == 0):
        for v in cutlass.range_constexpr(vectors):
            for i in cutlass.range_constexpr(count):
                dst[i, v] = memory[skip + first + (v * step + i)]
    else:
        shift = device.misalignment(skip, each)
        base = skip - shift + first
        width = memory.element_type.width
        for word in cutlass.range_constexpr(each * width // 32):
            if shift * width // 32 == word:
                for v in cutlass.range_constexpr(vectors):
                    _shifted(memory, base + v * step, shift * width % 32, word, each, dst[None, v])
        access.forget(dst)


def _shared_vector(memory: cute.Tensor, count: int) -> int:
    """The elements of an aligned access of shared memory, of which several make up `count` elements; 0 if no access has
    whole words."""
    each = min(128 // memory.element_type.width, count & -count)
    return each if each * memory.element_type.width % 32 == 0 else 0


def _shifted(memory: cute.Tensor, base: Int32, bits: Int32, word: int, each: int, dst: cute.Tensor) -> None:
    """dst = the elements that begin so many words and bits after element `base` of shared memory, a multiple of `each`. Nothing is read
    past the last vector that has some of them."""
    count, width = cute.size(dst), memory.element_type.width
    held = cute.make_rmem_tensor((each, count // each + 1), memory.element_type)
    for k in range(count // each + 1):
        at = base + k * each
        if k == count // each and word == 0:
            at = cutlass.select_(bits == 0, at - each, at)
        cute.autovec_copy(device.vector(memory, at, each), held[None, k])
    words, to = cute.recast_tensor(held, Uint32), cute.recast_tensor(dst, Uint32)
    for i in range(cute.size(to)):
        if width < 32:
            to[i] = Uint32((Uint64(words[word + i]) | (Uint64(words[word + i + 1]) << 32)) >> Uint64(bits))
        else:
            to[i] = words[word + i]


@cute.jit
def _shift_out(
    memory: cute.Tensor,
    dst: cute.Tensor,
    start: cutlass.Int64,
    skip: cutlass.Int32,
    length: cutlass.Int32,
    own: cutlass.Int32,
    threads: cutlass.Constexpr[int],
    vec: cutlass.Constexpr[int],
) -> None:
    """Write a row of so many elements. The first is the first in `memory`, element `start` of the array, and the `skip`-th of a
    vector there. This is the `own` of so many threads."""
    width = memory.element_type.width
    head = device.misalignment(vec - skip, vec)  # elements before the row's first aligned vector
    for word in cutlass.range_constexpr(vec * width // 32):
        if head * width // 32 == word:
            for i in cutlass.range_constexpr(-(-cute.size(memory) // (vec * threads))):
                at = (own + i * threads) * vec
                if at + head + vec <= length:
                    held = cute.make_rmem_tensor((vec,), memory.element_type)
                    _shifted(memory, at, head * width % 32, word, vec, held)
                    cute.autovec_copy(held, device.vector(dst, start + (at + head), vec))
    # The elements in vectors that are shared with other rows
    left = cutlass.select_(length > head, length - head, Int32(0))
    last = head + (left - left % vec)
    for i in cutlass.range_constexpr(-(-vec // threads)):
        at = own + i * threads
        if (at < head) & (at < length):
            (dst.iterator + (start + at)).store(memory[at])
        if (at < vec) & (last + at < length):
            (dst.iterator + (start + (last + at))).store(memory[last + at])


def load_column(
    src: cute.Tensor, start: Int64, column: Int32, length: Int32, dst: cute.Tensor, parts: int, certain: bool
) -> None:
    """Load one column of a row that all rows share, into dst (1, 1) or (parts, 1, 1). The row begins at element `start`
    of an array. Past the row's end it is the last column. There is no branch, so that the loads of several columns
    overlap."""
    at = column if certain else cutlass.select_(column < length, column, length - 1)
    to = cute.make_tensor(dst.iterator, cute.make_layout((parts,)))
    for part in range(parts):
        to[part] = (src.iterator + (start + Int64(at) * parts + part)).load()


def put(run: Run, start: Int64, src: cute.Tensor, column: Int32, there: Boolean | bool) -> None:
    """One column of a row that begins at element `start` of the array, if it is `there`."""
    count = cute.size(src)
    _put(run.memory, run.place(start) + column * count, src, Boolean(there), there is True)


def put_vector(run: Run, src: cute.Tensor, column: Int32, vec: int) -> None:
    """A vector of `vec` columns of a row that is a run of its own, from this column on."""
    count = cute.size(src)
    held = cute.make_tensor(src.iterator, cute.make_layout((count,)))
    cute.autovec_copy(held, device.vector(run.memory, column * (count // vec), count))


@cute.jit
def _put(
    memory: cute.Tensor,
    at: cutlass.Int32,
    src: cute.Tensor,
    there: cutlass.Boolean,
    certain: cutlass.Constexpr[bool],
) -> None:
    if cutlass.const_expr(certain) or there:
        for part in cutlass.range_constexpr(cute.size(src)):
            memory[at + part] = src[part]
