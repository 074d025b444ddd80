"""How sums by index are computed: the gradient of a table that `take` reads is, in each row, the sum of what was taken from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from codegen.graph.nodes import DTYPES
from codegen.shared import WARP, SumLaunch, TallyLaunch

THREADS = 256  # of a block
WIDEST = 16  # bytes of a load or a store
CHUNK = 16  # neighbouring rows that are summed before, if they have one key
STEPS = 4  # vectors of a thread, one after the other: a GPU starts no more than some 390 blocks in a microsecond
BUSY = 2**18  # threads that keep a GPU busy
MOST_IN_A_ROW = 64  # chunks that a thread may add one after the other
MOST_BLOCKS = 2**31 - 1  # of a kernel
PACKED = 2**32  # a key and a row's number are one number of 32 bits below this
RANKED = 8192  # rows that are compared with each other to sort them
TABLES = 96 * 1024  # bytes of shared memory for a block's tables of sums
TALLIED = 8  # columns of rows that are added to tables, at most
WARPS, LEAST_WARPS = 16, 8  # of a block with tables: at most; and where they can have tables each
VALUES = 4  # that a thread adds to its table together
PARTS = 264  # blocks that add to tables: two for each SM of an H200
ALONE = 4  # times that a block without others reads rows
MOST_TALLIED, MOST_OUTER = 2**30, 2**16  # rows that are added to tables, and outer rows

# Measured on an H200, in microseconds and bytes per microsecond: XLA's sort of many rows, and the time for each further row; a
# comparison of two rows; a kernel's start; memory read or written. Then of XLA's scatter: what it adds with atomics, what it adds
# where many rows have one key, and single elements that it adds
SORT, SORTED, COMPARED, START = 38.0, 2.7e-5, 1.5e-7, 1.5
MEMORY, SCATTERED, CONTENDED, SINGLE = 3.6e6, 1.7e6, 0.6e6, 11e3
TURN, ROUND = 0.035, 0.06  # of a warp with tables: the lanes of one turn add their values; what precedes the turns
OFTEN = 1024  # rows of each key, on average, from which on atomics wait for each other


@dataclass(frozen=True)
class Sums:
    """The sizes and dtypes of a call: rows of so many columns are summed to (outer, keys, columns). A size is None where it is not known
    when the call is compiled."""

    outer: int | None
    rows: int | None
    columns: int | None
    keys: int | None
    dtype: str  # of the values
    result: str
    alike: int = 1  # neighbouring keys of the same row of values

    @classmethod
    def of(cls, count: object, values: Sequence[object], dtype: str, keys: object, result: str) -> Sums:
        """Of so many keys and of values with a shape (outer, rows, columns)."""
        outer, rows, columns, every, own = (n if isinstance(n, int) else None for n in (*values, count, keys))
        return cls(outer, every, columns, own, dtype, result, every // rows if every and rows else 1)

    @property
    def compute(self) -> str:
        """The dtype in which rows are summed."""
        return "float64" if self.dtype == "float64" else "float32"

    def packs(self, numbers: int = PACKED) -> bool:
        """Whether a key and a row's number fit into one number, so that sorting these numbers sorts the rows by key."""
        return self.rows is not None and self.keys is not None and (self.keys + 1) * self.rows < numbers

    def launch(self) -> SumLaunch | TallyLaunch | None:
        """The kernels' launch, or None where no kernel takes such a call."""
        ways = [how for how in (self.tally(), self.in_order()) if how is not None]
        return min(ways, key=self._time) if len(ways) > 1 else next(iter(ways), None)

    def tally(self) -> TallyLaunch | None:
        """The launch of kernels with tables of sums in shared memory, or None where the tables have no room there."""
        outer, rows, columns, keys = self.outer, self.rows, self.columns, self.keys
        if outer is None or rows is None or columns is None or keys is None:
            return None
        if not 0 < columns <= TALLIED or not keys or not 0 < outer < MOST_OUTER or not 0 < rows < MOST_TALLIED:
            return None
        room = TABLES // ((keys + 1) * columns * DTYPES[self.compute].size)
        if not room:
            return None
        copies = WARP
        while copies > 1 and room < copies * LEAST_WARPS:
            copies //= 2
        threads = WARP * min(WARPS, room // copies)
        how = TallyLaunch(VALUES, False, threads, keys=keys, columns=columns, alike=self.alike, copies=copies)
        if rows * outer < PARTS * threads * how.vec * how.at_once:
            how = replace(how, at_once=1)  # more blocks have something to do
        rounds = -(-rows // (threads * how.vec * how.at_once))
        return how if rounds <= ALONE else replace(how, parts=min(max(1, PARTS // outer), rounds))

    @property
    def tallied(self) -> bool:
        """Whether kernels with tables of sums are the fastest."""
        return isinstance(self.launch(), TallyLaunch)

    def in_order(self) -> SumLaunch | None:
        """The launch of kernels that read the rows in the order of their keys, or None where there are too many."""
        value, result = DTYPES[self.dtype].size, DTYPES[self.result].size
        vec, chunk_vec = self._vec(min(value, result)), self._vec(value)
        chunk_across = self._across(chunk_vec)
        if self.outer is None or self.rows is None or self.columns is None or self.keys is None:
            how = SumLaunch(vec, False, THREADS, self._across(vec), levels=2, chunk=CHUNK)
            return replace(how, chunk_vec=chunk_vec, chunk_across=chunk_across)
        sums = self.outer * self.keys * self.columns
        vec = vec if sums >= BUSY * vec else chunk_vec
        steps = STEPS if sums >= BUSY * vec * STEPS else 1
        wide = self.outer * self.columns // min(vec, chunk_vec) * max(self.keys, self.rows) // THREADS
        if max(wide, self.keys, self.rows) >= MOST_BLOCKS:
            return None
        levels, left = 0, self.rows
        while left > MOST_IN_A_ROW:
            levels, left = levels + 1, left // CHUNK
        ranks = self.rows <= RANKED and self.packs(PACKED // 2)
        across = self._across(vec)
        how = SumLaunch(vec, False, THREADS, across, ranks=ranks, levels=levels, chunk=CHUNK, steps=steps)
        return replace(how, chunk_vec=chunk_vec, chunk_across=chunk_across)

    def left_to_xla(self) -> str:
        """Why XLA's scatter should take less time than the kernels, or "". Where a size is unknown, it counts as large."""
        how = self.launch()
        if how is None:
            return "too many rows for a kernel"
        if self.outer is None or self.rows is None or self.columns is None or self.keys is None:
            return ""
        sums = self.outer * self.keys * self.columns
        values = self.outer * self.rows * self.columns * DTYPES[self.dtype].size
        ours = self._time(how)
        often = self.rows > OFTEN * self.keys
        added = values / (CONTENDED if often else SCATTERED)
        if self.columns < WARP // 4:
            added = max(added, self.outer * self.rows * self.columns / SINGLE)
        filled, result = sums * DTYPES[self.compute].size, sums * DTYPES[self.result].size
        scatter = 2 * START + filled / MEMORY + added
        if self.result != self.compute:
            scatter += START + (filled + result) / MEMORY
        return f"{scatter:.0f} us, the kernels {ours:.0f} us" if scatter < ours else ""

    def _time(self, how: SumLaunch | TallyLaunch) -> float:
        """The microseconds that kernels with such a launch should take. Unknown sizes count as large."""
        if self.outer is None or self.rows is None or self.columns is None or self.keys is None:
            return math.inf
        read = self.outer * self.rows * self.columns * DTYPES[self.dtype].size
        if isinstance(how, TallyLaunch):
            rounds = -(-self.outer * self.rows // (how.threads * how.vec * max(self.outer * how.parts, PARTS)))
            if how.parts * self.outer < PARTS:
                rounds = -(-self.rows // (how.threads * how.vec * how.parts))
            turns = WARP // how.copies * self.columns
            moved = (read + self.outer * self.rows * 4) / MEMORY
            return (1 + (how.parts > 1)) * 2 * START + max(moved, rounds * (turns * TURN + ROUND))
        order = START + COMPARED * self.rows**2 if how.ranks else SORT + SORTED * self.rows
        written = self.outer * self.keys * self.columns * DTYPES[self.result].size
        return order + (2 + how.levels) * 2 * START + (read + written) / MEMORY

    def _vec(self, size: int) -> int:
        """The columns of a thread: a whole vector of elements of so many bytes, if that divides the columns."""
        return 1 if self.columns is None else math.gcd(self.columns, WIDEST // size)

    def _across(self, vec: int) -> int:
        """The threads of a block along the columns, a power of two: a warp or more where all of them have columns."""
        vectors = THREADS if self.columns is None else max(1, self.columns // vec)
        whole = math.gcd(vectors, THREADS)
        return whole if whole >= WARP else min(THREADS, 2 ** (vectors - 1).bit_length())
