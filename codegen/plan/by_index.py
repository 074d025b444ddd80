"""How sums by index are computed: the gradient of a table that `take` reads is, in each row, the sum of what was taken from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from codegen.graph.nodes import DTYPES
from codegen.shared import SumLaunch

THREADS = 256  # of a block
WIDEST = 16  # bytes of a load or a store
FEW_ROWS = 1024  # of these, each thread reads all keys
FEW_READS = 10**8  # where all threads together read that many at most
CHUNK = 64  # neighbouring rows that are summed before, if they have one key
MOST_IN_A_ROW = 256  # partial results that a thread may add one after the other
MOST_VECTORS = 2**31 - 2**12  # that threads can count
PACKED = 2**32  # a key and a row's number are one number of 32 bits below this
RANKED = 16384  # rows that are compared with each other to sort them


@dataclass(frozen=True)
class Sums:
    """The sizes and dtypes of a call: `values` (outer, rows, columns) are summed to (outer, keys, columns). A size is None where it is
    not known when the call is compiled."""

    outer: int | None
    rows: int | None
    columns: int | None
    keys: int | None
    dtype: str  # of the values
    result: str

    @property
    def compute(self) -> str:
        """The dtype in which rows are summed."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def bits(self) -> int:
        """The bits of a row's number."""
        return max(1, ((self.rows or 1) - 1).bit_length())

    def packs(self, numbers: int = PACKED) -> bool:
        """Whether a key and a row's number fit one of so many numbers: the order is then that of these numbers."""
        return self.rows is not None and self.keys is not None and (self.keys + 1) << self.bits <= numbers

    def launch(self) -> SumLaunch | None:
        """The kernels' launch, or None where no kernel takes such a call."""
        vec = self._vec()
        if self.outer is None or self.rows is None or self.columns is None or self.keys is None:
            return SumLaunch(vec, False, THREADS, is_sorted=True, levels=2, chunk=CHUNK)
        vectors = self.outer * self.columns // vec
        if vectors * max(self.keys, self.rows) > MOST_VECTORS or max(self.keys, self.rows) >= MOST_VECTORS:
            return None
        at_once = 8 if vec * DTYPES[self.dtype].size <= WIDEST else 4
        if self.rows <= FEW_ROWS and vectors * self.keys * self.rows <= FEW_READS:
            return SumLaunch(vec, False, THREADS, at_once=at_once)
        levels, left = 0, self.rows
        while left > MOST_IN_A_ROW:
            levels, left = levels + 1, left // CHUNK
        bits = self.bits if self.rows <= RANKED and self.packs(PACKED // 2) else 0
        return SumLaunch(vec, False, THREADS, 0, True, bits, levels, CHUNK, at_once=at_once)

    def _vec(self) -> int:
        """The columns of a thread: a whole vector of the narrower array, if that divides the columns."""
        if self.columns is None:
            return 1
        return math.gcd(self.columns, WIDEST // min(DTYPES[self.dtype].size, DTYPES[self.result].size))
