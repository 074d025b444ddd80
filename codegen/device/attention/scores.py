"""The arguments of a generated function of attention's scores, or of its rows: positions, and loads of the chain's other arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Numeric, Uint32

from codegen.device import access, vectors
from codegen.device import functions as device
from codegen.device.attention import bounds
from codegen.device.attention.bounds import Bounds
from codegen.device.functions import Vector as Values
from codegen.device.math import elementary

HUGE = 2.0**30  # of an exponent: above it, neighbouring numbers are so far apart that a power of their difference is 0


def powers(largest: Float32, base: float) -> tuple[Float32, Float32]:
    """The factor and the term with which scores of a row give exponents to base 2: score * factor + term, rounded once, is
    (score - largest) * base. Where that is huge, the rounding error of `largest * base` is an exponent whose power is infinite or 0. The
    factor is 1 there, so a row whose scores are all -1e30 has equal weights. For infinities the term is 0: exp(-inf - 0) is 0,
    where exp(-inf + inf) is NaN."""
    infinite = (largest == -math.inf) | (largest == math.inf)
    exponent = largest * base
    ordinary = (exponent < HUGE) & (exponent > -HUGE)
    factor = cutlass.select_(ordinary | infinite, Float32(base), Float32(1))
    return factor, cutlass.select_(infinite, Float32(0), cutlass.select_(ordinary, -exponent, -largest))


def floats(integers: Values, steps: Values) -> Values:
    """Floats of integers that are so much after the first: one is converted, and an addition gives each other."""
    return cute.full(steps.shape, Float32(integers[0]), Float32) + steps


def line(integers: Values, steps: Values) -> tuple[Float32, Values]:
    """Floats of integers that are so much after the first, as that one and the differences: see `multiples`."""
    return Float32(integers[0]), steps


def multiples(floats: tuple[Float32, Values], factor: Values) -> Values:
    """The products of a `line` and of one number, each in one instruction."""
    first, steps = floats
    return device.fma(steps, factor, factor * first)


def rising(floats: tuple[Float32, Values], factor: Values | float) -> tuple[Float32, Values, Float32]:
    """The products of a `line` and of one number: the first, the differences, and their factor."""
    first, steps = floats
    each = Float32(factor if isinstance(factor, int | float) else factor[0])
    return first * each, steps, each


def shifted(values: Values, products: tuple[Float32, Values, Float32], sign: float = 1.0) -> tuple[Values, Float32]:
    """The sums, or differences, of values and of `rising` products, less a number that is the same for all, and that number: each in
    one instruction."""
    first, steps, factor = products
    return device.fma(steps, factor * sign, values), first * sign


def whole(found: Values | tuple[Values, Float32]) -> Values:
    """Scores that a function gives, perhaps as `shifted` ones."""
    return found[0] + found[1] if isinstance(found, tuple) else found


def tanh(x: Values, approx: bool, near: bool) -> Values:
    """tanh(x), perhaps of numbers up to `SMALL`."""
    return x * elementary.tanh_small(x) if near and approx else elementary.tanh(x, approx)


@dataclass(frozen=True)
class Scores:
    """Some scores of one row: `columns` has the position of each. The kernel gives a row that there is; columns may lie past the
    last, where loads give the last one's element."""

    batch: tuple[Int32, ...]  # positions along the batch's axes, the innermost first
    row: Int32
    columns: tuple[Int32, ...]
    sizes: tuple[Int32, Int32]  # rows and columns
    page: int = 0  # rows of a page, where columns are the rows of pages
    apart: tuple[int, ...] = ()  # how far columns are after the first, if none is past the last; () where one may be
    neighbours: int = 1  # elements of a row of an array that may be loaded at once
    near: bool = False  # whether the scores' tangents are of numbers up to `SMALL`
    # Gives an element of a row instead of its load: see `weights.of_rows`
    held: Callable[[Callable[[], Numeric]], Numeric] = lambda load: load()

    @property
    def vec(self) -> int:
        return len(self.columns)

    def load_one(
        self,
        src: cute.Tensor | None,
        place: cute.Coord,
        default: float | None = None,
        dtype: type[Numeric] = Float32,
    ) -> cute.Tensor:
        """Registers (vec,) with one element for all scores. `default` stands for an input that is left out."""
        found = access.registers(src, (self.vec,), default, dtype)
        if src is not None:
            found.fill(self.held(lambda: src[place]))
        return found

    def gather(
        self,
        src: cute.Tensor | None,
        place: Callable[..., cute.Coord],
        default: float | None = None,
        dtype: type[Numeric] = Float32,
        indexed: bool = False,
    ) -> cute.Tensor:
        """Registers (vec,) with the elements at the places of the scores' columns, or of their pages and rows within these. Where an
        array has the places, these are `indexed`: their distances are not those of the columns."""
        found = access.registers(src, (self.vec,), default, dtype)
        if src is not None and self.apart and not indexed:
            first, zero, one = (cute.crd2idx(place(n), src.layout) for n in (self.columns[0], Int32(0), Int32(1)))
            if self.neighbours > 1 and place(self.columns[0])[-1] is self.columns[0] and src.stride[-1] == 1:
                self._load_neighbours(src.iterator + first, found)
            else:
                for i, distance in enumerate(self.apart):
                    found[i] = cute.make_tensor(src.iterator + first + distance * (one - zero), cute.make_layout(1))[0]
        elif src is not None and not (indexed or self.page):
            first, one = (cute.crd2idx(place(n), src.layout) for n in (Int32(0), Int32(1)))
            for i, column in enumerate(self.columns):
                there = cutlass.min(column, self.sizes[1] - 1)
                found[i] = cute.make_tensor(src.iterator + first + there * (one - first), cute.make_layout(1))[0]
        elif src is not None:
            for i, column in enumerate(self.columns):
                there = cutlass.min(column, self.sizes[1] - 1)
                found[i] = src[place(*((there // self.page, there % self.page) if self.page else (there,)))]
        return found

    def _load_neighbours(self, line: cute.Pointer, found: cute.Tensor) -> None:
        """Load elements of a row, from the first column's. Of 16 bits, each of the row's four lanes loads eight neighbours, and they
        exchange pairs."""
        width, lane = found.element_type.width, cute.arch.lane_idx()
        whole = self.vec // 8 * 8 if self.neighbours == 8 and width == 16 else 0
        for i in range(0, whole, 8):
            held = cute.make_rmem_tensor((8,), found.element_type)
            place = (line + self.apart[i] + 6 * (lane % 4)).align(16)
            cute.autovec_copy(cute.make_tensor(place, cute.make_layout(8)), held)
            words = cute.recast_tensor(cute.make_tensor(found.iterator + i, cute.make_layout(8)), Uint32)
            for n, word in enumerate(vectors.exchanged(cute.recast_tensor(held, Uint32))):
                words[n] = word
        for i in range(whole, self.vec, 2):
            pair = cute.make_tensor((line + self.apart[i]).align(width // 4), cute.make_layout(2))
            cute.autovec_copy(pair, cute.make_tensor(found.iterator + i, cute.make_layout(2)))

    def positions(self) -> cute.Tensor:
        """Registers (vec,) with the columns."""
        return self._listed(self.columns)

    def steps(self) -> Values:
        """How far the columns are after the first, which the compiler knows where they have constant distances."""
        found = cute.make_rmem_tensor((self.vec,), Float32)
        for i, column in enumerate(self.columns):
            found[i] = Float32(column - self.columns[0])
        return found.load()

    def pages(self) -> cute.Tensor:
        """Registers (vec,) with the columns' pages."""
        return self._listed([column // self.page for column in self.columns])

    def offsets(self) -> cute.Tensor:
        """Registers (vec,) with the columns' rows within their pages."""
        return self._listed([column % self.page for column in self.columns])

    def _listed(self, numbers: Sequence[Int32]) -> cute.Tensor:
        found = cute.make_rmem_tensor((self.vec,), Int32)
        for i, number in enumerate(numbers):
            found[i] = number
        return found

    def fill(self, number: Int32) -> cute.Tensor:
        """Registers (vec,) with one number."""
        found = cute.make_rmem_tensor((self.vec,), Int32)
        found.fill(number)
        return found


@dataclass(frozen=True)
class Table:
    """Bounds of a mask's arrays over blocks of rows, and after these of columns. `writes` is the block whose bounds this warp lists."""

    words: cute.Tensor  # (2, blocks, arrays, batch)
    spans: tuple[int, int]  # rows and columns of a block
    writes: Int32 | None = None
    arrays: dict[int, int] = field(default_factory=dict)  # the number of an array, by its identity


@dataclass(frozen=True)
class Tile:
    """A tile of scores: the first and the last of its rows, and of its columns."""

    batch: tuple[Int32, ...]
    rows: tuple[Int32, Int32]
    columns: tuple[Int32, Int32]
    sizes: tuple[Int32, Int32]
    apart: bool = False  # whether each lane of a warp has a tile of its own; else all have the same
    page: int = 0  # rows of a page, where columns are the rows of pages
    table: Table | None = None

    @property
    def pages(self) -> Bounds:
        """The bounds of the columns' pages."""
        return bounds.floordiv(self.columns, self.page)

    @property
    def offsets(self) -> Bounds:
        """The bounds of the columns' rows within their pages."""
        return bounds.mod(self.columns, self.page)

    def over(self, src: cute.Tensor, place: Callable[[Int32], cute.Coord], positions: Bounds) -> Bounds:
        """The bounds of an array's elements at consecutive positions."""
        if self.table is not None and src.element_type.width <= 32:
            return self.listed(self.table, src, place, positions)
        return (bounds.alone if self.apart else bounds.over)(src, place, positions)

    def listed(self, table: Table, src: cute.Tensor, place: Callable[[Int32], cute.Coord], positions: Bounds) -> Bounds:
        """The bounds from a table; or, to list them, of its block."""
        which = 0 if positions is self.rows else 1
        each, first = table.spans[which], which * cute.ceil_div(self.sizes[0], table.spans[0])
        words = table.words[None, None, table.arrays.setdefault(id(src), len(table.arrays)), self.batch]
        if table.writes is None:
            return bounds.listed(words, first + positions[0] // each, first + positions[1] // each, src.element_type)
        found = bounds.over(src, place, positions)
        bounds.put(words, first + table.writes, found, table.writes * each < self.sizes[which])
        return found


@dataclass(frozen=True)
class Row:
    """One row. The thread that stores its results is `there`."""

    batch: tuple[Int32, ...]
    row: Int32
    sizes: tuple[Int32, Int32]
    there: Boolean
    vec: int = 1
    page: int = 0  # rows of a page, where columns are the rows of pages

    def load_one(
        self,
        src: cute.Tensor | None,
        place: cute.Coord,
        default: float | None = None,
        dtype: type[Numeric] = Float32,
    ) -> cute.Tensor:
        """Registers (1,) with an element. `default` stands for an input that is left out."""
        found = access.registers(src, (1,), default, dtype)
        if src is not None:
            found[0] = src[place]
        return found

    def fill(self, number: Int32) -> cute.Tensor:
        """Registers (1,) with a number."""
        found = cute.make_rmem_tensor((1,), Int32)
        found.fill(number)
        return found

    def store(self, value: Values, dst: cute.Tensor, place: cute.Coord) -> None:
        """A value (1,) to a place."""
        _store(access.registers_of(value, dst, 1), dst, place, self.there)


@cute.jit
def _store(src: cute.Tensor, dst: cute.Tensor, place: tuple, there: cutlass.Boolean) -> None:
    if there:
        dst[place] = src[0]
