"""The plan of ops that reduce along axes before the innermost ones and then use the results for each element, in one kernel.

It is the plan of a row kernel with the axes in another order: the axes that are kept make a row's position, and the reduced ones its
elements. Rows may be reduced, too, to one value for each element. A row's elements are not neighbours in memory, but the same
element of neighbouring rows is. So a thread's vectors lie along rows, and each statistic is a vector. A block has all elements of some
rows, in registers or in shared memory. Whether they have room depends on the sizes, so it is decided for each call. Other calls run
the op's stages.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from codegen.errors import Diagnostic, UserError
from codegen.graph.nodes import DTYPES, Leaf, Statement, lost_axes, topological
from codegen.graph.ops import ALONE, SCANS, TAKES
from codegen.plan.access import INT_MAX, Access, Tokens, tokens_of
from codegen.plan.launches import PlannedCall
from codegen.plan.rows.launching import cost
from codegen.plan.rows.launching.walking import RESIDENT, most_parts, registers
from codegen.plan.rows.reducing import Reductions
from codegen.plan.rows.reductions import Reduction
from codegen.shared import WARP, MiddleLaunch
from codegen.spec.spec import Array, Spec
from codegen.targets import REGISTERS_OF_SM

PIECES = (128, 64, 32)  # bytes of neighbouring elements that a block reads of each array: as many as fill all SMs
LEAST_THREADS, THREADS = 128, (256, 512, 1024)  # of a block: at least, and at most, as many as it needs
LEAST_VECTOR = 4  # bytes
# Resident threads, if each holds many values. An H200 took 364 us with 168 registers a thread, 426 us with half as many
# elements a thread, and 495 us with twice as many, whose registers were spilled
CROWDED = 384
# Values of a thread where rows are few: a softmax over 1024 rows took an H200 9.6 us, and 21 with four times as many
FEW_VALUES = 16
MOST_FIXED = 16  # elements of a row that threads always hold
LIGHT = 96  # a block gets more threads rather than that a thread holds more bytes of elements
HEAVY = 192  # bytes of elements that a thread holds at most, if the values computed of them leave room
_allowed: ContextVar[bool] = ContextVar("whether calls of several stages may run as one kernel", default=True)
# Where shared memory holds the rows of a block
STAGED_THREADS = 512  # of the block
NARROW = 64  # with fewer bytes of neighbouring elements, two blocks are resident
AT_A_TIME = (4, 3)  # the elements of a thread in registers: as many as leave the fewest idle
PLACE, PLACES = 2, 20  # registers for the place of an element that a thread has at once; at least for all of them
# Elements of which a thread holds expensive values, at most: norms over 196 rows took an H200 0.58 to 0.81 of the time of computing them
# again, with vectors of four and a warp for each row
MOST_WITH_EXPENSIVE = 32
MOST_ROWS = INT_MAX - 2**16  # the last block may count past the last row


def in_one_kernel() -> bool:
    """Whether calls of ops in stages may run as one kernel."""
    return _allowed.get()


@contextmanager
def in_stages() -> Iterator[None]:
    """A context in which ops in stages run as stages, whatever the sizes, as tests of these kernels need."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


@dataclass(frozen=True)
class Middle(Reduction):
    """The plan of an op that reduces along axes before the innermost ones."""

    @property
    def vector_group(self) -> int:
        """The group along which vectors lie."""
        return self.leading - 1

    def is_wide(self, access: Access) -> bool:
        """Whether each row of a vector has a value of its own in an array."""
        return self.vector_group in access.tokens

    def has_elements(self, access: Access) -> bool:
        """Whether each element of a row has a value of its own in an array."""
        return any(isinstance(t, int) and t >= self.leading for t in access.tokens)

    @functools.cached_property
    def by_runs(self) -> bool:
        return False

    @functools.cached_property
    def full(self) -> tuple[tuple[Array, int], ...]:
        """The arrays that are read or written in vectors for each element of a row, and how many of their elements one access takes."""
        own = (
            a for a in (*self.loads, *self.stores) if a.array is not None and self.is_wide(a) and self.has_elements(a)
        )
        return tuple(dict.fromkeys((a.array, 1) for a in own if a.array is not None))

    def always_fits(self, extents: Mapping[str, int]) -> bool:
        """Whether threads hold all elements of their rows whatever the sizes: these are fixed, and few."""
        along = [axis for group in self.column_groups for axis in group.axes]
        return not self.columns and math.prod(extents.get(axis, MOST_FIXED + 1) for axis in along) <= MOST_FIXED

    def held_bytes(self, vec: int, call: PlannedCall) -> int:
        """The bytes of the registers that hold one element of `vec` rows in all inputs."""
        return sum(max(4, call.size(array) * count) for array, count in self._held(vec).items())

    def _held(self, vec: int) -> dict[Array, int]:
        """The elements of each input that registers hold for one element of `vec` rows."""
        return {a.array: vec if self.is_wide(a) else 1 for a in self.loads if a.array is not None and self.is_held(a)}

    def is_held(self, access: Access) -> bool:
        """Whether registers hold a row's elements of an array."""
        return access.array is not None and self.has_elements(access) and self.of_row(access)

    def launch(self, call: PlannedCall) -> MiddleLaunch:
        """The launch of a call. Raises `UserError` where no block has room for rows, or where sizes are
        not known."""
        inner, columns, rows = call.extents.inner, call.extents.columns, call.extents.rows
        if inner is None or columns is None:
            raise UserError("the sizes are not known")
        if rows is not None and rows > MOST_ROWS:
            raise UserError(f"{rows} rows are more than a kernel's coordinate holds")
        ways = [(threads, piece) for piece in PIECES for threads in THREADS]
        if self.costly:  # some blocks compute while others load
            ways.sort(key=lambda way: way[0])
        tried: list[MiddleLaunch | None] = []
        for part in (1, cost.SQUEEZED):
            if not any(tried):
                tried = [self._in_registers(*way, inner, columns, call, part) for way in ways]
        if not any(tried):
            tried = [self._staged(piece, inner, columns, call) for piece in PIECES]
        fit = [how for how in tried if how is not None]
        if not fit:
            raise UserError(f"no block can hold {columns} elements of neighbouring rows")

        def filling(found: Iterable[MiddleLaunch]) -> MiddleLaunch | None:
            return next((how for how in found if rows is None or -(-rows // how.rows_a_block) >= call.processors), None)

        how = filling(self._with_held(inner, columns, call)) or filling(fit)
        if how is None:
            least = min(fit, key=lambda how: how.rows_a_block)
            how = self._spread(self._narrowed(least, rows or 0, call), columns)
        return self._looping(how, rows, call) if self.columns else how

    def _widths(self, inner: int, call: PlannedCall) -> tuple[int, ...]:
        """The rows of a vector to try: as many as fill it, or fewer that divide the innermost axis. Then half as many,
        since their statistics take fewer registers."""
        widest = self.widest(call)
        own = call.vector(widest)
        own = own if inner % own == 0 else min(own, inner & -inner)
        return (own, own // 2) if own > 1 and own * widest > LEAST_VECTOR else (own,)

    def _needed(self, vec: int, vectors: int, held: int) -> int:
        """An estimate of the registers of a thread that holds so many bytes of elements and of partial results."""
        once = sum(self.is_wide(a) and not self.has_elements(a) for a in self.loads)
        return max(PLACES, PLACE * vectors) + registers((self.alive + len(self.rows) + once) * vec, held)

    def _in_registers(
        self, most: int, piece: int, inner: int, columns: int, call: PlannedCall, part: float
    ) -> MiddleLaunch | None:
        """The launch of blocks of at most so many threads, which read about so many bytes of neighbouring elements; None if registers have
        no room for `part` of the values."""
        tried = (self._of_width(vec, most, piece, inner, columns, call, part) for vec in self._widths(inner, call))
        return next(filter(None, tried), None)

    def _with_held(self, inner: int, columns: int, call: PlannedCall) -> Iterator[MiddleLaunch]:
        """The launches of small blocks whose threads have room for all expensive values. Narrower vectors come before rows of several
        warps, whose threads wait for each other."""
        if not self.most_expensive or self.columns:
            return
        for piece in (piece for piece in PIECES if piece >= NARROW):
            tried = [
                self._of_width(vec, THREADS[0], piece, inner, columns, call, 1) for vec in self._widths(inner, call)
            ]
            found = [how for how in tried if how and self._holds_expensive(how, call)]
            if found:
                yield replace(min(found, key=lambda how: how.per_row > WARP), holds_expensive=True)

    def _holds_expensive(self, how: MiddleLaunch, call: PlannedCall) -> bool:
        """Whether registers have room for a thread's elements, the expensive values of them, and the values of one vector."""
        own = how.vec * how.vectors
        held = how.vectors * self.held_bytes(how.vec, call) / 4 + own * self.most_expensive + how.vec * self.alive
        room = REGISTERS_OF_SM // max(how.threads, RESIDENT)
        return own <= MOST_WITH_EXPENSIVE and cost.SQUEEZED * (cost.OWN_REGISTERS + held) <= room

    def _of_width(
        self, vec: int, most: int, piece: int, inner: int, columns: int, call: PlannedCall, part: float
    ) -> MiddleLaunch | None:
        """As `_in_registers`, for vectors of this width."""
        lanes = _lanes(vec, vec * self.widest(call), piece, inner)
        width, per_row = self.held_bytes(vec, call), 1
        while per_row < columns and per_row * lanes < most:
            vectors = -(-columns // per_row)
            values = cost.registers(vec * vectors, self.alive)
            if vectors * width <= LIGHT and values <= REGISTERS_OF_SM // CROWDED:
                break
            per_row *= 2
        while per_row * lanes < LEAST_THREADS:
            if self.columns and lanes == WARP:  # lanes of a warp reduce its rows
                per_row *= 2
            else:
                lanes *= 2
        threads, vectors = per_row * lanes, -(-columns // per_row) or 1
        room = REGISTERS_OF_SM // max(threads, RESIDENT)
        needed = self._needed(vec, vectors, vectors * (width + 4 * len(self.columns)))
        values = part * cost.registers(vec * vectors, self.alive)
        if vectors * width > HEAVY or needed > room or values > REGISTERS_OF_SM // max(threads, CROWDED):
            return None
        expensive = 0 < vectors * vec * self.most_expensive <= room - needed
        exact = columns == vectors * per_row
        return MiddleLaunch(vec, False, threads, per_row, vectors, 1, True, exact, expensive, only_row=True)

    def _staged(self, piece: int, inner: int, columns: int, call: PlannedCall) -> MiddleLaunch | None:
        """The launch of blocks whose shared memory holds their rows; None if it has no room, or if registers have none for the partial
        results of rows."""
        for vec in self._widths(inner, call):
            lanes = _lanes(vec, vec * self.widest(call), piece, inner)
            per_row = STAGED_THREADS // lanes
            own = -(-columns // per_row)
            vectors = min(AT_A_TIME, key=lambda n: -own % n)
            passes = -(-own // vectors)
            element = sum(call.size(array) * count for array, count in self._held(vec).items())
            meeting = STAGED_THREADS // WARP * lanes * vec * 8 * len(self.rows)
            shared = STAGED_THREADS * passes * vectors * element + meeting
            needed = self._needed(vec, vectors, vectors * (self.held_bytes(vec, call) + 4 * passes * len(self.columns)))
            # An H200 took 91 us for gradients with 32 bytes and one block of an SM, where stages took 80
            room = call.shared_memory // (2 if piece < NARROW else 1)
            if passes > 1 and shared <= room and needed <= REGISTERS_OF_SM // STAGED_THREADS:
                exact = columns == per_row * vectors * passes
                return MiddleLaunch(
                    vec, False, STAGED_THREADS, per_row, vectors, 1, True, exact, False, only_row=True, passes=passes
                )
        return None

    def _narrowed(self, how: MiddleLaunch, rows: int, call: PlannedCall) -> MiddleLaunch:
        """The launch where few rows leave SMs idle, if each thread has all elements of its rows: blocks are smaller, and then vectors are
        narrower."""
        if how.per_row > 1 or how.passes > 1 or self.columns:
            return how
        while how.threads > WARP and rows < how.rows_a_block * call.processors:
            how = replace(how, threads=how.threads // 2)
        while how.vec * self.widest(call) > LEAST_VECTOR and rows < how.rows_a_block * call.processors:
            how = replace(how, vec=how.vec // 2)
        return how

    def _spread(self, how: MiddleLaunch, columns: int) -> MiddleLaunch:
        """The launch where few rows leave SMs idle: blocks have more threads, each with fewer elements, while registers have room."""
        while how.threads < THREADS[-1] and how.vec * how.vectors > FEW_VALUES and how.passes == 1:
            vectors = -(-columns // (2 * how.per_row))
            if cost.registers(how.vec * vectors, self.alive) > REGISTERS_OF_SM // (2 * how.threads):
                break
            how = replace(
                how, threads=2 * how.threads, per_row=2 * how.per_row, vectors=vectors, exact=columns == vectors * 2 * how.per_row,
                holds_expensive=bool(self.expensive),
            )  # fmt: skip
        return how

    def _looping(self, how: MiddleLaunch, rows: int | None, call: PlannedCall) -> MiddleLaunch:
        """The launch of as many blocks as are resident, each of which loops over rows."""
        resident = max(1, RESIDENT // how.threads)
        chunks = 2**31 if rows is None else -(-rows // how.rows_a_block) or 1
        return replace(how, resident=resident, parts=min(chunks, resident * call.processors, most_parts()))

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """Sizes of the innermost axis at which the kernel changes: a vector, and what a warp reads."""
        vec = call.vector(self.widest(call))
        return vec, WARP * vec


def _lanes(vec: int, vector_bytes: int, piece: int, inner: int) -> int:
    """The neighbouring threads that read so many bytes together, at most all of an innermost axis."""
    lanes = 1
    while lanes < WARP and lanes * vector_bytes < piece and lanes * vec < inner:
        lanes *= 2
    return lanes


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Middle:
    """The plan for a checked spec whose reductions are along some axes, before the innermost one, or over all others. Raises
    `SpecError` if no such kernel can compute it."""
    planner = _Middle(spec, statements)
    planner.check()
    return planner.plan()


class _Middle(Reductions):
    """The planner of a kernel that reduces along rows, and perhaps over them, for which the axes along a row are the last ones."""

    holds_rows = True

    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        super().__init__(spec, statements)
        self.innermost = self.axes[-1:]
        some = next((axes for n in self.reduced if self.is_along(axes := lost_axes(n))), ())
        self.kept = tuple(a for a in self.axes if a not in some)
        self.axes = (*self.kept, *some)

    def is_along(self, axes: tuple[str, ...]) -> bool:
        """Whether all reductions are along these axes, before the innermost one, or over all others."""
        kept = tuple(a for a in self.axes if a not in axes)
        return self.innermost == kept[-1:] and all(
            lost_axes(n) == axes or (lost_axes(n) == kept and n.dims == axes) for n in self.reduced
        )

    def refusal(self) -> Diagnostic | None:
        last = self.spec.outputs[-1]
        if self.kept == self.axes:
            return self.error(
                "its reductions are not along axes before the innermost one, or over all others", "", last
            )
        if any(n.op in (*TAKES, *ALONE, *SCANS, "contract", "shift") for n in self.nodes) or self.puts:
            return self.error(
                "a kernel that reduces along middle axes computes only element-wise operations besides", "", last
            )
        if any(id(n) in self.following for n in self.over):
            return self.error(
                "a kernel along middle axes reduces over rows only values that do not follow a maximum", "", last
            )
        over = {id(n) for n in self.over}
        late = [s.value for s in self.written() if id(s.value) in self.reached_by(self.over)]
        if any(isinstance(n.attr, Leaf) for n in topological(late, lambda n: id(n) in over) if id(n) not in over):
            return self.error(
                "a kernel along middle axes combines no array with what it has reduced over rows", "", last
            )
        for array in self.spec.arrays:
            packed = any(DTYPES[d].packed for d in self.spec.dtypes(array))
            if packed or self.is_apart(array):
                return self.error(
                    f"the elements of {array.name!r} along the innermost axis are not single ones", "", array
                )
        return super().refusal()

    def is_apart(self, array: Array) -> bool:
        """Whether the elements of an array along the innermost axis have its parts between them."""
        last = array.dims[-1:]
        if not last or last[0].parts is None:
            return False
        return not last[0].parts_first if last[0].names else set(self.innermost) <= set(array.axes)

    def plan(self) -> Middle:
        groups = self.groups(self.placed, {self.axes[self.place]})
        leading = sum(set(g.axes) <= set(self.kept) for g in groups)
        tokens: dict[str, Tokens] = {a.name: tokens_of(a, groups) for a in self.spec.arrays}

        def mode(own: Tokens) -> str:
            return "flat" if leading - 1 in own else "row"

        return replace(self.planned(Middle, groups, leading, tokens, mode), kind="middle", apart=())
