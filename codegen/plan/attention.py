"""The plan of attention: a product, a function of its rows along an axis that a second product contracts, and that product.

    s = q @ k                       the first product, over D
    t = f(s, ...)                   the scores: any element-wise chain
    p = exp(t - m) * g(row)         the weights: a softmax along S, or another function of sum(exp(t)) and max(t); or just t, perhaps
                                    times a function of sum(t). Exponentials may have factors along S, and be 0 outside a
                                    condition, as where they are dropped
    o = p @ v                       the second product, over S

The kernel never writes s, t or p. It walks over tiles of k and v. For each row it keeps the maximum `top` of the scores so far, and
the sums `total` = sum(exp(t - top)) and sum(exp(t - top) * v), which it rescales where `top` rises. In the end the row's function
gives the factor of o, and the outputs of one value a row, such as the logsumexp (Dao et al., arXiv:2205.14135).

k and v may lie in pages, `take(k, pages, axis=P)` with k: T[P, R, ...] and pages: int32[..., N]. Then S is N x R, and the kernel
reads each row where its page is (Kwon et al., arXiv:2309.06180).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from codegen.errors import UserError
from codegen.graph.nodes import Node, Statement, topological
from codegen.plan.access import Access, Extent, Group, Unreduced, View
from codegen.plan.elementwise import Elementwise
from codegen.plan.gemms.tiles import Product
from codegen.plan.launches import PlannedCall
from codegen.plan.scales import Bend, Scale
from codegen.shared import HELD, LEAST_COLUMNS, AttentionLaunch
from codegen.spec.spec import Array, Spec
from codegen.targets import has_wgmma

HEADS = 256  # the longest rows of q, k and v
SMS = 132  # of an H100
MOST_AXES = 3  # of the batch: TMA's boxes have five
FEW = 16  # rows of q of a sequence, up to which blocks share columns, and rows of all heads a tile
RESIDENT = 4  # small blocks of an SM
MOST_SPLITS = 64  # blocks of a row
UNEVEN = 4  # times as many where sequences have masks of their own: those that see little leave most of their blocks without work
BARRIERS = 256  # bytes in shared memory
SHARED, REGISTERS = 227 << 10, 192  # on Hopper: the bytes of a block; of a thread for a tile, of 240
NARROW = ("float16", "bfloat16")  # the types that products multiply
WRITTEN = (*NARROW, "float32")  # the types of their result
SHARED_ANYWHERE, BESIDE = 99 << 10, 55  # elsewhere: the bytes of a block; a thread's registers besides its tile's
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
BYTES = (*FLOAT8, "int8")  # types that the kernel converts to one of these, exactly


@dataclass(frozen=True)
class Part:
    """A part of the chain as an element-wise spec, and its plan. It is `called` by what it gives, such as scores."""

    called: str
    spec: Spec
    statements: tuple[Statement, ...]
    plan: Elementwise


@dataclass(frozen=True)
class Pages:
    """Where the rows of k or v are in memory: at the indices along `axis` of `table` that `index` gives."""

    table: Array
    index: Array
    axis: str

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of what is taken."""
        place = self.table.axes.index(self.axis)
        return *self.table.axes[:place], *self.index.axes, *self.table.axes[place + 1 :]


@dataclass(frozen=True)
class AttentionPlan(Unreduced):
    """The part that the plans of attention and of its backward share. `groups`, `views`, `loads` and `stores` reach the op's
    arrays, each axis by itself."""

    products: tuple[Product, ...]
    contracted: str  # D, the axis of the first product
    batch: tuple[str, ...]  # the axes of q besides its rows and D, which k and v may lack
    row: str  # Q
    keys: tuple[str, ...]  # S, or N and R: the pages of a sequence, and the rows of a page
    value: str  # E, the last axis of v
    scores: Part
    condition: Node | None  # the mask, in the graph of `scores`
    groups: tuple[Group, ...]
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    extremes: tuple[Node, ...]
    kind: ClassVar[str] = "attention"
    collapsed: ClassVar[bool] = False

    @property
    def kernels(self) -> int:
        raise NotImplementedError

    @property
    def between(self) -> tuple[str, ...]:
        return "parts", "table"

    @property
    def vectors(self) -> tuple[Array, ...]:
        """The arrays of which each row must be whole vectors."""
        raise NotImplementedError

    @property
    def column(self) -> str:
        """The axis S, if the columns are one axis."""
        (axis,) = self.keys
        return axis

    @property
    def whole(self) -> frozenset[str]:
        """The axes of which each device needs all elements."""
        return frozenset({self.contracted, *self.keys, self.value})

    @property
    def order(self) -> tuple[str, ...]:
        """Every axis, in the order of the jnp form's operands."""
        return tuple(axis for group in self.groups for axis in group.axes)

    def view(self, name: str) -> View:
        return next(v for v in self.views if v.array.name == name)

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """The sizes of rows and columns at which the kernel changes its method: a tile."""
        del call
        return (64,)

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        return tuple((a, 1) for a in self.vectors)

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """The number of rows of scores, and the number of scores of a row."""
        return extent((*self.batch, self.row)), extent(self.keys)

    def launch(self, call: PlannedCall) -> AttentionLaunch:
        """The launch of a call; rows of q have `columns` elements, those of v `inner`. Raises
        `UserError` if there is none."""
        extents = call.extents
        self.check_types(call.dtypes)
        d, e = (128, 128) if extents.columns is None else (extents.columns, extents.inner or 128)
        for axis, size in ((self.contracted, d), (self.value, e)):
            if not fits_heads(size):
                raise UserError(f"{axis} is {size}, and attention has kernels for multiples of 8 up to {HEADS}")
        few = self.of_few_rows(d, e, call)
        hopper = has_wgmma(call.arch) and not d % 16 and not e % 16 and len(self.batch) <= MOST_AXES
        found = few or (self.on_hopper(d, e) if hopper else None) or self.anywhere(d, e)
        columns = extents.total if self.reads_columns and extents.total is not None else 1
        neighbours = next(n for n in (8, 2, 1) if columns % n == 0)
        return replace(found, listed=self.listed, neighbours=neighbours) if found.processors else found

    @property
    def masking(self) -> list[Node]:
        """The nodes of the mask's condition."""
        return [*topological([self.condition])] if self.condition is not None else []

    @property
    def listed(self) -> int:
        """The number of the mask's arrays of integers that have either rows or columns."""
        along = {self.row, *self.keys}
        return sum(n.op == "input" and n.kind == "int" and len(along & {*n.dims}) == 1 for n in self.masking)

    def check_types(self, dtypes: Mapping[str, str]) -> None:
        """Raise `UserError` if kernels do not take these types."""
        for array in self.vectors:
            if (dtype := dtypes[array.name]) not in NARROW:
                raise UserError(f"{array.name!r} is {dtype}, and attention has kernels for {' and '.join(NARROW)}")

    def of_few_rows(self, d: int, e: int, call: PlannedCall) -> AttentionLaunch | None:
        """The launch where rows are so few that their tiles would leave SMs idle, or would be mostly empty; None if
        there are more rows."""
        del d, e, call
        return None

    @property
    def shared(self) -> tuple[str, ...]:
        """The axes of the batch whose elements share rows of k and v."""
        return ()

    def on_hopper(self, d: int, e: int) -> AttentionLaunch | None:
        """The launch of the main loop for Hopper; None if heads have too many elements for it."""
        raise NotImplementedError

    def anywhere(self, d: int, e: int) -> AttentionLaunch:
        """The launch of the main loop for all architectures."""
        raise NotImplementedError

    def unfit(self, how: AttentionLaunch) -> str:
        """Why a launch could not run; "" if no reason is known."""
        raise NotImplementedError

    @property
    def reads_columns(self) -> bool:
        """Whether the scores read an array for each column."""
        return any({*self.keys} & {*a.axes} for a in self.scores.spec.inputs[1:])


@dataclass(frozen=True)
class Attention(AttentionPlan):
    """The plan of attention. Its products are q @ k, and the weights @ v."""

    o: Array
    scale: Scale  # by which the kernel multiplies what the part `scores` gives, when it takes its exponential
    bend: Bend | None  # the scores where the mask holds, if they are tangents
    unmasked: Part | None  # the scores where the mask holds everywhere; None without a mask
    rows_part: Part | None  # the function of rows; None for weights without one
    exponential: bool  # whether the weights are exponentials of scores; else they are the scores
    weight: Part | None  # the weights from the exponentials, as of dropout; None where they are the same
    pages: tuple[Pages, ...]  # of k and of v; () where they have their rows in order
    tops: bool  # whether an output depends on a row's largest score

    @property
    def kernels(self) -> int:
        return 1

    @property
    def q(self) -> Array:
        return self.products[0].a

    @property
    def k(self) -> Array:
        return self.products[0].b

    @property
    def v(self) -> Array:
        return self.products[1].b

    @property
    def factors(self) -> tuple[Array, Array, Array]:
        return self.q, self.k, self.v

    @property
    def vectors(self) -> tuple[Array, ...]:
        return *self.factors, self.o

    def launch(self, call: PlannedCall) -> AttentionLaunch:
        found = self.converting(super().launch(call), call.dtypes)
        if len(self.keys) == 1:
            return found
        if call.extents.page is None:
            raise UserError(
                f"{self.keys[1]} is symbolic, and attention has kernels for a known number of a page's rows"
            )
        return replace(found, page=call.extents.page)

    def converting(self, how: AttentionLaunch, dtypes: Mapping[str, str]) -> AttentionLaunch:
        """The launch where factors have elements of a byte. Hopper's tensor cores read tiles from shared memory: they multiply q and k
        of one float8 type, but not v, along whose rows they contract. What they do not multiply is converted before."""
        of_bytes = {a.name for a in self.factors if dtypes[a.name] in BYTES}
        if not of_bytes:
            return how
        pair = {self.q.name, self.k.name}
        types = {dtypes[name] for name in pair}
        direct = types <= {*FLOAT8} and len(types) == 1 and how.d % 32 == 0 and self.v.name not in pair
        before = of_bytes - (pair if direct else set()) if how.processors else set[str]()
        return replace(how, converts=self.multiplied(dtypes), converted=tuple(sorted(before)))

    def multiplied(self, dtypes: Mapping[str, str]) -> str:
        """The type of the weights, and of the other factors that the products have in registers."""
        own = self.products[1].a.dtype
        return next((dtypes[v.array.name] for v in self.views if v.array.dtype == own), own)

    def check_types(self, dtypes: Mapping[str, str]) -> None:
        """q, k and v are of the products' type, or of a byte; o is of a 16-bit type, or float32."""
        own = self.multiplied(dtypes)
        taken = own, *BYTES
        if own not in NARROW:
            raise UserError(f"the weights are {own}, and attention has kernels for {' and '.join(NARROW)}")
        for array in self.factors:
            if (dtype := dtypes[array.name]) not in taken:
                raise UserError(f"{array.name!r} is {dtype}, and here attention has kernels for {', '.join(taken)}")
        if (dtype := dtypes[self.o.name]) not in WRITTEN:
            raise UserError(f"{self.o.name!r} is {dtype}, and attention has kernels for {', '.join(WRITTEN)}")

    def axes_of(self, factor: Array) -> tuple[str, ...]:
        """The axes of q, k or v as it is multiplied."""
        return next((p.axes for p in self.pages if p.table == factor), factor.axes)

    def on_hopper(self, d: int, e: int) -> AttentionLaunch | None:
        if self.pages:
            return None
        columns = self._hopper_columns(d, e)
        return AttentionLaunch(
            128, columns, d, e, warps=12, stages=2, processors=SMS, early=self.is_early, tops=self.tops
        )

    @property
    def is_early(self) -> bool:
        """Whether Hopper's main loop weighs a tile before it knows its largest scores. A soft cap took 2 % longer so."""
        return self.exponential and self.rows_part is not None and self.weight is None and self.bend is None

    def anywhere(self, d: int, e: int) -> AttentionLaunch:
        large = max(d, e) > 128
        return AttentionLaunch(64, 32 if large else 64, d, e, warps=4, stages=1 if large else 2)

    @property
    def shared(self) -> tuple[str, ...]:
        return tuple(a for a in self.batch if a not in {*self.axes_of(self.k), *self.axes_of(self.v)})

    @property
    def packs(self) -> bool:
        """Whether a block may have rows of all elements of the batch that share k and v. It may if the mask is the same
        for them, and v lacks the axes that k lacks."""
        lacking = [[a for a in self.batch if a not in self.axes_of(x)] for x in (self.k, self.v)]
        masked = {a for n in self.masking for a in n.dims}
        return lacking[0] == lacking[1] and not {*self.shared} & masked

    def of_few_rows(self, d: int, e: int, call: PlannedCall) -> AttentionLaunch | None:
        """The launch for decoding: one or a few rows of q in each sequence, and many of k. Memory bandwidth is the
        limit. So k and v are read once for all rows that share them, by enough blocks to keep every SM busy."""
        extents = call.extents
        rows, columns, batch, shared = extents.rows, extents.total, extents.apart, extents.turned
        if None in (rows, columns, batch, shared) or rows is None or not 0 < rows <= FEW:
            return None
        assert columns is not None and batch is not None and shared is not None
        own, packed = self.anywhere(d, e), self.packs and shared > 1
        count = rows * (shared if packed else 1)
        tile = next(m for m in (16, 32, 64) if m >= count or m == 64)
        blocks = -(-count // tile) * (batch // shared if packed else batch)
        resident = call.processors * RESIDENT * (UNEVEN if self.is_uneven else 1)
        wanted = -(-resident // max(blocks, 1))
        wanted = min(wanted, columns // LEAST_COLUMNS)
        splits = 1 << max(0, min(wanted, MOST_SPLITS)).bit_length() >> 1
        if not packed and splits <= 1:
            return None
        bounded = splits > 1 and self.is_cheap
        return replace(own, tile_m=tile, warps=tile // 16, splits=max(splits, 1), bounded=bounded, packed=packed)

    @property
    def is_cheap(self) -> bool:
        """Whether there is a mask, and bounds of it need no array of columns: a warp finds them for all tiles of a row."""
        reads = any(n.op == "input" and {*self.keys} & {*n.dims} for n in self.masking)
        return self.condition is not None and not reads

    @property
    def is_uneven(self) -> bool:
        """Whether elements of the batch, other than those that share k and v, may have different masks, as with lengths of sequences."""
        own = {a for n in self.masking if n.op == "input" for a in n.dims} & {*self.batch}
        return self.is_cheap and bool(own - {*self.shared})

    def _hopper_columns(self, d: int, e: int) -> int:
        """The columns of a tile on Hopper. Shared memory has a tile of q and two of k and v each. A thread's registers
        have products, weights, early weights of the next tile, sums of o, and the values that the scores read for each
        column. Where weights are drawn, they also have words of a row's draws. On an H200 with 16 thousand tokens,
        heads of 128 elements and no mask, 160 columns took as long as 128, though some registers were in memory. At a
        mask's borders, wider tiles compute more that the mask hides: on an H100, 16 sequences of 2048 positions under a
        causal mask took 301 us with 128 columns, and 350 us with 160."""
        planned = AttentionLaunch(128, 16, d, e, warps=12, stages=2, processors=SMS, early=self.is_early)
        most = 192 if self.condition is None and not self.reads_columns else 128
        return next(n for n in range(most, 0, -16) if not self.unfit(replace(planned, tile_n=n)))

    def unfit(self, how: AttentionLaunch) -> str:
        d, e, n, stages = how.d, how.e, how.tile_n, how.stages
        if how.processors:
            registers, most = n // 2 + n // 4 * (1 + how.early if self.weight is None else 3) + e // 2, REGISTERS
            size, room = 2 * (128 * d + stages * n * (d + e)) + 1024, SHARED
            whole = n % 16 == 0 and how.splits == 1 and stages > 1
        else:
            widths = [_width(x) for x in (d, e)]
            held = d // 4 if d <= 128 else 4  # of q
            registers, most = n + e // 2 + held, 255 - BESIDE
            size, room = how.tile_m * max(widths) + stages * n * sum(widths), SHARED_ANYWHERE
            whole = n % 16 == 0 and stages <= 2 and all(n * w // 16 % how.threads == 0 for w in widths)
        if not whole or n < 16 or stages < 1:
            return f"tiles of {n} columns in {stages} stages, {how.splits} blocks a row"
        if size > room:
            return f"{size} bytes of shared memory"
        return f"{registers} registers of data" if registers > most else ""


@dataclass(frozen=True)
class AttentionBackward(AttentionPlan):
    """The plan of the gradients of q, k and v, from that of o. A kernel whose tiles of k and v stay computes

        s = q @ k, dp = do @ v      again
        p, ds = slope(s, dp, row)   the weights, and the gradients of s; also the terms of sums
        dv = p @ do, dk = ds @ q    over Q, and over axes of the batch that k and v lack

    and one whose tiles of q stay dq = ds @ k, over S, and the sums along rows (Dao et al., arXiv:2205.14135, section B.2). Where it
    can, one kernel does both: blocks with tiles of k and v add their parts of dq in turns. A value with rows and columns has a
    kernel of its own.
    """

    factors: tuple[Array, Array, Array, Array]  # q, k, v, do
    gradients: tuple[Array, Array, Array]  # dq, dk, dv
    slope: Part
    unmasked: Part | None  # the slope where the mask holds everywhere; None without a mask
    bend: Bend | None  # as of the forward
    statistics: tuple[Array, ...]  # float32 values of rows, which the slope takes
    along_rows: tuple[Array, ...]  # outputs: sums along the rows of scores
    along_columns: tuple[Array, ...]  # sums along their columns, and over axes of the batch that k lacks
    pairs: tuple[Array, ...]  # values with rows and columns, summed over axes of the batch

    @property
    def kernels(self) -> int:
        return 2 + len(self.pairs)

    @property
    def v(self) -> Array:
        return self.factors[2]

    @property
    def vectors(self) -> tuple[Array, ...]:
        return *self.factors, *self.gradients

    @property
    def whole(self) -> frozenset[str]:
        summed = {axis for a in (self.factors[1], *self.pairs) for axis in self.batch if axis not in a.axes}
        return super().whole | {self.row} | summed

    def on_hopper(self, d: int, e: int) -> AttentionLaunch | None:
        """Shared memory has two tiles that stay and two stages of the tiles that pass. If these are of q, it also has
        the statistics of their rows. A consumer's registers have two products, their halves in 16 bits, and sums. If
        both sums leave no room for 32 rows of q, each consumer has one of the sums. (On an H200, heads of 192 and 128
        elements took 7.3 ms that way, and 6.4 ms with 32 rows.)"""

        rows, columns, alone = self._apart(d, e)
        if not columns:
            return None
        found = AttentionLaunch(max(rows, default=0), columns[0], d, e, warps=12, stages=2, processors=SMS)
        if joint := self._together(d, e):
            return replace(found, tile_m=joint[0], joint=True)
        if rows:
            return found
        return replace(found, tile_m=alone[0], separate=True) if alone else None

    def _apart(self, d: int, e: int) -> tuple[list[int], list[int], list[int]]:
        """The sizes for which two kernels have room, the largest first: rows of q, columns, and rows of q if each
        consumer has one of the sums."""

        def fits(passing: int, sums: int, factors: int, staying: int, statistics: int) -> bool:
            registers = passing + passing // 4 * factors + sums // 2
            return 2 * (staying + 2 * passing) * (d + e) + 1024 * (1 + statistics) <= SHARED and registers <= 226

        count = len(self.statistics)
        rows = [m for m in (64, 48, 32) if fits(m, d + e, 2, HELD, count)]
        alone = [m for m in range(96, 0, -16) if fits(m, max(d, e), 1, HELD // 2, count)]
        return rows, [n for n in range(112, 0, -16) if fits(n, d, 1, HELD, 0)], alone

    def _together(self, d: int, e: int) -> list[int]:
        """For how many rows of q one kernel of all gradients has room, the most first. Each of its two consumers has 64 rows of q's
        gradient, or some of the columns if a tile has no more rows. Shared memory has two tiles of the scores' gradients too, and
        128 rows of q's. There is no such kernel where values are summed along rows."""

        def fits(rows: int) -> bool:
            tiles = 2 * (128 + 2 * rows) * (d + e) + 2 * rows * 2 * 128 + 128 * 4 * d
            numbers = 2 * 4 * rows * max(1, len(self.statistics))
            registers = rows + (d + e) // 2  # two products, and sums
            return tiles + numbers + BARRIERS <= SHARED and registers <= 208

        return [] if self.along_rows else [m for m in (128, 64) if fits(m)]

    def anywhere(self, d: int, e: int) -> AttentionLaunch:
        return AttentionLaunch(64, 32 if max(d, e) > 64 else 64, d, e, warps=4, stages=1)

    def unfit(self, how: AttentionLaunch) -> str:
        d, e = how.d, how.e
        planned = self.on_hopper(d, e) if how.processors else self.anywhere(d, e)
        settings = "tile_m", "tile_n", "stages", "splits", "joint"
        if planned and all(getattr(how, name) == getattr(planned, name) for name in settings):
            return ""
        if not how.processors or how.separate or planned is None:
            return "the gradients of attention have only their planned launch there"
        rows, columns, _ = self._apart(d, e)
        rows, columns = (self._together(d, e), [planned.tile_n]) if how.joint else (rows, columns)
        good = how.tile_m in rows and how.tile_n in columns and (how.stages, how.splits) == (2, 1)
        return "" if good else f"tiles of {how.tile_m} rows and {how.tile_n} columns in {how.stages} stages"


def _width(columns: int) -> int:
    """Bytes of a row of a tile in shared memory, in the main loop of all architectures."""
    width = max(32, 2 * columns)
    return 1 << (width - 1).bit_length() if width < 128 else -(-width // 128) * 128


def fits_heads(size: int) -> bool:
    """Whether there is a kernel for rows of this size."""
    return size % 8 == 0 and 8 <= size <= HEADS
