"""Attention's kernel: prepares the values of `templates/attention.py.jinja`."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import replace

from codegen.autodiff.attention.exponentials import term_of
from codegen.graph import emit
from codegen.graph.names import fresh
from codegen.graph.nodes import Node
from codegen.graph.positions import added, multiples, rises
from codegen.graph.precision import linear_terms
from codegen.language.reference import Reference
from codegen.plan.access import Access, access_key
from codegen.plan.attention import Attention, AttentionBackward, Part
from codegen.plan.elementwise import Elementwise
from codegen.plan.op import Op
from codegen.plan.scales import Bend, Scale
from codegen.render.common import Context, listed, place_text, tuple_text
from codegen.render.elementwise import ElementwiseContext
from codegen.render.records import AttentionKernel, Chain, PartFunction, TileFunction
from codegen.spec.spec import Array

# Operations on bounds, by the operation of a condition
BOUNDED = {n: n for n in ("add", "sub", "neg", "mul", "minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne")}
BOUNDED |= {"and": "both", "or": "either", "not": "inverse", "abs": "magnitude"}


class TiledContext(Context):
    """The values of both templates: of attention, and of its gradients."""

    plan: Attention | AttentionBackward

    def xla(self) -> None:
        """The jnp form, which evaluates the graph."""
        return None

    @property
    def others(self) -> list[str]:
        """The tensors that the generated functions take: all but q, k and v."""
        return self.tensors_but(self.plan.factors)

    def tensors_but(self, taken: tuple[Array, ...]) -> list[str]:
        """The tensors except those of some arrays. One of these stays if no other array has an axis whose size a part
        uses."""
        parts = [p.plan for p in vars(self.plan).values() if isinstance(p, Part)]
        for axis in [x for p in parts for x in p.sized if x not in (self.plan.row, *self.plan.keys)]:
            having = [a for a in self.spec.arrays if axis in a.axes and a.default is None]
            taken = taken if {*having} - {*taken} else tuple(a for a in taken if a != having[0])
        return [t.name for t in self.tensor_lines() if t.name not in {self.tensors[a.name] for a in taken}]

    @property
    def inputs(self) -> set[str]:
        """The inputs that they read from memory."""
        return {a.name for a in self.spec.inputs}

    @property
    def batch(self) -> tuple[str, ...]:
        """The axes of the batch, the innermost first."""
        return self.plan.batch[::-1]

    def mode(self, array: Array, axis: str) -> int | None:
        """The mode of a tensor that is an axis; None if it lacks the axis."""
        tokens = self.plan.view(array.name).tokens
        place = next(i for i, g in enumerate(self.plan.groups) if g.axes == (axis,))
        return tokens.index(place) if place in tokens else None

    def arranged(self, array: Array, row: str, function: str = "arranged", *more: str) -> str:
        return self.with_modes(array, function, *(self.mode(array, axis) for axis in (row, *more)))

    def with_modes(self, array: Array, function: str, *found: int | None) -> str:
        modes = tuple_text(str(self.mode(array, axis)) for axis in self.batch) if self.batch else "(None,)"
        others = "".join(f", {mode}" for mode in found)
        return f"attend.{function}({self.tensors[array.name]}, sizes, {modes}{others})"

    def sizes(self, q: Array) -> str:
        """The sizes of the batch's axes."""
        modes = [f"{self.tensors[q.name]}.shape[{self.mode(q, axis)}]" for axis in self.batch]
        return tuple_text(modes) if modes else "(1,)"

    def bound(self, names: list[str]) -> list[str]:
        """Functions with their static parameters."""
        bound = ", ".join(f"{p.constant}={p.constant}" for p in self.static)
        return [f"functools.partial({n}, {bound})" if bound and n != "None" else n for n in names]

    @property
    def static_hints(self) -> str:
        return "".join(f", {p.constant}: {p.kind}" for p in self.static)

    def bend(self, bend: Bend | None) -> str:
        """The text of the argument that says of which numbers the scores are tangents, with a comma before it. Empty if
        they are not tangents."""
        if bend is None:
            return ""
        names = {p.name: p.constant for p in self.spec.params}
        texts = [[names[x] if isinstance(x, str) else emit.literal(x) for x in side] for side in vars(bend).values()]
        return f", bend=attend.bend({', '.join(tuple_text(t) if t else '()' for t in texts)})"

    def tiles(self) -> TileFunction | None:
        """The bounds of the mask's condition; None without a mask."""
        if self.plan.condition is None:
            return None
        score = PartContext(self, self.plan.scores)
        text = score.bounds(self.plan.condition)
        return TileFunction(score.coordinates([text]), text)


class AttentionContext(TiledContext):
    """The values of the module of attention."""

    template = "attention.py.jinja"
    plan: Attention

    def kernel(self) -> AttentionKernel:
        plan, op = self.plan, self.spec.op
        parts = [p for p in (plan.scores, plan.unmasked, plan.weight, plan.rows_part) if p is not None]
        contexts = [PartContext(self, part, part is plan.rows_part) for part in parts]
        score, row = contexts[0], contexts[-1] if plan.rows_part is not None else None
        weight = contexts[-2] if plan.weight is not None else None
        full = contexts[1] if plan.unmasked is not None else None
        tiles = self.tiles()
        names = [f"{op}_score", f"{op}_tiles" if tiles else "None", f"{op}_row" if row else "None"]
        return AttentionKernel(
            chains=[c.named_chain() for c in contexts],
            product=score.given()[0],
            static=self.static_hints,
            score=score.function([full] if full else []),
            full=full.function([]) if full else None,
            tiles=tiles,
            row=row.function([]) if row else None,
            weight=weight.function([]) if weight else None,
            output=plan.o.name,
            value=plan.value,
            sizes=self.sizes(plan.q),
            batch=", ".join(self.batch) or "no batch",
            factors=[
                self.arranged(plan.q, plan.row), self.walked(plan.k), self.walked(plan.v), self.arranged(plan.o, plan.row),
            ],
            weigh=self.bound([f"{op}_weight"]) if weight else [],
            pages=[self.arranged(p.index, plan.keys[0], "by_row") for p in plan.pages],
            others=self.others,
            functions=self.bound(names),
            scale=self.scale(plan.scale) + self.bend(plan.bend) + ", exponential=False" * (not plan.exponential)
            + ", shifts=True" * ((full or score).shifted is not None),
        )  # fmt: skip

    def walked(self, array: Array) -> str:
        """The text of k or v as the main loop takes it."""
        found = next((p for p in self.plan.pages if p.table == array), None)
        if found is None:
            return self.arranged(array, self.plan.column)
        modes = self.plan.view(array.name).tokens
        place = modes.index(found.axis)
        row = self.mode(array, self.plan.keys[1]) if len(self.plan.keys) > 1 else None
        return self.with_modes(array, "in_pages", place, row)

    def scale(self, scale: Scale) -> str:
        """The text of the argument with the scores' scale, after other arguments; nothing if it is 1."""
        names = {p.name: p.constant for p in self.spec.params}
        above = [f"abs({names[n]})" for n in scale.above]
        if scale.number != 1 or (scale.below and not above):
            above.insert(0, emit.literal(scale.number))
        text = " / ".join([" * ".join(above), *(f"abs({names[n]})" for n in scale.below)])
        return f", scale={text}" if text else ""


class PartContext(ElementwiseContext):
    """The values of the template for a part of the chain: the scores of a row's vector, or the function of rows."""

    holds_tables = False

    template = "attention.py.jinja"
    width = "at.vec"

    def __init__(self, whole: TiledContext, part: Part, of_rows: bool = False):
        self.whole, self.attention, self.part, self.of_rows = whole, whole.plan, part, of_rows
        super().__init__(Op(part.spec, part.statements, Reference(()), part.plan))
        self.static = [p for p in self.spec.params if p.static]
        self.accs = [a for a in part.plan.loads if self.is_given(a)]
        self.leaf_names |= {access_key(part.plan, a): a.name for a in self.accs}

    def given(self) -> list[str]:
        """The inputs that the main loop computes: the products, or a row's largest score and sum."""
        return [a.name for a in self.spec.inputs if a.name not in self.whole.inputs]

    def is_given(self, access: Access) -> bool:
        return access.array is not None and access.array.name in self.given()

    def planned(self, op: Op) -> Elementwise:
        del op
        read = self.whole.inputs
        own = tuple(a for a in self.part.plan.loads if a.array is None or a.array.name in read)
        return replace(self.part.plan, loads=own)

    def in_registers(self) -> frozenset[str]:
        """The arrays of the part that are not tensors of the op."""
        own = self.whole.inputs | {a.name for a in self.whole.spec.outputs}
        return frozenset(a.name for a in self.spec.arrays if a.name not in own)

    def asking(self) -> tuple[Array, ...]:
        """Scores need the precision of the weights, which are rounded to the type of the products."""
        plan, own = self.attention, self.in_registers()
        dtype = plan.products[1].a.dtype if isinstance(plan, Attention) else plan.v.dtype
        return tuple(replace(a, dtype=dtype) if a.name in own else a for a in super().asking())

    def extra_argument(self, name: str) -> str:
        if name in dict(self.spec.types):
            arrays = self.whole.spec.outputs + self.whole.spec.inputs
            factors = {a.name for a in self.attention.factors}
            array = next(a for a in arrays if a.dtype == name and a.default is None and a.name not in factors)
            return f"{self.whole.tensors[array.name]}.element_type"
        return super().extra_argument(name)

    # The chain

    @functools.cached_property
    def dialect(self) -> emit.Dialect:
        return replace(super().dialect, contracts=isinstance(self.attention, AttentionBackward))

    def own_forms(self) -> dict[int, str]:
        """The text of three kinds of floats: distances; weights that are computed again; and hyperbolic tangents in
        scores that are exponents, unless the hardware computes these."""
        plan, apart, shifted = self.attention, self.distances, self.shifted
        lines = {id(n.args[place]) for n, place in self.products}
        found = {id(n): f"attend.multiples({{{place}}}, {{{1 - place}}})" for n, place in self.products}
        if shifted:
            root, (place, sign) = self.root, shifted
            found[id(root.args[place])] = found[id(root.args[place])].replace("multiples", "rising")
            found[id(root)] = f"attend.shifted({{{1 - place}}}, {{{place}}}{', -1.0' * (sign < 0)})"
        for key, rise in apart.items():
            name = "line" if key in lines else "floats"
            found[key] = f"attend.{name}({{0}}, {rise}.0 * {self.more['at.steps()']})"
        if isinstance(plan, AttentionBackward):
            terms = [n for n in self.nodes if (term := term_of(n, plan.column)) and plan.column not in term[1].dims]
            found |= dict.fromkeys(map(id, terms), "device.exp_term({0}, {approx})")
            near = self.more.get("at.near")
            tangents = [n for n in self.nodes if n.op == "tanh" and near]
            return found | dict.fromkeys(map(id, tangents), f"attend.tanh({{0}}, {{approx}}, {near})")
        exponents = plan.rows_part is not None and plan.exponential and self.part in (plan.scores, plan.unmasked)
        if self.spec.math == "fast" or not exponents:
            return found
        tangents = linear_terms(self.nodes, [s.value for s in self.statements], "tanh")
        return found | dict.fromkeys(map(id, tangents), "device.tanh_term({0}, {approx})")

    @functools.cached_property
    def root(self) -> Node:
        """The value of the part's first output."""
        return next(s.value for s in self.statements if s.name == self.spec.outputs[0].name)

    @functools.cached_property
    def products(self) -> list[tuple[Node, int]]:
        """The products of a distance and a value of the row, each with the place of the distance among its arguments (`multiples`)."""
        apart = self.distances
        return multiples(self.nodes, self.attention.column, apart, self.rounding.products) if apart else []

    @functools.cached_property
    def shifted(self) -> tuple[int, int] | None:
        """Where scores that are exponents have these `added` last, and with which sign."""
        plan = self.attention
        exponents = isinstance(plan, Attention) and plan.exponential and self.part in (plan.scores, plan.unmasked)
        uses = Counter(id(a) for n in self.nodes for a in n.args)
        return added(self.root, [n for n, _ in self.products if uses[id(n)] == 1]) if exponents else None

    @functools.cached_property
    def distances(self) -> dict[int, int]:
        """How much each integer that becomes a float rises from one column to the next, by identity, where that is a constant."""
        if self.of_rows or len(self.attention.keys) > 1:
            return {}
        found = rises(self.nodes, self.attention.column)
        return {id(n): found[id(n)] for n in self.nodes if n.op == "float" and found.get(id(n))}

    @functools.cached_property
    def more(self) -> dict[str, str]:
        """The texts of further arguments of the chain, and their names there. They are the columns' distances from the
        first column, and whether the scores are tangents of numbers near 0, which a kernel of gradients tests for each
        tile."""
        plan, taken = self.attention, {*self.given(), *super().vector_names(), *(s.name for s in self.statements)}
        near = isinstance(plan, AttentionBackward) and plan.bend is not None and self.spec.math == "auto"
        found = {"at.steps()": ("steps", self.distances), "at.near": ("near", near)}
        return {text: fresh(taken, name) for text, (name, is_needed) in found.items() if is_needed}

    def named_chain(self) -> Chain:
        """The chain, with a name of its own where several stages are attention."""
        return replace(self.chain(), name=f"{self.whole.spec.op}_{self.part.called}_chain")

    def vector_names(self) -> list[str]:
        return [*self.given(), *super().vector_names(), *self.more.values()]

    def like(self) -> str:
        return self.given()[0]

    @property
    def statistics(self) -> dict[str, str]:
        """The variables of a row's statistics, by array. No array and no coordinate has such a name."""
        arrays = self.attention.statistics if isinstance(self.attention, AttentionBackward) else ()
        return {a.name: f"r{self.whole.tensors[a.name][1:]}" for a in arrays}

    def chain_arguments(self) -> list[str]:
        given = [self.statistics.get(name, name) for name in self.given()]
        return [*given, *super().chain_arguments(), *self.more]

    def size_text(self, group: int) -> str:
        return self.table_size(self.groups[group].axes[0])

    def table_size(self, axis: str) -> str:
        whole, place = self.whole, next(i for i, g in enumerate(self.attention.groups) if g.axes == (axis,))
        given = [a for a in (*whole.spec.outputs, *whole.spec.inputs) if whole.tensors[a.name] in whole.others]
        return self.sizes_of.get(axis) or whole.extent_in(given, place)

    @property
    def sizes_of(self) -> dict[str, str]:
        """The texts of the sizes of rows and columns."""
        columns = ["at.sizes[1]"] if len(self.attention.keys) == 1 else ["at.sizes[1] // at.page", "at.page"]
        return {self.attention.row: "at.sizes[0]", **dict(zip(self.attention.keys, columns, strict=True))}

    def of_columns(self, one: str) -> dict[str, str]:
        """The texts of the columns' positions along their axes; `one` where they are one axis."""
        found = [one] if len(self.attention.keys) == 1 else ["pages", "offsets"]
        return {axis: f"at.{name}" for axis, name in zip(self.attention.keys, found, strict=True)}

    # The function around it

    def function(self, others: list[PartContext]) -> PartFunction:
        """The function; the `others` are chains within it."""
        chain = self.named_chain()
        contexts = [self, *others]
        loads = {line: None for c in contexts for line in c.fragments()}
        settings = {line: None for c in contexts for line in c.settings(c.chain())}
        body = [*loads, *settings]
        stores = self.row_stores() if self.of_rows else []
        text = [*body, *stores, *(a for c in contexts for a in c.chain_arguments()), *chain.arguments]
        factor = next((a.name for a in self.spec.outputs if a.name in self.in_registers()), "")
        rows = [f"{name} = device.full(at.vec, statistics[{i}][0])" for i, name in enumerate(self.statistics.values())]
        return PartFunction(
            head=[*self.coordinates(text), *rows, *body],
            chain=chain,
            given=", ".join(self.given()),
            stores=stores,
            factor=factor,
        )

    def coordinates(self, text: list[str]) -> list[str]:
        """The lines that give the tensors and positions that some text uses."""

        def used(name: str) -> bool:
            return any(re.search(rf"\b{name}\b", line) for line in text)

        names = [n if used(n) else "_" for n in self.whole.others]
        lines = [f"{listed(names)} = tensors"] if any(n != "_" for n in names) else []
        batch = [g.coordinate for g in self.groups if g.axes[0] in self.attention.batch][::-1]
        batch = [n if used(n) else "_" for n in batch]
        if any(n != "_" for n in batch):
            lines.append(f"{listed(batch)} = at.batch")
        row = next(g.coordinate for g in self.groups if g.axes == (self.attention.row,))
        return [*lines, f"{row} = at.row"] if used(row) and "at.rows" not in " ".join(text) else lines

    def fragments(self) -> list[str]:
        """The lines that load what the chain reads."""
        found = {}
        for access in self.plan.loads:
            if access.mode not in ("size", "table"):
                found[self.fragment(access)] = self.loaded_text(access)
        return [f"{name} = {text}" for name, text in found.items()]

    def fragment(self, access: Access) -> str:
        return super().fragment(replace(access, mode="gather"))

    def loaded_part(self, access: Access) -> str:
        return f"{self.fragment(access)}.load()"

    def loaded_text(self, access: Access) -> str:
        columns = self.attention.keys
        if access.array is None:
            assert access.group is not None
            group = self.groups[access.group]
            positions = self.of_columns("positions").get(group.axes[0])
            return f"{positions}()" if positions else f"at.fill({group.coordinate})"
        array = access.array
        where = self.at(access, "")
        place = place_text(where)
        own = {g.axes[0]: g.coordinate for g in self.groups}
        last = ", ".join(own.get(axis, "_") for axis in columns)
        several = any(re.search(rf"\b{own[axis]}\b", where) for axis in columns if axis in own)
        words = [self.tensors[array.name], f"lambda {last}: {place}" if several else place]
        words += self.default_words(array)
        if access.index_of and {*columns} & {*self.plan.view(access.index_of[0]).array.axes}:
            words.append("indexed=True")
        return f"at.{'gather' if several else 'load_one'}({', '.join(words)})"

    # Where a mask holds

    def bounds(self, node: Node) -> str:
        """The bounds of a mask's condition over a tile, as an expression."""
        found = self.bounds_of(node)
        return found or "attend.bounds.UNKNOWN"

    def bounds_of(self, node: Node) -> str:
        """The bounds of a value over a tile; "" where nothing is known of a number."""
        if node.is_const:
            return f"attend.bounds.exact({emit.literal(node.attr)})" if node.kind != "bool" else ""
        if node.op == "param":
            param = next(p for p in self.spec.params if p.name == node.attr)
            return f"attend.bounds.exact({self.parameter_text(param)})" if param.kind != "bool" else ""
        if node.op in ("index", "size"):
            axis = str(node.attr)
            if axis in self.sizes_of:
                own = self.of_columns("columns").get(axis, "at.rows")
                return own if node.op == "index" else f"attend.bounds.exact({self.sizes_of[axis]})"
            group = next(g for g in self.groups if axis in g.axes)
            return f"attend.bounds.exact({group.coordinate})" if node.op == "index" else ""
        if node.op == "input" and node.kind == "int":
            return self.bounds_of_array(node)
        if node.op in ("floordiv", "mod"):
            divisor = node.args[1]
            value = self.bounds_of(node.args[0])
            known = value and divisor.is_const and int(str(divisor.attr)) > 0
            return f"attend.bounds.{node.op}({value}, {divisor.attr})" if known else ""
        if node.op not in BOUNDED:
            return "attend.bounds.UNKNOWN" if node.kind == "bool" else ""
        args = [self.bounds_of(a) for a in node.args]
        if "" in args:
            return "attend.bounds.UNKNOWN" if node.kind == "bool" else ""
        return f"attend.bounds.{BOUNDED[node.op]}({', '.join(args)})"

    def bounds_of_array(self, node: Node) -> str:
        access = next((a for a in self.plan.loads if access_key(self.plan, a) == ("input", node.attr)), None)
        if access is None or access.array is None or access.array.default is not None:
            return ""
        where, axes = self.at(access, ""), {*access.array.axes}
        place, tensor = place_text(where), self.tensors[access.array.name]
        along = axes & {*self.sizes_of}
        if len(along) > 1:
            return ""
        if not along:
            return f"attend.bounds.exact(cutlass.Int32({tensor}[{place}]))"
        (axis,) = along
        group = next(g for g in self.groups if g.axes == (axis,))
        positions = self.of_columns("columns").get(axis, "at.rows")
        return f"at.over({tensor}, lambda {group.coordinate}: {place}, {positions})"

    def row_stores(self) -> list[str]:
        own, lines = self.in_registers(), []
        for access in self.plan.stores:
            assert access.array is not None
            if access.array.name not in own:
                tensor = self.tensors[access.array.name]
                value = self.converted(access).format(access.name, f"{tensor}.element_type")
                where = self.at(access, "")
                lines.append(f"at.store({value}, {tensor}, {place_text(where)})")
        return lines
