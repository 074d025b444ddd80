"""A contraction's kernel: prepares the values of `templates/gemm.py.jinja`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, replace

from codegen.errors import UserError
from codegen.graph.contraction import rounding
from codegen.graph.names import fresh
from codegen.graph.nodes import ROWS, nodes_of
from codegen.plan.access import Access, access_key
from codegen.plan.elementwise import Elementwise
from codegen.plan.gemms.folds import Fold
from codegen.plan.gemms.tiles import Tile
from codegen.plan.op import Gemm, Op
from codegen.render.common import Context, camel, place_text, tuple_text
from codegen.render.elementwise import ElementwiseContext
from codegen.render.records import (
    Chain,
    Constant,
    Fragment,
    GemmKernel,
    Heads,
    Products,
    SegmentChain,
    Tensor,
    TileFolds,
)
from codegen.spec.spec import Array


class GemmContext(Context):
    """The values of a contraction's module, and, with `templates/gemm.py.jinja`, of its kernel, if it has one."""

    template = "gemm.py.jinja"

    def __init__(self, op: Op):
        super().__init__(op)
        assert isinstance(op.plan, Gemm)
        own = op.spec.op == op.plan.epilogue.spec.op
        chain = f"{op.plan.epilogue.spec.op}_chain"
        tile = op.plan.tile
        self.tile = (
            None
            if isinstance(tile, UserError)
            else TileContext(op, "" if own or tile.folds or tile.segments else chain)
        )

    def kernel(self) -> GemmKernel | None:
        return None if self.tile is None else self.tile.kernel()

    def xla(self) -> None:
        """The jnp form: XLA computes the products, and the epilogue has its jnp form."""
        return None

    def tensor_lines(self) -> list[Tensor]:
        return []


class TileContext(ElementwiseContext):
    """The values that the GEMM template shows: the epilogue of a vector of one row of the products, and the launcher.

    `chain` is the name of a chain that is written already; without one, the op's own is."""

    holds_tables = False

    template = "gemm.py.jinja"
    width = "at.vec"
    in_order = "True"

    def __init__(self, op: Op, chain: str = ""):
        assert isinstance(op.plan, Gemm) and isinstance(op.plan.tile, Tile)
        self.name, self.gemm, self.tile_plan, self.written = op.spec.op, op.plan, op.plan.tile, chain
        super().__init__(replace(op.plan.epilogue, spec=self.tile_plan.spec, statements=self.tile_plan.statements))
        # The tile's own statements end with the reduced values: the epilogue knows whether these are used with the
        # result
        self.rounding = rounding(nodes_of(op.plan.epilogue.statements))
        self.accs = [a for a in self.tile_plan.plan.loads if self.is_given(a)]
        self.leaf_names |= {access_key(self.tile_plan.plan, a): a.name for a in self.accs}

    def is_given(self, access: Access) -> bool:
        return access.array is not None and access.array.name in self.tile_plan.given

    def planned(self, op: Op) -> Elementwise:
        """The tile's plan without the products, which are in registers already. A row's vector may be anywhere in its
        array, so no array is treated as one row, except interleaved pairs."""
        del op
        plan = self.tile_plan.plan

        def anywhere(access: Access) -> Access:
            plain = access.mode == "flat" and access.array is not None and access.array.parts is None
            return replace(access, mode="tile") if plain else access

        loads = tuple(anywhere(a) for a in plan.loads if not self.is_given(a))
        return replace(plan, loads=loads, stores=tuple(map(anywhere, plan.stores)))

    def kernel(self) -> GemmKernel:
        chain = self.chain()
        flags = [self.narrow] if self.of_factors(chain.extra) else []
        columns = [self.read(a) for a in self.reads() if self.fixed(a)]
        tiles = [self.read(a) for a in self.reads() if not self.fixed(a)]
        absent = {self.tensors[name] for name in self.in_registers()}
        readers = (
            f"{self.name}_{kind}" if found else "None" for kind, found in (("columns", columns), ("tiles", tiles))
        )
        return GemmKernel(
            op=self.name,
            flags=flags,
            epilogue=self.epilogue_text(flags),
            reads=f"({', '.join(readers)})",
            whole=self.whole_tensors(),
            static_params=[Constant(name=p.constant, kind=p.kind) for p in self.static],
            byte_tensors=[name for name in self.byte_tensors() if name not in absent],
            chain=replace(chain, name=self.written or f"{self.name}_chain", written=bool(self.written)),
            products=self.products(),
            operands=[t for t in self.tensor_lines() if t.name not in absent],
            folds=self.folds(),
            segments=self.segments(),
            settings=self.settings(chain),
            columns=columns,
            tiles=tiles,
            heads=self.heads(chain, columns, tiles),
            made=[self.made(a) for a in self.indices()],
            stores=self.stores(),
        )

    def tensor_lines(self) -> list[Tensor]:
        """The tensors. After the inputs come the first positions of axes of which this may be a part."""
        lines = super().tensor_lines()
        firsts = [
            Tensor(
                name=self.first(axis),
                hint="cute.Tensor | None",
                comment=f"(1) int32: where {axis} begins, if not at 0",
            )
            for axis in self.tile_plan.placed
        ]
        count = len(lines) - len(self.spec.outputs)
        return [*lines[:count], *firsts, *lines[count:]]

    def first(self, axis: str) -> str:
        """The tensor with the first position of an axis."""
        return fresh(
            {*self.tensors.values(), *(f"m{camel(p.name)}" for p in self.dynamic)},
            f"mFirst{'Row' if axis == ROWS else camel(axis)}",
        )

    def whole_tensors(self) -> str:
        """The tensors that `tiles` reads in vectors, for the launcher, if TMA can copy boxes of all of them."""
        tiled = [a for a in self.reads() if self.tile_plan.tiled(a)]
        if not tiled or not all(map(self.tile_plan.whole, tiled)):
            return ""
        words = []
        for access in tiled:
            assert access.array is not None
            tensor, parts = self.tensors[access.array.name], access.array.parts or 1
            if access.array.parts == 1 or (parts > 1 and access.mode == "tile"):
                tensor, parts = f"gemm.part({tensor}, {access.tokens.index('parts')}, {access.part or 0})", 1
            words.append(f"({tensor}, {parts}, {0 in access.tokens}),")
        return f"({' '.join(words)})"

    def epilogue_text(self, flags: list[str]) -> str:
        """The epilogue as the launcher passes it on, with constants bound."""
        factor = f"m{camel(self.gemm.products[0].a.name)}"
        words = [f"{p.constant}={p.constant}" for p in self.static]
        bound = ", ".join([*words, *(f"{flag}=device.narrow({factor})" for flag in flags)])
        return f"functools.partial({self.name}_tile, {bound})" if bound else f"{self.name}_tile"

    def in_registers(self) -> frozenset[str]:
        """Products, and reduced values."""
        return self.tile_plan.in_registers

    def folds(self) -> TileFolds:
        """The reductions of the epilogue's results in the main loop, and where their partial results are stored."""
        rows, columns = ([f for f in self.tile_plan.folds if f.along == along] for along in (True, False))
        followed = [(place, *f.rescaled) for place, f in enumerate(rows) if f.rescaled is not None]

        tensors = [
            Tensor(name=f"m{camel(f.name)}", hint="cute.Tensor", comment=self.fold_comment(f))
            for f in (*rows, *columns)
        ]
        names = [t.name for t in tensors]
        return TileFolds(
            returned=tuple_text(f.value for f in (*rows, *columns)),
            tensors=tensors,
            row_ops=tuple_text(f'"{f.op}"' for f in rows),
            column_ops=tuple_text(f'"{f.op}"' for f in columns),
            rescaled=tuple_text(
                f'({sum_}, {maximum}, "{power}", {scale!r}, {finite})'
                for sum_, maximum, power, scale, finite in followed
            ),
            row_parts=tuple_text(names[: len(rows)]),
            column_parts=tuple_text(names[len(rows) :]),
        )

    def segments(self) -> SegmentChain | None:
        """The reductions of each segment of a row."""
        found = self.tile_plan.segments
        if found is None:
            return None
        name = f"{self.name}_reduced"
        ops = "".join(f'"{op}", ' for op in found.ops).rstrip(" " if len(found.ops) == 1 else ", ")
        values = ReducedContext(
            replace(self.op, spec=found.spec, statements=found.spec.read.statements, plan=found.plan)
        )
        read = {self.place_of_sums(a): a.name for a in found.plan.loads}
        params = [read.get(place, f"unused{place}") for place in range(2 if self.tile_plan.paired else 1)]
        return SegmentChain(name, replace(values.chain(), params=params), f"gemm.Segments({name}, ({ops}))")

    def fold_comment(self, fold: Fold) -> str:
        shape = "L, rows, parts" if fold.along else f"L, parts, {self.tile_plan.column}"
        power = "" if fold.rescaled is None else f"{fold.rescaled[1]} of its difference from the maximum of "
        return f"({shape}) {fold.op} of {power}{fold.value}"

    def products(self) -> Products:
        tile, first = self.tile_plan, self.gemm.products[0]
        batch = "L, " if tile.batch else ""

        def described(array: Array, modes: str) -> Tensor:
            return Tensor(name=f"m{camel(array.name)}", hint="cute.Tensor", comment=f"({batch}{modes}) {array.dtype}")

        outer = "".join(f"{axis} * " for axis in tile.columns[:-1])
        parts = {
            "halves": f"2, {tile.column}", "interleaved": f"{outer}{tile.column}, 2", "segments": f"{outer}2 * {tile.column}",
        }.get(tile.paired, f"{outer}{tile.column}")  # fmt: skip
        along = first.loaded.along if first.loaded and first.loaded.along else first.axis
        modes = f"{parts}, {along}" if tile.b_is_nk else f"{along}, {parts}"
        tensors = [described(first.a, f"rows, {first.axis}"), *(described(p.b, modes) for p in self.gemm.products)]
        names = [t.name for t in tensors]
        bs = f"({', '.join(names[1:])}{',' * (len(names) == 2)})"
        loading, scales = "", [s for p in self.gemm.products for s in p.inputs[1:]]
        more = [
            Tensor(name=f"m{camel(s.name)}", hint="cute.Tensor", comment=f"({', '.join(s.axes)}) {s.dtype}")
            for s in scales
        ]
        if first.loaded is not None and not first.loaded.converts:
            own = ", ".join(f"{name}={value}" for name, value in asdict(first.loaded.how).items() if value)
            loading = f"scales=({''.join(f'{t.name}, ' for t in more).rstrip(' ')}), loading=gemm.Loading({own}), "
        return Products(
            tensors=[*tensors, *more], a=names[0], bs=bs, scales=loading, batched=bool(tile.batch), b_is_nk=tile.b_is_nk,
            paired=tile.paired,
        )  # fmt: skip

    # The chain: the products come first, and the reduced values last

    def chain(self) -> Chain:
        found = super().chain()
        more = dict.fromkeys(f.value for f in self.tile_plan.folds)
        returns, results = (", ".join([*filter(None, [text]), *more]) for text in (found.returns, found.results))
        return replace(found, returns=returns, results=results)

    def vector_names(self) -> list[str]:
        return [*dict.fromkeys(a.name for a in self.accs), *super().vector_names()]

    def like(self) -> str:
        return self.accs[0].name

    def asking(self) -> tuple[Array, ...]:
        """A reduced value needs the precision of the outputs that use it."""
        exactness = dict(self.tile_plan.exactness)
        return tuple(replace(a, dtype=exactness.get(a.name, a.dtype)) for a in super().asking())

    # Flags that the types of the factors decide: the launcher has these, and tells the tiles

    @property
    def narrow(self) -> str:
        """The parameter of a tile's function that says whether the factors are narrower than float32."""
        return fresh({p.constant for p in self.static} | {*self.flags, *self.tensors.values()}, "narrow_factors")

    def of_factors(self, flags: Iterable[str]) -> list[str]:
        """The flags that depend on the factors' type, because this type decides for a reduced value."""
        held = self.in_registers()
        found = {flag for flag, arrays in self.approximations[1].items() if any(a.name in held for a in arrays)}
        return [flag for flag in flags if flag in found]

    def flag_lines(self, names: Iterable[str]) -> list[str]:
        names, held = list(names), self.in_registers()
        own = self.of_factors(names)
        lines = super().flag_lines(name for name in names if name not in own)
        for flag, arrays in self.approximations[1].items():
            if flag in own:
                tensors = [self.tensors[a.name] for a in arrays if a.name not in held]
                more = f" and device.narrow({', '.join(tensors)})" if tensors else ""
                lines.append(f"{flag} = {self.narrow}{more}")
        return lines

    def place_of_sums(self, access: Access) -> int:
        """The place of a product, or of a value that is reduced from segments, among the kernel's arguments."""
        assert access.array is not None
        given, parts = self.tile_plan.given, self.tile_plan.paired not in ("", "two")  # of the one product
        if access.array.name in self.gemm.accs:
            return given.index(access.array.name) + (access.part or 0)
        return given.index(access.array.name) + parts

    def chain_arguments(self) -> list[str]:
        places = map(self.place_of_sums, self.accs)
        return [*(f"acc[{place}].load()" for place in places), *super().chain_arguments()]

    # The position of the vector

    def split_groups(self) -> tuple[list[int], list[int], list[int]]:
        """The groups that the products' batch, rows and columns count, outermost first."""
        tile = self.tile_plan
        batch, rows, columns = (
            [i for i, g in enumerate(self.groups) if {*g.axes} <= {*own}]
            for own in (tile.batch, tile.rows, tile.columns)
        )
        return batch, rows, columns

    def heads(self, chain: Chain, columns: list[Fragment], tiles: list[Fragment]) -> Heads:
        """The first lines of each function: the coordinates and sizes that it needs."""
        extents = [f"{g.name} = {self.extent_source(i)}" for i, g in enumerate(self.groups)]
        own = [*chain.arguments, *self.stores(), *map(self.made, self.indices())]
        return Heads(
            columns=_needed([*extents, *self.coordinates()], [r.text for r in columns]),
            tiles=_needed([*extents, *self.coordinates()], [r.text for r in tiles]),
            tile=_needed([*extents, *self.coordinates()], own),
        )

    def extent_source(self, group: int) -> str:
        """The kernel's text for a group's size; "" if only registers have it."""
        held = self.in_registers()
        return self.extent_in((a for a in (*self.spec.outputs, *self.spec.inputs) if a.name not in held), group)

    def size_text(self, group: int) -> str:
        return self.groups[group].name

    def indices(self) -> list[Access]:
        return [a for a in self.plan.loads if a.mode == "index"]

    def coordinates(self) -> list[str]:
        """The coordinates of the vector's first element, from its batch, row and column."""
        lines = []
        batch, rows, columns = self.split_groups()
        for groups, rest in ((rows, "at.row"), (batch, "at.batch"), (columns, "at.column")):
            for i in reversed(groups):
                group, outermost = self.groups[i], i == groups[0]
                lines.append(f"{group.coordinate} = {rest}" + ("" if outermost else f" % {group.name}"))
                rest = f"({rest} // {group.name})"
        return lines

    # Loads and stores

    def reads(self) -> list[Access]:
        """One access for each fragment that is loaded from memory."""
        found = {self.fragment(a): a for a in self.plan.loads if a.mode not in ("index", "size")}
        return list(found.values())

    def fixed(self, access: Access) -> bool:
        """Whether it is the same for all rows."""
        _, rows, _ = self.split_groups()
        return not access.index_of and not set(access.tokens) & set(rows)

    def place(self, access: Access) -> str:
        """The coordinates of an access' first element."""
        assert access.array is not None
        parts = access.array.parts if access.mode == "flat" else None
        where = self.at(replace(access, part=0) if parts else access, "")
        return place_text(where)

    def places(self, access: Access) -> str:
        """The function from a column to the coordinates of an access."""
        inner, several = self.groups[-1], len(self.split_groups()[2]) > 1  # a vector is within a segment
        column = "column" if several else inner.coordinate
        where = self.at(access, "", f"column % {inner.name}" if several else None)
        return f"lambda {column}: {place_text(where)}"

    def read(self, access: Access) -> Fragment:
        """A fragment, and the call that reads it."""
        array, words = access.array, []
        assert array is not None
        if access.mode == "flat" or (access.mode == "tile" and not access.index_of):
            method, words = "load", [self.place(access)]
            words += [f"parts={array.parts}"] if access.mode == "flat" else []
        elif access.mode == "scalar" and not access.index_of:
            method, words = "load_one", [self.place(access)]
        else:
            method, words = "gather", [self.places(access)]
        words = [self.tensors[array.name], *words, *self.default_words(array)]
        return Fragment(name=self.fragment(access), text=f"at.{method}({', '.join(words)})")

    def made(self, access: Access) -> str:
        """The line that makes a fragment of coordinates, those in the whole."""
        assert access.group is not None
        group = self.groups[access.group]
        method = "count_up" if access.group == len(self.groups) - 1 else "fill"
        return f"{self.fragment(access)} = at.{method}(device.place({group.coordinate}, {self.first(group.axes[0])}))"

    def store(self, access: Access, value: str) -> list[str]:
        assert access.array is not None
        tensor = self.tensors[access.array.name]
        if access.mode in ("flat", "tile"):
            return [f"at.store({value}, {tensor}, {self.place(access)})"]
        return [f"at.scatter({value}, {tensor}, {self.places(access)})"]


class ReducedContext(ElementwiseContext):
    """The chain from a tile's products to the values that are reduced of each segment: exact, on all that a lane holds."""

    def asking(self) -> tuple[Array, ...]:
        return self.spec.outputs

    def formula_doc(self) -> str:
        return "What is reduced of each segment of a row, from its products."


def _needed(lines: list[str], body: list[str]) -> list[str]:
    """The assignments whose names a body needs, directly or through another of them."""
    kept: list[str] = []
    for line in reversed(lines):
        name = line.partition(" = ")[0]
        if any(re.search(rf"\b{name}\b", text.partition(" = ")[2] or text) for text in (*kept, *body)):
            kept.insert(0, line)
    return kept
