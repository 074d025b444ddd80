"""An op's backward as a spec of its own, made graph to graph.

`adjoints.py` differentiates. Here the values are chosen that the forward saves. `language/transfer.py` makes the backward's spec, and
`backward.py` plans it like any other op.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from codegen.autodiff.adjoints import Adjoints, Taken
from codegen.autodiff.factors import saved_type
from codegen.autodiff.quotients import cheaper
from codegen.autodiff.scans import with_states_before
from codegen.errors import UserError
from codegen.graph.contraction import is_definite, marks, meetings
from codegen.graph.names import fresh
from codegen.graph.nodes import DTYPES, ROWS, Leaf, Node, Statement, lost_axes, nodes_of, put_inputs, topological
from codegen.graph.ops import REDUCTIONS, SELECTIONS
from codegen.graph.precision import deciding_types
from codegen.graph.ranges import ranges
from codegen.language.chain import output_parts
from codegen.language.formula.reader import Reader
from codegen.language.statements import MAX_STATEMENTS, read_lines
from codegen.language.transfer import Values, derived_spec, extended_spec
from codegen.spec.spec import Array, Axis, Spec, types_of
from codegen.stages.products import shared

# The results of these operations have about the relative error of an argument
NARROW = {"uint8": 255, "uint16": 65535}  # types of an index that stays below, with room for what rounding adds
PROPORTIONAL = {"mul", "div", "neg", "abs", "reciprocal", "square", "sqrt", "rsqrt", "sum", "mean", "float"}


@dataclass(frozen=True)
class Scattered:
    """An output of a backward that is the gradient of a `take`'s result. It is added by index, along an axis, to the gradient of
    the table or of one of its parts. The index is an input of the op, or another output of the backward."""

    output: str
    table: str
    part: int | None
    index: str
    axis: str
    divided: tuple[str, ...] = ()  # axes of the index: the output is divided by their sizes first


@dataclass(frozen=True)
class Backward:
    """An op's backward: its `spec`, and the names of the op's arrays in it.

    It takes the `cotangents` of floating outputs, values that the forward saves, and inputs. Its outputs are the `gradients` of
    the floating inputs and dynamic parameters that an output depends on. If the forward saves more than its outputs, `forward`
    is the op with the other values as further outputs.
    """

    spec: Spec
    forward: Spec | None
    cotangents: tuple[tuple[str, str], ...]  # (y, dy)
    saved: tuple[str, ...]  # the outputs and values of the chain that it takes
    inputs: tuple[str, ...]  # the inputs of the op that it takes
    gradients: tuple[tuple[str, str], ...]  # (x, dx) for each output; a table may have several, which are added up
    scattered: tuple[Scattered, ...] = ()  # the outputs that are gradients of a `take`'s result
    same: tuple[tuple[str, Array], ...] = ()  # (x, the cotangent or the output that is also the gradient of x)
    passed: tuple[tuple[str, str], ...] = ()  # (an output of `scattered`, the cotangent that is added in its place)


@dataclass(frozen=True)
class Saved:
    """The values that a backward takes, by name: all of them, and those that only the forward with more outputs writes."""

    values: dict[str, Node]
    more: dict[str, Node]


class Reverse(Adjoints):
    """The derivative of a checked spec, and the backwards that compute it. They differ in the values that the forward saves.

    `dtype` is the type of saved values. If it is not float32, the backward's inputs are rounded to it, but the forward had them in
    more bits. So the backward does not take statistics from outputs, since they are not statistics of the rounded inputs. With
    `by_index`, the gradients of all tables are added up by index, also if each index selects from its own row. `held` are the
    values, by name, that the op's stages write in any case, and `constant` values are not differentiated. Raises `UserError` if
    there is no derivative that kernels can compute.
    """

    def __init__(
        self,
        spec: Spec,
        dtype: str = "float32",
        by_index: bool = False,
        held: Iterable[tuple[str, Node]] = (),
        constant: Collection[int] = frozenset(),
        taken: Collection[str] = (),
    ):
        super().__init__(spec, by_index, held, constant, taken)
        self.dtype, self.save = dtype, spec.save
        self.saved_type = spec.compute if dtype == "float32" else dtype
        self.from_stages = False  # whether the op's stages write all that is saved, without rounding
        self.places: dict[int, Array] = {}  # the outputs that are computed indices, by the identity of their values
        self.results, self.assigned = self.outputs(self.gradients() | self.written_formulas())
        self.known = frozenset(self.taken)

    def backward(self, chosen: Saved) -> Backward:
        """The backward that takes the values that `saved_for` chose last. Raises `UserError` if kernels cannot compute it."""
        outputs, assigned, saved = self.results, self.assigned, chosen.values
        self.from_stages = {name for name in saved if name not in self.made} <= self.held.keys()
        leaves = {id(node): Leaf(name) for name, node in saved.items()}
        for name in saved:  # what was rounded to a saved factor is read from it
            if (factor := self.held_factor(name)) is not None:
                leaves[id(factor.args[0])] = Leaf(name)
        assigned = with_states_before(assigned, leaves, self.graph)
        held = self.pinned(assigned, saved, [output for _, output, _ in outputs])
        again = [n for n in topological(s.value for s in (*self.statements, *assigned)) if id(n) in held]
        assigned = cheaper(self.graph, assigned, leaves, again)
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        used = {n.attr.name for n in nodes if isinstance(n.attr, Leaf)} | set(saved) | put_inputs(assigned)
        params = tuple(p for p in self.spec.params if any(n.op == "param" and n.attr == p.name for n in nodes))
        inputs = [a for a in self.cotangents.values() if a.name in used]
        more = self.extra_outputs(saved)
        kept = [a for a in self.spec.outputs if a.name in used] + more
        inputs += kept
        axes = {axis for _, output, _ in outputs for axis in output.axes}
        inputs += self.spec.inputs_for(used, inputs, axes | {str(n.attr) for n in nodes if n.op == "size"})
        pinned = self.pinned(assigned, saved, [output for _, output, _ in outputs])
        values = Values(tuple(assigned), self.calls, self.named, leaves, pinned=pinned)
        spec = replace(
            self.spec, op=f"{self.spec.op}_backward", summary=f"The gradients of {self.spec.op}.",
            inputs=tuple(inputs), outputs=(*(output for _, output, _ in outputs), *self.places.values()), params=params,
            grad="none", aliases=(), save=(), tolerance=(), domain=(), schedule=(), bench=(),
        )  # fmt: skip
        spec = derived_spec(spec, f"{self.spec.path} (backward)", values, self.taken)
        if len(spec.read.statements) > MAX_STATEMENTS:
            raise UserError(f"the backward has more than {MAX_STATEMENTS} statements")
        forward = None
        if not self.from_stages:
            forward = replace(
                self.spec, op=f"{self.spec.op}_forward", outputs=(*self.spec.outputs, *more), grad="none",
                save=(), for_backward=tuple(chosen.more), bench=(),
            )  # fmt: skip
            named = {s.name for s in self.statements}
            unnamed = [Statement(name, None, value) for name, value in saved.items() if name not in named]
            forward = extended_spec(forward, self.spec, unnamed, self.graph, self.taken)
        return Backward(
            spec,
            forward,
            tuple((y, a.name) for y, a in self.cotangents.items() if a.name in used),
            tuple(a.name for a in kept),
            tuple(a.name for a in inputs if a in self.spec.inputs),
            tuple((name, output.name) for name, output, _ in outputs),
            tuple(
                Scattered(output.name, name, taken.part, self.index_of(taken), taken.axis, taken.divided)
                for name, output, taken in outputs
                if taken is not None
            ),
        )

    def saved_for(self, statistics: str | None = None, save: tuple[str, ...] | None = None) -> Saved:
        """The values that a backward takes: the values in `save`, or in the spec's own `save` if None, and outputs. The
        forward may also save `statistics` of "rows" or of "columns" for it, or those that it has "held". Raises `UserError` if
        nothing is to be differentiated."""
        assigned = self.assigned
        self.taken, self.save = set(self.known), self.spec.save if save is None else save
        if not assigned:
            raise UserError("no output varies with an input that has a derivative")
        saved = self.saved(assigned)
        ways = {
            "rows": self.statistics,
            "columns": self.column_statistics,
            "held": self.held_statistics,
            "products": self.products,
            "products and held": self.products_and_held,
        }
        more = ways[statistics](assigned, saved) if statistics and not self.save else {}
        found = saved | more
        found |= self.positions(assigned, found)
        leaves = {id(node) for node in found.values()}  # behind a position there may be what nothing else needs
        reached = {id(n) for n in topological((s.value for s in assigned), lambda n: id(n) in leaves)}

        def needed(name: str, node: Node) -> bool:
            factor = self.held_factor(name)
            return id(node) in reached or (factor is not None and id(factor.args[0]) in reached)

        unneeded = {name for name, node in more.items() if name not in saved and not needed(name, node)}
        return Saved(*({n: v for n, v in values.items() if n not in unneeded} for values in (found, more)))

    def pinned(
        self, assigned: list[Statement], saved: Mapping[str, Node], gradients: Iterable[Array]
    ) -> dict[int, tuple[str, ...]]:
        """The values that are used with a statistic of themselves that the forward saves. The backward computes them with the same
        bits as the forward (`contraction.marks`)."""
        behind = {id(n) for n in topological(saved.values())}
        nodes = list(topological(s.value for s in (*self.statements, *assigned)))
        values = [value for value, _ in meetings(nodes, behind)]
        read, variables = self.spec.float_types(self.spec.inputs), dict(self.spec.types)
        first = deciding_types(self.statements, self.spec.asked_types, read, variables)
        made = types_of(self.spec.outputs)
        held = {id(node): made.get(name, self.dtype_saved(node)) for name, node in saved.items()}
        read |= types_of(self.cotangents.values())
        return marks(values, first, deciding_types(assigned, types_of(gradients), read, variables, held))

    def written_formulas(self) -> dict[tuple[str, int | None], Node]:
        """The gradients that are formulas of the spec."""
        arrays = {a.name: a for a in self.spec.outputs} | {a.name: a for a in self.cotangents.values()}
        self.scope.inputs |= arrays
        found = {}
        for name, scalar in self.formulas.items():
            (line, *_), _ = read_lines(scalar)
            assert isinstance(line.tree, ast.Expr)
            array, _, part = name.partition("[")
            found[array, int(part[:-1]) if part else None] = Reader(self.scope)(line.tree.value)
        return found

    def outputs(
        self, found: Mapping[tuple[str, int | None], Node]
    ) -> tuple[list[tuple[str, Array, Taken | None]], list[Statement]]:
        """The outputs of the backward, and the statements that assign them. There is one for the gradient of each input and
        parameter, unless that is zero, and one for each `take` from an input. Each output has the name of the input or parameter.
        Computed indices are assigned to further outputs, `places`."""
        outputs: list[tuple[str, Array, Taken | None]] = []
        assigned = []
        params = [Array(p.name, self.spec.compute, ()) for p in self.spec.params if (p.name, None) in found]
        for array in (*self.spec.inputs, *params):
            taken_from = self.taken_from.get(array.name, [])
            if at := self.put_into(array.name):
                gradient = replace(array, name=fresh(self.taken, f"d{array.name}"), span=None)
                outputs.append((array.name, gradient, None))
                assigned.append(Statement(gradient.name, None, self.graph.const(0.0), at))
            if any((array.name, part) in found for part in output_parts(array)):
                gradient = replace(array, name=fresh(self.taken, f"d{array.name}"), default=None, span=None)
                if taken_from:  # the sum of all is rounded once
                    gradient = replace(gradient, dtype=self.spec.compute)
                outputs.append((array.name, gradient, None))
                for part in output_parts(array):
                    value = found.get((array.name, part)) or self.graph.const(0.0)
                    assigned.append(Statement(gradient.name, part, value))
            for taken in taken_from:
                taken, alike = self.of_alike(taken, array)
                every = tuple(Axis((a,), extents=(None,)) for a in taken.dims)
                dims = tuple(axis for axis in every if axis.names[0] not in alike)
                gradient = Array(fresh(self.taken, f"d{array.name}"), self.spec.compute, dims)
                outputs.append((array.name, gradient, taken))
                assigned.append(Statement(gradient.name, None, taken.adjoint))
                if isinstance(taken.index, Node) and id(taken.index) not in self.places:
                    place = self.places_of(taken.index, every)
                    self.places[id(taken.index)] = place
                    assigned.append(Statement(place.name, None, taken.index))
        return outputs, assigned

    def of_alike(self, taken: Taken, table: Array) -> tuple[Taken, set[str]]:
        """The axes of an index along which all elements that it took have one gradient, which is written once; and the gradient.
        The sizes of these axes, which a mean's gradient contains, are divided out: a kernel knows the sizes of its outputs
        alone."""
        own = taken.index.dims if isinstance(taken.index, Node) else self.spec.array(taken.index).axes
        alike = {*own} - {*table.axes, *taken.adjoint.dims, ROWS}
        adjoint, divided = taken.adjoint, list[str]()
        while adjoint.op == "div" and (found := _only_sizes(adjoint.args[1], alike)):
            adjoint, divided = adjoint.args[0], [*divided, *found]
        if any(n.op == "size" and n.attr in alike for n in topological([adjoint])):
            return taken, set()
        return replace(taken, adjoint=adjoint, divided=tuple(divided)), alike

    def places_of(self, index: Node, dims: tuple[Axis, ...]) -> Array:
        """The output that has a computed index. One that depends on no array is written for each element of the `take`'s result. Its
        type has as few bytes as the bounds of the index allow, and their rounding."""
        nodes = list(topological([index]))
        low, high = ranges(nodes)[id(index)]
        narrow = (name for name, most in NARROW.items() if low >= 0 and high < most)
        read = any(n.op == "input" for n in nodes)
        dtype = next(narrow, self.spec.integer)
        return Array(fresh(self.taken, "places"), dtype, self.dims_of(index) if read else dims)

    def index_of(self, taken: Taken) -> str:
        return self.places[id(taken.index)].name if isinstance(taken.index, Node) else taken.index

    def saved(self, assigned: list[Statement]) -> dict[str, Node]:
        """The outputs that the backward takes, and the values in `save`.

        It takes an output if it then reads fewer arrays or has fewer reductions. An output is rounded to its type, so one that a
        few operations compute again is recomputed: 1 - y * y of a rounded tanh near 1 has few correct bits. An output that is
        `coarse` is recomputed too, and so is one that elements are compared with, such as their maximum, unless it is `exact`.
        Raises `UserError` if elements are compared with a value in `save` that is not `exact`.
        """
        compared = {id(a) for a in _compared(topological(s.value for s in assigned))}
        values = {s.name: s.value for s in self.statements if s.part is None and s.at is None}
        values = {name: v for name, v in values.items() if v.op not in ("input", "const", "param")}
        chosen = {name: self.held_factor(name) or v for name, v in values.items() if name in self.save}
        for name, value in chosen.items():
            if id(value) in compared and value.op in ("max", "min") and not self.exact(name, value):
                what = f"elements that are recomputed are compared with {name!r}, and may differ in the last bit"
                raise UserError(f"it cannot be saved: {what}")
        most = max(len(a.axes) for a in self.spec.inputs)
        now = self.cost(assigned, chosen)
        for name, value in values.items():
            if self.dtype != "float32" and len(value.dims) < most:
                continue
            if name not in self.cotangents or (id(value) in compared and not self.exact(name, value)):
                continue
            own = list(topological([value]))
            arrays = {n.attr.name for n in own if isinstance(n.attr, Leaf)}
            if len(arrays) < 2 and not any(n.op in REDUCTIONS for n in own):
                continue  # it would be read instead of one array, or of none
            more = {**chosen, name: value}
            then = self.cost(assigned, more)
            if then < now and not self.coarse(name, value, assigned, then[0] < now[0]):
                chosen, now = more, then
        return chosen

    def statistics(self, assigned: list[Statement], saved: Mapping[str, Node]) -> dict[str, Node]:
        """The statistics of rows that the forward saves as well. With them the backward waits for fewer reductions along a row, so it
        has fewer sweeps. A statistic costs four bytes a row."""
        if self.dtype != "float32":
            return {}
        leaves = {id(v) for v in saved.values()}
        forward = nodes_of(self.statements)
        reductions = [n for n in forward if n.op in REDUCTIONS]
        widest = max((n.dims for n in forward), key=lambda dims: (len(dims), any(of_rows(r, dims) for r in reductions)))
        reduced: set[int] = set()  # the values that depend on a reduction along a row
        for node in forward:
            if any(id(a) in reduced for a in node.args) or (node.op in REDUCTIONS and of_rows(node, widest)):
                reduced.add(id(node))
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        compared = {id(a) for a in _compared(nodes) if a.op in ("max", "min")}
        own = {id(n) for n in forward if id(n) in reduced and of_rows(n, widest) and n.kind == "float"} - compared
        reached = topological((s.value for s in assigned), lambda n: id(n) in own | leaves)
        taken = {id(n): n for n in reached if id(n) in own - leaves}
        for node in list(taken.values()):
            inner = topological(node.args, lambda n: id(n) in taken)
            if not any(n.op in REDUCTIONS and id(n) not in taken for n in inner) and node.op not in REDUCTIONS:
                del taken[id(node)]  # it is computed from others
        ops = {i: self.calls[i].name if i in self.calls else a.op for i, a in taken.items()}
        found = {self.named.get(i) or fresh(self.taken, f"row_{ops[i].lstrip('_')}"): a for i, a in taken.items()}
        cost = self.row_reductions(assigned, {**saved, **found}, widest)
        if cost[0] == self.row_reductions(assigned, saved, widest)[0]:
            return {}
        for name in list(found):  # a statistic does not help if it saves no reduction
            others = {n: a for n, a in found.items() if n != name}
            if self.row_reductions(assigned, {**saved, **others}, widest) == cost:
                found = others
        return found

    def column_statistics(self, assigned: list[Statement], saved: Mapping[str, Node]) -> dict[str, Node]:
        """The reductions over rows that the forward saves as well, since no row of the backward can wait for all rows."""
        leaves = {id(v) for v in saved.values()}
        forward = {id(n) for n in nodes_of(self.statements)}
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        compared = {id(a) for a in _compared(nodes)}
        found = {}
        for node in nodes:
            if (
                node.op in REDUCTIONS
                and id(node) in forward - leaves
                and node.args[0].dims[:1] == (lost_axes(node)[0],)
            ):
                name = self.named.get(id(node)) or fresh(self.taken, f"column_{node.op.lstrip('_')}")
                if id(node) not in compared or self.exact(name, node):
                    found[name] = node
        return found

    def held_factor(self, name: str) -> Node | None:
        """The factor of a product that the forward's stages write under a name, if there is one."""
        held = self.held.get(name)
        return held if held is not None and held.op == "cast" else None

    def held_statistics(self, assigned: list[Statement], saved: Mapping[str, Node]) -> dict[str, Node]:
        """The values that the forward's stages write anyway, and the backward takes."""
        leaves = {id(v) for v in saved.values()} | {id(v) for v in self.held.values()}
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        compared = {id(a) for a in _compared(nodes)}
        taken = {id(n) for n in nodes} - {id(v) for v in saved.values()}
        found = {name: node for name, node in self.held.items() if id(node) in taken}
        return {name: n for name, n in found.items() if id(n) not in compared or self.exact(name, n)}

    def positions(self, assigned: list[Statement], saved: Mapping[str, Node]) -> dict[str, Node]:
        """The positions of selected elements that the backward needs: elements that are computed again may tie elsewhere."""
        leaves = {id(v) for v in saved.values()}
        nodes = topological((s.value for s in assigned), lambda n: id(n) in leaves)
        needed = [n for n in nodes if SELECTIONS.get(n.op) == "int" and id(n) not in leaves]
        outputs = [s for s in self.statements if s.name in self.made and s.part is None and s.at is None]
        exact = {id(s.value): s.name for s in outputs if self.spec.array(s.name).dtype == self.spec.integer}
        return {exact.get(id(n)) or self.named.get(id(n)) or fresh(self.taken, "places"): n for n in needed}

    def products(self, assigned: list[Statement], saved: Mapping[str, Node]) -> dict[str, Node]:
        """The values of products that the backward needs, so that it multiplies none of them again."""
        leaves = {id(v) for v in saved.values()}
        values = [s.value for s in assigned]
        found = shared(values, self.of_products.values(), lambda n: id(n) in leaves)
        held = {id(v): name for name, v in self.held.items()}
        return {held.get(id(n)) or self.name_saved(n): n for n in found}

    def products_and_held(self, assigned: list[Statement], saved: Mapping[str, Node]) -> dict[str, Node]:
        """These, and what else the forward's stages write anyway."""
        found = self.products(assigned, saved)
        return found | self.held_statistics(assigned, {**saved, **found})

    def name_saved(self, node: Node) -> str:
        name = self.named.get(id(node))
        return name if name and name not in self.held else fresh(self.taken, f"{name or 'product'}_saved")

    def row_reductions(
        self, assigned: list[Statement], saved: Mapping[str, Node], widest: tuple[str, ...]
    ) -> tuple[int, int]:
        """The most reductions along rows with these axes that wait for each other, and the number of all of them."""
        leaves = {id(v) for v in saved.values()}
        depth: dict[int, int] = {}
        count = 0
        for node in topological((s.value for s in assigned), lambda n: id(n) in leaves):
            before = 0 if id(node) in leaves else max((depth[id(a)] for a in node.args), default=0)
            reduces = node.op in REDUCTIONS and of_rows(node, widest) and id(node) not in leaves
            depth[id(node)] = before + reduces
            count += reduces
        return max(depth.values()), count

    def coarse(self, name: str, value: Node, assigned: list[Statement], fewer: bool) -> bool:
        """Whether an output is stored in too few bits to replace its value. This holds for statistics and float8 outputs that are
        narrower than the compute type. It holds for other outputs unless they make the arrays that are read `fewer`, or are only
        used as factors. A product has the relative error of its factor, but an exponential multiplies the error."""
        array = self.spec.array(name)
        size = min(DTYPES[dtype].size for dtype in self.spec.dtypes(array))
        if (size >= 4 and self.spec.doubles <= {array.dtype}) or self.exact(name, value):
            return False
        if size == 1 or len(value.dims) < max(len(a.axes) for a in self.spec.inputs):
            return True
        nodes = topological((s.value for s in assigned), lambda n: n is value)
        return not fewer and any(n.op not in PROPORTIONAL for n in nodes if any(a is value for a in n.args))

    def exact(self, name: str, value: Node) -> bool:
        """Whether an output stores a maximum or minimum without rounding, and the elements that it is compared with have the same
        bits when they are recomputed. They do if they are an input's elements, or if their arithmetic is rounded the same
        everywhere."""
        kept = self.spec.array(name).dtype if name in self.made else self.saved_type
        if value.op not in ("max", "min"):
            return False
        (source,) = value.args
        while source.op in ("float", "abs", "neg"):  # these do not round
            (source,) = source.args
        if not isinstance(source.attr, Leaf):
            return kept == self.spec.compute and self.dtype == "float32" and is_definite(source)
        return isinstance(source.attr, Leaf) and kept in (self.spec.compute, self.spec.array(source.attr.name).dtype)

    def extra_outputs(self, saved: Mapping[str, Node]) -> list[Array]:
        """The arrays for saved values that are not outputs of the op."""
        return [
            Array(name, self.dtype_saved(node), self.dims_of(node))
            for name, node in saved.items()
            if name not in self.made
        ]

    def dims_of(self, value: Node) -> tuple[Axis, ...]:
        return tuple(Axis((a,), extents=(self.spec.extents.get(a),)) for a in value.dims)

    def dtype_saved(self, node: Node) -> str:
        """The type in which a value is saved that is not an output."""
        if node.kind != "float":
            return self.spec.integer if node.kind == "int" else "bool"
        if id(node) in self.of_products:
            if (self.from_stages or id(node) in self.tied) and node.op != "cast":
                return self.spec.compute
            return saved_type(node, self.scope.inputs, dict(self.spec.types), self.spec.compute)
        return self.saved_type if node.op != "cast" else str(node.attr)

    @functools.cached_property
    def tied(self) -> frozenset[int]:
        """The values that the backward compares to find ties, and those that it computes them from: rounded, the largest would differ
        from all elements. Values are known by their identity."""
        compared = _compared(topological(s.value for s in self.assigned))
        return frozenset(id(n) for n in topological(compared, lambda n: n.op == "contract"))

    def cost(self, assigned: list[Statement], saved: Mapping[str, Node]) -> tuple[int, int]:
        """The number of arrays with the most axes that are read, and the number of reductions."""
        leaves = {id(v) for v in saved.values()}
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        most = max(len(n.dims) for n in nodes)
        arrays = {(n.attr.name, len(n.dims)) for n in nodes if isinstance(n.attr, Leaf)}
        arrays |= {(name, len(v.dims)) for name, v in saved.items() if any(n is v for n in nodes)}
        large = sum(size == most for _, size in arrays)
        return large, sum(n.op in REDUCTIONS for n in nodes if id(n) not in leaves)


def _only_sizes(value: Node, axes: Collection[str]) -> list[str]:
    """The axes of whose sizes a value is the product; none if it is something else, or of other axes."""
    nodes = [n for n in topological([value]) if n.op not in ("float", "mul")]
    sizes = [str(n.attr) for n in nodes if n.op == "size" and n.attr in axes]
    return sizes if len(sizes) == len(nodes) == sum(n.op == "mul" for n in topological([value])) + 1 else []


def _compared(nodes: Iterable[Node]) -> Iterable[Node]:
    """The values that are compared to find ties."""
    return (a for n in nodes if n.op == "eq" for a in n.args)


def of_rows(node: Node, axes: tuple[str, ...]) -> bool:
    """Whether a value is one of each row of an array with these axes: it has only the first of them."""
    return 0 < len(node.dims) < len(axes) and node.dims == axes[: len(node.dims)]
