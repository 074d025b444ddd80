"""The computation of a GEMM kernel within a tile of the products: the epilogue of each element, and partial results of
reductions.

The epilogue's element-wise part runs on vectors of a tile's rows before anything is written (`Tile.plan`). A reduction
begins there too, if it does not need results of all tiles: each tile writes a partial result (`Fold`), and the chain's
operations on the whole result come later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES, ROWS, Leaf, Statement, topological
from codegen.plan.access import Access
from codegen.plan.elementwise import Elementwise, tile_plan
from codegen.plan.gemms import hopper_tiles, narrow_tiles
from codegen.plan.gemms.folds import Fold, folded
from codegen.plan.gemms.hopper_tiles import FLOAT8
from codegen.plan.gemms.loading import Loaded
from codegen.plan.gemms.segments import WIDTHS, Segments, of_segments
from codegen.plan.launches import GemmLaunch, ProductCall, Tuned
from codegen.shared import WARP, AmpereTiles, Tiles
from codegen.spec.spec import Array, Spec
from codegen.targets import features, has_wgmma


@dataclass(frozen=True)
class Product:
    """`acc = a @ b` over some axes: two inputs, and the epilogue's input that holds the result."""

    a: Array
    b: Array
    axes: tuple[str, ...]
    acc: Array
    loaded: Loaded | None = None  # how b is made from narrow elements, in the type of a, before it is multiplied
    # The epilogue's inputs that hold sizes of axes that it has no array with, such as contracted ones, and the axes
    sizes: tuple[tuple[str, str], ...] = ()

    @property
    def widened(self) -> bool:
        return self.loaded is not None

    @property
    def inputs(self) -> tuple[Array, ...]:
        """The inputs that b is made of, as they are in memory."""
        if self.loaded is None:
            return (self.b,)
        return (self.loaded.source, *([self.loaded.scale] if self.loaded.scale is not None else []))

    @property
    def axis(self) -> str:
        """The axis of a product over one axis."""
        (axis,) = self.axes
        return axis


@dataclass(frozen=True)
class Tile:
    """The computation of a GEMM kernel within a tile of the products: the epilogue's element-wise plan, with three axes."""

    spec: Spec  # the epilogue's spec; its outputs are the outputs of every element, and the reduced values
    statements: tuple[Statement, ...]
    folds: tuple[Fold, ...]  # those along rows first
    exactness: tuple[tuple[str, str], ...]  # for reduced values: (name, the type that decides how exact it is)
    plan: Elementwise
    batch: tuple[str, ...]  # axes that all have
    rows: tuple[str, ...]  # axes of a
    columns: tuple[str, ...]  # axes of b
    b_is_nk: bool  # b's columns before the contracted axis
    paired: str  # "" for one b, else "two" arrays, "halves" `(2 N)`, "interleaved" `(N 2)` or, of several axes, "segments" `H, (2 D)`
    accs: tuple[str, ...]  # the epilogue's inputs that hold products
    factor: str  # the type of a
    work: int  # the approximate number of instructions of the epilogue for an accumulator
    loaded: Loaded | None  # how b is made from narrow elements, in the type of a
    segments: Segments | None = None  # what is reduced along the innermost axis of the columns, before the rest

    @property
    def column(self) -> str:
        """The innermost axis of the columns."""
        return self.columns[-1]

    def segment(self, extents: Mapping[str, int]) -> int:
        """The length of the runs of columns that a tile must have whole: the size of the innermost axis "D", or 0.
        Raises `UserError` for what no tile has."""
        vectors, own = extents.get("D", 0), 2 if self.paired else 1
        if len(self.columns) > 1 and vectors % 8:
            raise UserError(f"{vectors} {self.column} are not whole vectors of 8")
        if self.segments is None and self.paired != "segments":
            return 0
        if own * vectors not in WIDTHS:
            words = " or ".join(map(str, WIDTHS))
            raise UserError(
                f"{own * vectors} columns of a product along {self.column}; a tile has whole ones of {words}"
            )
        return vectors

    def launch(self, call: ProductCall, tuned: Tuned | None = None) -> GemmLaunch:
        """The launch of a call. It has the tiles that were measured to be fastest, if they fit. Raises `UserError` if there is none."""
        dtypes, extents, arch = call.dtypes, call.extents, call.arch
        factor = dtypes["a"]
        if self.loaded is not None and dtypes["b"] != factor:
            return self.loading(self.loaded, call, tuned)
        widths = [DTYPES[dtypes[array.name]].size for array, _ in self.plan.full if array.name not in self.accs]
        vec = max(4, min(8, 16 // max(widths, default=2)))
        ragged, segment = extents["N"] % vec != 0, self.segment(extents)
        if has_wgmma(arch) and (found := self.hopper(call, ragged)):
            tiles = min(found, key=lambda t: found[t])
            if tuned is None:
                return GemmLaunch(vec, ragged, tiles, segment, self.slower(tiles, call))
            wanted = dict(tuned.launch).items() if tuned.take == "launch" else ()
            tiles = next((t for t in found if wanted and wanted <= asdict(t).items()), tiles)
            return GemmLaunch(vec, ragged, tiles, segment, tuned.why if tuned.take == "xla" else "")
        if factor not in AMPERE and not (factor in FLOAT8 and arch != "sm_80"):
            raise UserError(f"no main loop for {factor} on {arch}")
        few = extents["M"] * extents["N"] <= 512 * 512
        own = self.small() if few else LARGE
        if factor in FLOAT8 and features(arch).emulates_float8 and not few:
            own = replace(own, warps_n=4, blocks=1)
        own = replace(own, tile_k=(64 if few else 128) // DTYPES[factor].size)
        if factor == "float32":
            own = replace(own, tile_n=min(64, own.tile_n), precise=call.precise)
        if segment:
            own = _with_whole(own, segment * (2 if self.paired else 1))
        return GemmLaunch(vec, ragged, own, segment, self.refused(call))

    def loading(self, loaded: Loaded, call: ProductCall, tuned: Tuned | None) -> GemmLaunch:
        """The launch that converts b in registers, or the launch for a copy of b in the type of a, if this should take less time. Scales
        have the type of "scale"."""
        dtypes, (L, M, N, K) = call.dtypes, call.sizes
        copied = self.launch(replace(call, dtypes={**dtypes, "b": dtypes["a"]}), tuned)
        parts, bits, group = 2 if self.paired else 1, loaded.how.bits, loaded.how.group
        tiles = narrow_tiles.tiles_for(M, N, L, parts, bits, group)
        if dtypes["a"] not in hopper_tiles.HALVES:
            return replace(copied, copied=f"registers convert to 16 bits, not to {dtypes['a']}")
        if group % tiles.tile_k:
            return replace(copied, copied=f"a tile is {tiles.tile_k} wide along K, and a scale is of {group}")
        if group and N * DTYPES[dtypes["scale"]].size % 4:
            return replace(copied, copied=f"a row of {N} scales is not a multiple of four bytes")
        if not call.extents.get("covered", 1):
            return replace(copied, copied="the last elements are taken several times")
        why = narrow_tiles.loses(M, bits, group)
        one = narrow_tiles.cycles_converting(tiles, M, parts * N, K, L, bits)
        two = narrow_tiles.cycles_copying(copied.tiles, M, parts * N, K, L, bits, self.all_work)
        if one <= two:
            return GemmLaunch(copied.vec, copied.ragged, tiles, why=why)
        us = f"{two / hopper_tiles.CYCLES:.0f} us, and {one / hopper_tiles.CYCLES:.0f} if registers convert it"
        return replace(copied, why=why or copied.why, copied=f"by estimate {us}")

    @property
    def placed(self) -> tuple[str, ...]:
        """The axes whose positions the epilogue uses: the kernel takes their first position, if it is not 0."""
        return self._axes_of("index")

    @property
    def undivided(self) -> tuple[str, ...]:
        """The axes that must not be sharded, since the kernel needs all their elements: axes whose size the epilogue
        uses, axes along which it takes, and axes of rows if it uses a row's position. Rows may have several axes."""
        rows = (ROWS,) if ROWS in self.placed else ()
        reduced = (self.column,) if self.segments is not None else ()
        return (*rows, *reduced, *self._axes_of("size"), *(a.index_of[1] for a in self.plan.loads if a.index_of))

    def _axes_of(self, mode: str) -> tuple[str, ...]:
        return tuple(
            self.plan.groups[a.group].axes[0] for a in self.plan.loads if a.mode == mode and a.group is not None
        )

    @property
    def outputs(self) -> tuple[Array, ...]:
        """The outputs that the kernel writes."""
        folded = {f.value for f in self.folds}
        return tuple(a for a in self.spec.outputs if a.name not in folded)

    @property
    def in_registers(self) -> frozenset[str]:
        """The arrays of its spec that are not tensors: products, and reduced values."""
        return frozenset((*self.given, *(f.value for f in self.folds)))

    @property
    def given(self) -> tuple[str, ...]:
        """The inputs of its spec that registers hold: products, and what is reduced of segments."""
        return (*self.accs, *(self.segments.names if self.segments is not None else ()))

    def small(self) -> AmpereTiles:
        """Small tiles, for outputs for which large tiles would leave SMs idle."""
        return AmpereTiles(32, 64 if self.paired else 32, 32, warps_m=2, warps_n=1, stages=2)

    def hopper(self, call: ProductCall, ragged: bool) -> dict[Tiles, float]:
        """The tiles of the main loop for Hopper and the cycles that each should take, if it takes these operands."""
        dtypes, (L, M, N, K) = call.dtypes, call.sizes
        paired = "halves" if self.paired == "two" else self.paired
        tiled = [a for a in self.plan.loads if self.tiled(a)]
        # One vector of each part; parts that are neighbours are loaded together
        tiles = {(a.array, None if a.mode == "flat" else a.part) for a in tiled}
        widths = [
            DTYPES[dtypes[array.name]].size * (1 if part is not None else array.parts or 1)
            for array, part in tiles
            if array is not None
        ]
        boxes = (
            max(L * M, N * MOST_PARTS) < 2**31
            and all(map(self.whole, tiled))
            and all(N * width % 16 == 0 for width in widths)
        )
        epilogue = hopper_tiles.EpilogueNeeds(
            self.all_work, sum(widths), ragged, boxes and not ragged, folds=any(f.along for f in self.folds),
            keeps=any(not f.along or f.rescaled for f in self.folds), over_rows=sum(not f.along for f in self.folds),
            segment=self.segment(call.extents) * (2 if self.paired else 1),
        )  # fmt: skip
        return hopper_tiles.options(
            M, N, K, L, epilogue, a=dtypes["a"], b=dtypes["b"], b_is_nk=self.b_is_nk, paired=paired
        )

    @property
    def all_work(self) -> int:
        """The approximate number of instructions of the epilogue and its reductions for an accumulator."""
        return self.work + sum(10 if f.rescaled else 3 for f in self.folds)

    @property
    def stores_products(self) -> bool:
        """Whether its outputs are the products themselves."""
        outputs = {a.name for a in self.outputs}
        stored = [s.value for s in self.statements if s.name in outputs]
        return not self.folds and all(isinstance(v.attr, Leaf) and v.attr.name in self.accs for v in stored)

    def slower(self, tiles: Tiles, call: ProductCall) -> str:
        """Why XLA's matmul and a kernel for the epilogue should be faster than these tiles; "" if they should not."""
        dtypes, (L, M, N, K) = call.dtypes, call.sizes
        if self.stores_products and self.loaded is None and {dtypes["a"], dtypes["b"]} <= hopper_tiles.HALVES:
            return "nothing follows the product, and XLA's library has more kernels to choose from"
        if self.folds_costly(dtypes):
            return "the reduced values are so expensive that another pass over the product takes less time"
        return hopper_tiles.loses(tiles, M, N, K, L, a=dtypes["a"], paired=self.paired, work=self.all_work)

    def refused(self, call: ProductCall) -> str:
        """Why the main loop for Hopper cannot be used."""
        if not has_wgmma(call.arch):
            return f"no main loop of {call.arch}'s own"
        paired = "halves" if self.paired == "two" else self.paired
        N = call.extents["N"] * (2 if paired in ("interleaved", "segments") else 1)
        factor = call.dtypes["a"]
        tiles = replace(hopper_tiles.SQUARE, tile_k=128 // DTYPES[factor].size)
        found = hopper_tiles.refusal(
            tiles, factor, call.dtypes["b"], b_is_nk=self.b_is_nk, paired=paired, K=call.extents["K"], N=N
        )
        return found or "no tiles leave room for the epilogue's reductions"

    def tiled(self, access: Access) -> bool:
        """Whether the epilogue reads an array that has an element of its own for each row and column."""
        array, vectors = access.array, access.mode in ("flat", "tile") and access.index_of is None
        if array is None or array.name in self.given or not vectors:
            return False
        return self.column in array.axes and bool(set(self.rows) & set(array.axes))

    def whole(self, access: Access) -> bool:
        """Whether the arrays that are read in vectors have every element of the output, or of each batch, in order: TMA
        can copy boxes of them."""
        tokens, count = access.tokens, len(self.plan.groups)
        own = tuple(t for t in tokens if t != "parts")
        parts = access.array.parts if access.array is not None and tokens[-1] == "parts" else None
        batch = [i for i, g in enumerate(self.plan.groups) if set(g.axes) <= set(self.batch)]
        ordered = batch == list(range(len(batch))) and own in (tuple(range(count)), tuple(range(len(batch), count)))
        return ordered and "parts" not in tokens[:-2] and (parts or 1) <= MOST_PARTS

    def folds_costly(self, dtypes: Mapping[str, str]) -> bool:
        """Whether an expensive value that must not be approximated is reduced. Its long code would run once for each
        tile, which takes longer than another pass over the product."""
        exact = {name for name, dtype in self.exactness if self.is_exact(dtype, dtypes)}
        values = [s.value for s in self.statements if s.name in exact]
        return any(n.op in COSTS for n in topological(values))

    def is_exact(self, dtype: str, dtypes: Mapping[str, str]) -> bool:
        """Whether reduced values are computed as for results of a type (or of a type variable that an output has, or
        the factors)."""
        if self.spec.math != "auto":
            return self.spec.math == "precise"
        named = {self.factor: dtypes["a"], **{a.dtype: dtypes[a.name] for a in self.outputs}}
        bound = dtype if dtype in DTYPES else named[dtype]
        return DTYPES[bound].size >= 4


MOST_PARTS = 4  # side by side, so that a box of 64 columns is not wider than TMA allows, 256 elements

# The approximate number of instructions of an operation if it may be approximate; the others take one
COSTS = {
    "exp": 3, "log": 10, "log2": 9, "log1p": 7, "expm1": 7, "div": 3, "tanh": 11, "sigmoid": 5, "sin": 19, "cos": 20,
    "sinh": 9, "cosh": 5, "erf": 12, "erfc": 13, "gelu": 12, "dgelu": 14, "pow": 15,
}  # fmt: skip
AMPERE = ("float16", "bfloat16", "float32", "int8")


def _with_whole(tiles: AmpereTiles, segment: int) -> AmpereTiles:
    """Tiles whose warps have whole segments of so many accumulators: each warp has all columns of the tile. A thread
    copies at least 4 bytes of a row of b, so there are as many threads as columns."""
    wide = max(segment, tiles.tile_n)
    warps = max(tiles.warps, wide // WARP)
    own = replace(tiles, tile_m=max(tiles.tile_m, 16 * warps), tile_n=wide, warps_m=warps, warps_n=1)
    return replace(own, stages=2, blocks=1) if wide > tiles.tile_n else own


LARGE = AmpereTiles(128, 128, 64, warps_m=2, warps_n=2, stages=3, blocks=2)


def tile_of(products: tuple[Product, ...], epilogue: Spec, statements: tuple[Statement, ...]) -> Tile:
    """The plan of an epilogue within the tiles of a GEMM kernel. Raises `UserError` if it cannot be computed there."""
    _check_factors(products, epilogue)
    first = products[0]
    a, b = first.a, first.b
    batch = tuple(x for x in b.axes if x in a.axes and x != first.axis)
    rows = tuple(x for x in a.axes if x not in (*batch, first.axis))
    columns = tuple(x for x in b.axes if x not in (*batch, first.axis))
    if not columns or not rows:
        raise UserError("a product of vectors: no tiles")
    beside = [(*batch, first.axis, *columns), (*batch, *columns, first.axis)]
    if a.axes != (*batch, *rows, first.axis) or b.axes not in beside or any(len(d.names) > 1 for d in b.dims):
        raise UserError("axes in an order that a GEMM kernel does not read")
    if len(columns) > 1 and first.widened:
        raise UserError(f"{b.name!r} has columns along several axes, and a kernel that converts it takes one")
    column, order, borders = columns[-1], (*batch, *rows, *columns), {rows[0], columns[0]}
    _check_chain(statements)
    if epilogue.disagreeing:
        words = " and ".join(f"{x.name!r} ({x})" for x in epilogue.disagreeing)
        raise UserError(f"a tile of a GEMM kernel has one order of axes, and {words} have several")
    accs = tuple(p.acc.name for p in products)
    segments: Segments | None = None
    if len(columns) > 1:
        epilogue, statements, segments = of_segments(epilogue, statements, accs, order, borders)
    spec, statements, folds, exactness = folded(
        epilogue, statements, order, rows, column, {p.acc.name: a.dtype for p in products if p.acc.dtype == "float32"}
    )
    plan = tile_plan(spec, statements, borders)
    held = {f.value for f in folds}
    plan = replace(plan, stores=tuple(a for a in plan.stores if a.array is not None and a.array.name not in held))
    _check_extents(plan, {*held, *accs, *(segments.names if segments is not None else ())}, batch, rows, columns)
    parts = next((d for d in b.dims if d.parts is not None), None)
    if parts is not None and (parts.parts != 2 or parts.names != (column,) or len(products) > 1):
        raise UserError(f"{b.name!r} is {b}: a GEMM kernel takes parts of its columns, two of them")
    paired = "two" if len(products) == 2 else ""
    if parts is not None:
        paired = ("halves" if len(columns) == 1 else "segments") if parts.parts_first else "interleaved"
    reduced = () if segments is None else segments.spec.read.statements
    nodes = list(topological(s.value for s in (*statements, *reduced)))
    work = 4 + sum(COSTS.get(n.op, 1) for n in nodes if n.args and n.op != "float")
    return Tile(
        spec, statements, folds, exactness, plan, batch, rows, columns, b.axes[-1] == first.axis, paired, accs,
        a.dtype, work // (2 if paired else 1), first.loaded, segments,
    )  # fmt: skip


def _check_factors(products: tuple[Product, ...], epilogue: Spec) -> None:
    """Checks that one kernel reads the factors of these products: one left factor along rows, and right factors that are alike."""
    first = products[0]
    a, b = first.a, first.b
    if len(products) > 2 or any(p.a != first.a or p.axes != first.axes for p in products):
        raise UserError("a GEMM kernel has one product, or two of the same rows")
    if len(first.axes) > 1 or ROWS in first.axes:
        raise UserError("a GEMM kernel contracts one axis, and not the rows")
    if not a.dims or a.dims[-1].names != (first.axis,) or any(d.parts is not None for d in a.dims):
        raise UserError(f"{a.name!r} is {a}, but a GEMM kernel reads rows along {first.axis}")
    if len({(p.b.dims, p.b.dtype, p.widened and _alike(p)) for p in products}) > 1:
        raise UserError("the two products differ in shape or type")
    if (
        b.dtype != a.dtype
        and not first.widened
        and not {*epilogue.dtypes(a.dtype), *epilogue.dtypes(b.dtype)} <= FLOAT8
    ):
        raise UserError(f"{a.name!r} and {b.name!r} have different types, and only float8 factors may")
    again = {x.name for p in products for x in (p.a, *p.inputs)} & {x.name for x in epilogue.inputs}
    if again:
        raise UserError(f"the epilogue reads {', '.join(sorted(again))}, a factor of the product, as well")


def _check_chain(statements: tuple[Statement, ...]) -> None:
    """Checks that each element of the epilogue depends on its own position alone."""
    if any(n.op == "shift" for n in topological(s.value for s in statements)):
        raise UserError("a GEMM kernel reads no neighbours")
    if any(n.op == "pick" for n in topological(s.value for s in statements)):
        raise UserError("a GEMM kernel takes at an input's indices, not at computed ones")
    if any(s.at for s in statements):
        raise UserError("a GEMM kernel writes its tiles where they are, not at an index's places")


def _alike(product: Product) -> tuple[object, ...]:
    """The parts of how b is made that the two products of a kernel share."""
    assert product.loaded is not None
    scale = product.loaded.scale
    return product.loaded.how, product.loaded.along, scale and (scale.dims, scale.dtype)


def _check_extents(
    plan: Elementwise, held: set[str], batch: tuple[str, ...], rows: tuple[str, ...], columns: tuple[str, ...]
) -> None:
    """Checks that the kernel can compute its position: from an array in memory, if a row's number counts several groups
    of axes."""
    there = {t for v in plan.views if v.array.name not in held and v.array.default is None for t in v.tokens}
    for some in (batch, rows, columns):
        own = [i for i, group in enumerate(plan.groups) if set(group.axes) <= set(some)]
        for i in own[1:]:
            if i not in there:
                raise UserError(
                    f"no array that is there in every call has ({', '.join(plan.groups[i].axes)}), but rows count it"
                )
    for load in plan.loads:
        if load.mode == "size" and load.group not in there:
            raise UserError(f"no array that is there in every call has the axis whose size is {load.name}")
