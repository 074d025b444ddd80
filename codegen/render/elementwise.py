"""The kernel of an element-wise op: prepares the values of `templates/elementwise.py.jinja`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

from codegen.graph import emit
from codegen.graph.ops import COSTLY
from codegen.graph.positions import rises
from codegen.plan.access import Access
from codegen.plan.elementwise import Elementwise
from codegen.plan.nearby import Nearby
from codegen.render.common import Context, camel, full, listed, quoted, tuple_text
from codegen.render.records import Chain, ElementwiseKernel, Function, Kernel, NearValues
from codegen.spec.spec import Array, Param

FOLLOWING = "following"  # the flag of draws whose places follow each other, as the elements of a vector do


class ElementwiseContext(Context):
    """The values of the element-wise template."""

    plan: Elementwise
    template = "elementwise.py.jinja"
    width = "how.vec"  # elements of a vector
    holds_tables = True  # whether its blocks may copy tables to shared memory

    def kernel(self) -> Kernel:
        return self.shown()

    def shown(self) -> ElementwiseKernel:
        chain = self.chain()
        return ElementwiseKernel(
            chain=chain,
            vector=f"flat.vector(how, {self.extents()})",
            axes=self.used_axes(),
            settings=self.settings(chain),
            written=[self.registers(a) for a in self.plan.stores if a.mode != "flat" and not a.into],
            loads=self.loads(),
            loaded=self.loaded(),
            stores=self.stores(),
            ragged_stores=self.ragged_stores(),
            grid=f"flat.grid(how, {self.extents()}, stream)",
            launch_arguments=self.launch_arguments(),
        )

    def chain(self) -> Chain:
        names = self.target_names()
        lines = emit.emit(self.statements, names, self.dialect)
        extra = [n for n in self.extra_names() if self.mentions(lines, n)]
        returns = [s.name for s in self.plan.stores]
        return Chain(
            params=[*self.vector_names(), *extra],
            extra=extra,
            doc=quoted(self.formula_doc()),
            cute=lines,
            returns=", ".join(returns),
            results=", ".join(returns),
            arguments=[*self.chain_arguments(), *(self.extra_argument(n) for n in extra)],
        )

    def extra_names(self) -> list[str]:
        """The names that functions may take besides operands and parameters."""
        return ["compute", *self.flags, *([FOLLOWING] if self.following else []), *dict(self.spec.types)]

    @property
    def in_order(self) -> str:
        """The text of whether all elements of a vector are in one row, next to each other; empty where they may never be."""
        return "not how.ragged" if self.template == ElementwiseContext.template else ""

    @functools.cached_property
    def following(self) -> dict[int, str]:
        """The text of draws whose places are consecutive along a vector: each row is whole vectors, so a vector never
        reaches into the next row."""
        if not self.in_order or not self.groups or not self.groups[-1].axes:
            return {}
        rising = rises(self.nodes, self.groups[-1].axes[-1])
        draws = [n for n in self.nodes if n.op == "_bits" and rising.get(id(n.args[2])) == 1]
        divided = {id(n) for n in self.nodes if n.op == "div" and not n.args[1].dims}  # by one number
        alone = not any(n.op in COSTLY and n.dims and id(n) not in divided for n in self.nodes if n.op != "_bits")
        return dict.fromkeys(map(id, draws), f"device.random_bits({{0}}, {{1}}, {{2}}, {FOLLOWING}, {alone})")

    def own_forms(self) -> dict[int, str]:
        return {**super().own_forms(), **self.following}

    def extra_argument(self, name: str) -> str:
        return name if name == FOLLOWING else super().extra_argument(name)

    def formula_doc(self) -> str:
        return "The chain, on one vector of each operand."

    def extent_source(self, group: int) -> str:
        """The kernel's text for a group's size: outputs first, then inputs that are always present."""
        found = self.extent_in((*self.spec.outputs, *self.spec.inputs), group)
        assert found, f"no array has group {group}"
        return found

    def extents(self) -> str:
        """The sizes of the outputs along each group: the first one's shape, or one by one if it has parts."""
        every = tuple(range(len(self.groups)))
        first = self.spec.outputs[0]
        if every and self.plan.view(first.name).tokens == every:
            return f"{self.tensors[first.name]}.shape"
        return tuple_text(map(self.extent_source, every))

    def size_text(self, group: int) -> str:
        """A group's size, if the chain uses it."""
        return self.extent_source(group)

    def size_of(self, access: Access) -> str:
        """The size of a group, or of an axis that only a table has."""
        if access.counted:
            return self.table_size(access.counted)
        assert access.group is not None
        return self.size_text(access.group)

    def used_axes(self) -> str:
        """The axes whose positions the kernel needs, by the names of their coordinates."""
        used: set[int | str | None] = {a.group for a in self.plan.loads if a.mode == "index"}
        for access in (*self.plan.loads, *self.plan.stores):
            if access.mode not in ("flat", "size", "index", "table"):
                used |= set(access.tokens)
                used |= set(self.plan.view(access.index_of[0]).tokens) if access.index_of else set()
        if not used & set(range(len(self.groups))):
            return ""
        return listed(g.coordinate if i in used else "_" for i, g in enumerate(self.groups))

    def settings(self, chain: Chain) -> list[str]:
        lines = []
        if self.wide and (self.needs_compute(chain)):
            lines.append(self.compute_line())
        lines += self.flag_lines(chain.extra)
        if FOLLOWING in chain.extra:
            lines.append(f"{FOLLOWING} = {self.in_order}")
        for number, array in enumerate(self.plan.tables if self.holds_tables else ()):
            lines.append(f"{self.table(array)} = flat.held(how, {number}, {self.tensors[array.name]})")
        return lines

    def table(self, array: Array) -> str:
        """The name of a table that computed indices read, which may be in shared memory."""
        return f"s{camel(array.name)}" if self.holds_tables else self.tensors[array.name]

    def needs_compute(self, chain: Chain) -> bool:
        return any("compute" in text for text in (*chain.arguments, *chain.cute, *self.loads()))

    # Fragments: one for each access, shared by interleaved parts

    def fragment(self, access: Access) -> str:
        if access.array is not None and access.mode == "flat" and access.array.parts:
            return f"r{camel(access.array.name)}"
        return f"r{camel(access.name)}"

    def at(self, access: Access, suffix: str, last: str | None = None) -> str:
        """The coordinates of an access; `last` replaces the innermost one, also where an index is read."""
        words: list[str] = []

        def coordinate(group: int) -> str:
            innermost = last is not None and group == len(self.groups) - 1
            return str(last) if innermost else self.groups[group].coordinate + suffix

        for mode, token in enumerate(access.tokens):
            if token == "parts":
                words.append(str(access.part))
            elif isinstance(token, int):
                words.append(coordinate(token))
            else:
                assert access.index_of and access.array
                index, _ = access.index_of
                tokens = self.plan.view(index).tokens
                where = ", ".join(coordinate(t) for t in tokens if isinstance(t, int)) or "0"
                table = self.tensors[access.array.name]
                words.append(f"device.clip_index({self.tensors[index]}[{where}], {table}.shape[{mode}])")
        return ", ".join(words) or "0"

    def element(self, array: Array, where: str) -> str:
        """One element of an array in global memory."""
        return f"{self.tensors[array.name]}[{where}]"

    def loads_of(self, accesses: Iterable[Access]) -> dict[str, str]:
        """The operands of `Flat.load` for some accesses, by the names of their registers."""
        return {self.fragment(a): self.operand(a) for a in accesses if a.mode not in ("size", "table")}

    def loads(self) -> list[str]:
        """The loads of a vector, in the order of the registers' names."""
        return list(self.loads_of(self.plan.loads).values())

    def loaded(self) -> str:
        return listed(self.loads_of(self.plan.loads))

    def operand(self, access: Access) -> str:
        """An access as an argument of `Flat.load`."""
        if access.array is None:
            assert access.group is not None
            return self.groups[access.group].coordinate
        tensor, words = self.tensors[access.array.name], []
        if access.mode != "flat":
            words.append(self.place_of(access))
        elif access.array.parts:
            words.append(f"parts={access.array.parts}")
        words += self.default_words(access.array)
        return f"flat.read({', '.join([tensor, *words])})" if words else tensor

    def place_of(self, access: Access) -> str:
        """The position of an access: an entry for each mode."""

        def entry(token: int | str) -> str:
            if token == "parts":
                return str(access.part)
            if isinstance(token, int):
                coordinate, back = self.groups[token].coordinate, dict(access.back)
                by = sum(back.get(axis, 0) for axis in self.groups[token].axes)
                return f"flat.back({coordinate}, {by})" if by else coordinate
            if not access.index_of:
                return self.place_on(token)
            index = access.index_of[0]
            own = [self.groups[t].coordinate for t in self.plan.view(index).tokens if isinstance(t, int)]
            return f"flat.pick({self.tensors[index]}, {tuple_text(own or ['0'])})"

        return tuple_text([entry(token) for token in access.tokens] or ["0"])

    def place_on(self, axis: str) -> str:
        """The position along an axis of an array that no group has, and no index reads."""
        raise AssertionError(f"no position along {axis}")

    def chain_arguments(self) -> list[str]:
        texts: dict[str, str] = {}
        for access in self.plan.loads:
            if access.mode == "size":
                texts[access.name] = full(self.width, self.size_of(access), f"cutlass.{self.integer}")
                continue
            if access.mode == "table":
                assert access.array is not None
                texts[access.name] = self.table(access.array)
                continue
            name = self.fragment(access)
            if access.array is None:
                texts[access.name] = f"{name}.load().to(cutlass.{self.integer})"
            else:
                texts[access.name] = self.as_computed(self.loaded_part(access), access.array)
        return [*texts.values(), *map(self.parameter_vector, self.spec.params)]

    def parameter_vector(self, p: Param) -> str:
        """A parameter as a vector."""
        return full(self.width, self.parameter_text(p), self.type_of(p.kind))

    def loaded_part(self, access: Access) -> str:
        """The text of the vector of an access, in its array's type."""
        parts = access.mode == "flat" and access.array is not None and access.array.parts
        return f"{self.fragment(access)}[{access.part}, None].load()" if parts else f"{self.fragment(access)}.load()"

    def stores(self) -> list[str]:
        """The lines that write the vector's results, in the order of the outputs."""
        return self.stores_of(self.plan.stores)

    def stores_of(self, written: Iterable[Access]) -> list[str]:
        """The lines that write some of them."""
        lines: dict[str, list[str]] = {}
        for access in written:
            assert access.array is not None
            parts = [access]
            if access.mode == "flat" and access.array.parts:  # they go together
                parts = [a for a in self.plan.stores if a.array is access.array]
            dtype = f"{self.tensors[access.array.name]}.element_type"
            values = [self.converted(a).format(a.name, dtype) for a in parts]
            lines[self.fragment(access)] = self.store(access, values[0] if len(values) == 1 else tuple_text(values))
        return [line for own in lines.values() for line in own]

    def store(self, access: Access, value: str) -> list[str]:
        """The lines that write a value, or one for each of interleaved parts."""
        assert access.array is not None
        name, tensor = self.fragment(access), self.tensors[access.array.name]
        if access.mode == "flat":
            return [f"at.store({value}, {tensor})"]
        if access.into:
            how = "" if access.how == "set" else f', "{access.how}"'
            return [f"at.put({value}, {tensor}, {self.place_of(access)}{how})"]
        return [f"{name}.store({value})", f"at.store_at({name}, {tensor}, {self.place_of(access)})"]

    def ragged_stores(self) -> list[str]:
        return [
            f"({self.fragment(a)}, {self.tensors[a.array.name]}, {self.place_of(a)})"
            for a in self.plan.stores
            if a.mode != "flat" and a.array is not None and not a.into
        ]

    def registers(self, access: Access) -> str:
        """The line that makes the registers of an output that is not written from the vector's first position."""
        assert access.array is not None
        return f"{self.fragment(access)} = access.registers({self.tensors[access.array.name]}, (how.vec,))"


class NeighboursContext(ElementwiseContext):
    """The values of the template of kernels whose rows read several neighbours, or share expensive values. A thread has
    vectors of several rows, and loads shared values once."""

    template = "neighbours.py.jinja"

    def shown(self) -> ElementwiseKernel:
        used = [a for a in self.plan.loads if a.name in self.chain().params]
        near = [a for v in self.plan.nearby for _, a in v.operands]
        steady = self.loads_of(a for a in (*used, *near) if self.is_steady(a))
        loads = self.loads_of(a for a in used if not self.is_steady(a))
        return replace(
            super().shown(),
            nearby=tuple(map(self.near, self.plan.nearby)),
            vector=f"flat.vectors(how, {self.extents()})",
            loads=list(loads.values()),
            loaded=tuple_text(loads),
            steady=tuple(steady.values()),
            steady_loaded=listed(steady),
        )

    def chain(self) -> Chain:
        chain = super().chain()
        if not self.plan.nearby:
            return chain
        names = {id(n): name for value in self.plan.nearby for n, _, name in value.uses}
        dialect = replace(self.dialect, given={**self.dialect.given, **names})
        outputs = {o.name for o in self.spec.outputs}
        values = [s.value for s in self.statements if s.name in outputs]
        lines, _ = emit.emit_values(self.statements, self.target_names(), dialect, values)
        arguments = dict(zip(chain.params, chain.arguments, strict=True))
        for value in self.plan.nearby:
            arguments |= {name: f"{value.name}[{row_text(-back)}]" for name, back in value.places.items()}
        used = [n for n in arguments if self.mentions(lines, n)]
        return replace(chain, params=used, cute=lines, arguments=[arguments[n] for n in used])

    def near(self, value: Nearby) -> NearValues:
        """How a thread computes such a value for all of its rows."""
        moved = {emit.leaf_key(n): a.name for n, a in value.operands}
        dialect = replace(self.dialect, leaves={**self.leaves(), **moved})
        lines, results = emit.emit_values(self.statements, self.target_names(), dialect, [value.value])
        own = {a.name: a for _, a in value.operands}
        texts = {n: self.as_computed(self.loaded_part(a), a.array) for n, a in own.items() if a.array is not None}
        texts |= {p.name: self.parameter_vector(p) for p in self.spec.params}
        texts |= {n: self.extra_argument(n) for n in self.extra_names()}
        params = [n for n in texts if self.mentions([*lines, *results], n)]
        loads = self.loads_of(own[n] for n in params if n in own and not self.is_steady(own[n]))
        doc = f"{value.name.removeprefix('near_')}, on one vector of each operand: neighbouring rows need it."
        return NearValues(
            function=Function(f"{self.spec.op}_{value.name}", doc, params, lines, results),
            name=value.name,
            rows=f"r{camel(value.name)}",
            places=", ".join(map(str, value.places.values())),
            loads=tuple(loads.values()),
            loaded=tuple_text(loads),
            arguments=[texts[n] for n in params],
        )

    def is_steady(self, access: Access) -> bool:
        """Whether all rows read the same elements of an array."""
        apart = range(1 if self.plan.repeats == "outer" else len(self.groups) - 1)
        return access.array is not None and not access.index_of and not {*access.tokens} & {*apart}


def row_text(by: int) -> str:
    """The number of the row so many rows further on."""
    return f"row + {by}" if by > 0 else f"row - {-by}" if by else "row"
