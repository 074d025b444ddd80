"""A contraction's kernel: its tile's plan to what `templates/gemm.py.jinja` shows."""

from __future__ import annotations

from dataclasses import replace

from codegen.errors import Mistake
from codegen.gemms import LANES, Gemm, Tile
from codegen.pipeline import Op
from codegen.plan import Access, Elementwise, access_key
from codegen.render.common import Context, camel
from codegen.render.elementwise import ElementwiseContext
from codegen.spec import Array


class GemmContext(Context):
    """What a contraction's module shows: with `templates/gemm.py.jinja` its kernel, where it has one."""

    template = "gemm.py.jinja"

    def __init__(self, op: Op):
        super().__init__(op)
        assert isinstance(op.plan, Gemm)
        own = op.spec.op == op.plan.epilogue.spec.op
        chain = "" if own else f"{op.plan.epilogue.spec.op}_chain"
        self.tile = None if isinstance(op.plan.tile, Mistake) else TileContext(op, chain)

    def kernel(self) -> dict:
        return {"tile": None} if self.tile is None else {"tile": self.tile.kernel()}

    def xla(self) -> dict:
        """The products are XLA's, and the epilogue has its jnp form."""
        return {}

    def tensor_lines(self) -> list[dict]:
        return []


class TileContext(ElementwiseContext):
    """What the GEMM template shows: the epilogue of a vector of one row of the products, and the launcher.

    `chain` is the name of a chain that is written already; without one, the op's own is."""

    template = "gemm.py.jinja"

    def __init__(self, op: Op, chain: str = ""):
        assert isinstance(op.plan, Gemm) and isinstance(op.plan.tile, Tile)
        self.name, self.gemm, self.tile_plan, self.written = op.spec.op, op.plan, op.plan.tile, chain
        super().__init__(op.plan.epilogue)
        self.accs = [a for a in self.tile_plan.plan.loads if self.is_acc(a)]
        self.leaf_names |= {access_key(self.tile_plan.plan, a): a.name for a in self.accs}

    def is_acc(self, access: Access) -> bool:
        return access.array is not None and access.array.name in self.gemm.accs

    def planned(self, op: Op) -> Elementwise:
        """The tile's plan without the products, which are in registers already. A row's vector lies anywhere in its
        array, so none is reached as if the array were one row, but for pairs that lie interleaved."""
        del op
        plan = self.tile_plan.plan

        def anywhere(access: Access) -> Access:
            plain = access.mode == "flat" and access.array is not None and access.array.parts is None
            return replace(access, mode="tile") if plain else access

        loads = tuple(anywhere(a) for a in plan.loads if not self.is_acc(a))
        return replace(plan, loads=loads, stores=tuple(map(anywhere, plan.stores)))

    def kernel(self) -> dict:
        chain = self.chain()
        return {
            "op": self.name,
            "epilogue": self.epilogue_text(),
            "static_params": [{"name": p.name, "kind": p.kind} for p in self.static],
            "byte_tensors": [self.tensors[a.name] for a in self.spec.arrays if self.spec.kind(a) == "bool"],
            "chain": chain | {"name": self.written or f"{self.name}_chain", "written": bool(self.written)},
            "products": self.products(),
            "operands": [t for t in self.tensor_lines() if t["name"] not in self.acc_tensors()],
            "extents": self.extents(),
            "coordinates": self.coordinates(),
            "settings": self.settings(chain),
            "fragments": self.fragments(),
            "flat_tiles": self.flat_tiles(),
            "loads": self.loads(),
            "ragged_loads": self.ragged_loads(),
            "ragged_each": any(load["each"] for load in self.ragged_loads()),
            "results": self.result_lines(),
            "stores": self.stores(),
            "ragged_stores": self.ragged_stores(),
        }

    def epilogue_text(self) -> str:
        """The epilogue as the launcher passes it on: what is compiled in, bound."""
        bound = ", ".join(f"{p.name}={p.name}" for p in self.static)
        return f"functools.partial({self.name}_tile, {bound})" if bound else f"{self.name}_tile"

    def acc_tensors(self) -> set[str]:
        return {self.tensors[name] for name in self.gemm.accs}

    def products(self) -> dict:
        tile, first = self.tile_plan, self.gemm.products[0]
        batch = "L, " if tile.batch else ""

        def described(array: Array, modes: str) -> dict:
            return {"name": f"m{camel(array.name)}", "comment": f"({batch}{modes}) {array.dtype}"}

        parts = {"halves": f"2, {tile.column}", "interleaved": f"{tile.column}, 2"}.get(tile.paired, tile.column)
        modes = f"{parts}, {first.axis}" if tile.b_is_nk else f"{first.axis}, {parts}"
        tensors = [described(first.a, f"rows, {first.axis}"), *(described(p.b, modes) for p in self.gemm.products)]
        names = [t["name"] for t in tensors]
        bs = f"({', '.join(names[1:])}{',' * (len(names) == 2)})"
        return {
            "tensors": tensors, "a": names[0], "bs": bs, "batched": bool(tile.batch), "b_is_nk": tile.b_is_nk,
            "paired": tile.paired,
        }  # fmt: skip

    # The chain: the products come first

    def vector_names(self) -> list[str]:
        return [*dict.fromkeys(a.name for a in self.accs), *super().vector_names()]

    def like(self) -> str:
        return self.accs[0].name

    def chain_arguments(self) -> list[str]:
        places = [self.gemm.accs.index(a.array.name) + (a.part or 0) for a in self.accs if a.array is not None]
        return [*(f"acc[{place}].load()" for place in places), *super().chain_arguments()]

    def formula_doc(self) -> str:
        return "The chain, on one vector of each operand."

    # Where the vector is

    def extent_source(self, group: int) -> str:
        needed = [
            a for a in (*self.spec.outputs, *self.spec.inputs) if a.default is None and a.name not in self.gemm.accs
        ]
        for array in needed:
            tokens = self.plan.view(array.name).tokens
            if group in tokens:
                return f"{self.tensors[array.name]}.shape[{tokens.index(group)}]"
        raise AssertionError(f"no array has group {group}")

    def split_groups(self) -> tuple[list[int], list[int]]:
        """The groups that the products' batch counts, and those that their rows count, outermost first."""
        batch = [i for i, g in enumerate(self.groups) if set(g.axes) <= set(self.tile_plan.batch)]
        rows = [i for i in range(len(self.groups) - 1) if i not in batch]
        return batch, rows

    def extents(self) -> list[str]:
        inner = [i for found in self.split_groups() for i in found[1:]]  # what a flattened coordinate is divided by
        every = range(1, len(self.groups)) if self.flat_tiles() else ()
        needed = sorted({*inner, *every, len(self.groups) - 1, *self.sizes()} - {0})
        names, sources = [self.groups[i].name for i in needed], [self.extent_source(i) for i in needed]
        return [f"{', '.join(names)} = {', '.join(sources)}"]

    def sizes(self) -> set[int]:
        """The groups whose size the chain asks for."""
        return {a.group for a in self.plan.loads if a.mode == "size" and a.group is not None}

    def coordinates(self) -> list[str]:
        lines = []
        for groups, given in zip(self.split_groups(), ("batch", "row"), strict=True):
            for i in reversed(groups):
                group, outermost = self.groups[i], i == groups[0]
                if not outermost:
                    lines.append(f"{group.coordinate} = {given} % {group.name}")
                    lines.append(f"{given} = {given} // {group.name}")
                elif group.coordinate != given:
                    lines.append(f"{group.coordinate} = {given}")
        lines.append(f"{self.groups[-1].coordinate} = column")
        if self.flat_tiles():
            text = f"cutlass.Int64({self.groups[0].coordinate})"
            for group in self.groups[1:]:
                text = f"{text} * {group.name} + {group.coordinate}"
                text = f"({text})" if group is not self.groups[-1] else text
            lines.append(f"start = {text}")
        return lines

    # Accesses of a row whose vectors start anywhere

    def shifted(self, text: str) -> str:
        """An access at the vector's start, for its element i."""
        inner = self.groups[-1].coordinate
        return text.replace(inner, f"{inner} + i") if inner in text else text

    def ragged_loads(self) -> list[dict]:
        rows, whole = [], {row["name"]: row["whole"] for row in self.loads()}
        done = set()
        for access in self.plan.loads:
            name = self.fragment(access)
            if access.mode == "size" or name in done:
                continue
            done.add(name)
            row = {"guard": self.guard(access), "in_row": whole[name]}
            if access.mode == "index" or access.mode == "scalar":
                row["elements"] = [whole[name]]
            else:
                assert access.array is not None
                tensor = self.tensors[access.array.name]
                if access.mode == "flat":
                    parts = access.array.parts or 1
                    row["in_row"] = f"device.load_anywhere({tensor}, {parts} * start, {name})"
                    texts = [
                        f"{name}[{k}, i] = {self.element(access.array, self.shifted(self.at(replace(access, part=k), '')))}"
                        for k in range(parts)
                    ]
                else:
                    if access.mode == "tile":
                        where = f"cute.crd2idx({self.where(access)}, {tensor}.layout)"
                        row["in_row"] = f"device.load_anywhere({tensor}, {where}, {name})"
                    texts = [f"{name}[i] = {self.element(access.array, self.shifted(self.at(access, '')))}"]
                row["elements"] = []
                row["each"] = texts
            rows.append({"elements": [], "each": [], **row})
        return rows

    def ragged_stores(self) -> list[dict]:
        rows, done, inner = [], set(), self.groups[-1]
        for access in self.plan.stores:
            assert access.array is not None
            name, tensor = self.fragment(access), self.tensors[access.array.name]
            if name in done:
                continue
            done.add(name)
            place, left = inner.coordinate, f"{inner.name} - {inner.coordinate}"
            if access.mode == "flat":
                parts = access.array.parts or 1
                arguments = f"{parts} * start, {parts} * {place}, {parts} * ({left}), {parts} * valid, {LANES}"
                spot = self.at(replace(access, part=-1), "")
                element = f"{tensor}[{spot.replace(place, f'{place} + i // {parts}').replace('-1', f'i % {parts}')}] = {name}[i]"
                rows.append(
                    {
                        "wide": f"device.store_anywhere({name}, {tensor}, {arguments})",
                        "count": f"{parts} * vec",
                        "element": element,
                    }
                )
                continue
            wide = "device.first_bits(valid, vec)"
            if access.mode == "tile":
                offset = f"cute.crd2idx({self.where(access)}, {tensor}.layout)"
                wide = f"device.store_anywhere({name}, {tensor}, {offset}, {place}, {left}, valid, {LANES})"
            element = f"{tensor}[{self.shifted(self.at(access, ''))}] = {name}[i]"
            rows.append({"wide": wide, "count": "vec", "element": element})
        return rows
