"""Reverse mode: an op's backward as a spec of its own, whose chain is a graph.

The derivative of each operation and reduction stands in its row of `ops.py`, that of a composite function below its
definition in `prelude.txt`; `grad:` of a spec overrides. `language/transfer.py` gives the result the axes, inputs and outputs of
its own spec, and `backward.py` plans it like any other op.

Longer than 500 lines: one pass, and the choice of what it saves, work on the same tables of nodes.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from codegen.autodiff.simplify import Algebra
from codegen.errors import Mistake
from codegen.graph.contraction import is_definite, marks, meetings, reached_types
from codegen.graph.nodes import DTYPES, Leaf, Node, Statement, lost_axes, topological
from codegen.graph.ops import OPS, REDUCTIONS
from codegen.language.chain import output_parts
from codegen.language.formula import Reader
from codegen.language.prelude import prelude
from codegen.language.scope import make_scope
from codegen.language.statements import MAX_STATEMENTS, read_lines
from codegen.language.transfer import Values, derived_spec, extended_spec
from codegen.parsing import parse_expression
from codegen.spec.spec import Array, Axis, Spec, types_of

MOST_OPERATIONS = 600  # twenty times those of any op one would write: deriving more takes long, and so does compiling

# Operations whose results are off by what one argument is off by, in proportion
PROPORTIONAL = {"mul", "div", "neg", "abs", "reciprocal", "square", "sqrt", "rsqrt", "sum", "mean", "float"}

# Operations whose slope may be infinite; and others, whose terms are better left as they are where sums of them are simplified
STEEP = {"prod", "sqrt", "cbrt", "log", "log2", "log1p", "pow", "reciprocal", "asin", "acos"}
STEEP_TERMS = {"rsqrt", "div", "exp", "exp2", "expm1", "sinh", "cosh", "tan", "atan2", "rem"}

_UNLESS_ZERO = parse_expression("where(g == 0, 0, value)")
_TIMES_SIZE = parse_expression("g * size(axis)")
_SITE = ast.Constant(0)  # formulas of the tables have no place in a spec


@dataclass(frozen=True)
class Scattered:
    """An output of a backward that belongs to what a `take` gave: it is added to the table's gradient, or that of one of its
    parts, along an axis by index."""

    output: str
    table: str
    part: int | None
    index: str
    axis: str


@dataclass(frozen=True)
class Taken:
    """The adjoint of what a `take` gave."""

    part: int | None
    index: str
    axis: str
    dims: tuple[str, ...]
    adjoint: Node


@dataclass(frozen=True)
class Backward:
    """An op's backward: its `spec`, and how the op's arrays stand in it, by their names there.

    It takes `cotangents` (of each floating output), values that the forward keeps for it (`saved`), and inputs; it gives
    `gradients` of the floating inputs and dynamic parameters that any output depends on. Where not all that is saved are
    outputs, `forward` is the op with the others as outputs too.
    """

    spec: Spec
    forward: Spec | None
    cotangents: tuple[tuple[str, str], ...]  # (y, dy)
    saved: tuple[str, ...]  # outputs, and values of the chain, it takes
    inputs: tuple[str, ...]  # inputs it takes
    gradients: tuple[tuple[str, str], ...]  # (x, dx), an output each: of a table, several, which are added up
    scattered: tuple[Scattered, ...] = ()  # outputs of what was taken from tables
    same: tuple[tuple[str, Array], ...] = ()  # (x, the cotangent or other gradient that is its gradient as well)


class Reverse:
    """The derivative of a checked spec, and the backwards that compute it: they differ in what the forward saves for them.

    Values of the chain that are saved are `kept` in this type. If that is not float32, inputs are rounded to it which the
    forward had in more bits: a backward takes none of the statistics that outputs hold, which theirs would not be. `by_index`:
    what is taken from tables is added to their gradients by index also where each index picks from a row of its own. Raises
    `Mistake` where there is no derivative that could be a kernel.
    """

    def __init__(self, spec: Spec, kept: str = "float32", by_index: bool = False):
        self.spec, self.scope, self.kept, self.by_index = spec, make_scope(spec, spec.read), kept, by_index
        self.save = spec.save
        self.saved_type = spec.compute if kept == "float32" else kept
        self.statements = spec.read.statements
        if len(self.statements) > MAX_STATEMENTS // 2:
            raise Mistake(f"the backward of {len(self.statements)} statements would have more than {MAX_STATEMENTS}")
        operations = sum(1 for _ in topological(s.value for s in self.statements))
        if operations > MOST_OPERATIONS:
            raise Mistake(f"the backward of {operations} operations; one of more than {MOST_OPERATIONS} is left to jnp")
        self.graph = self.scope.graph
        self.calls = self.graph.calls
        self.made = {a.name for a in spec.outputs}
        self.taken = {a.name for a in spec.arrays} | {p.name for p in spec.params} | {s.name for s in self.statements}
        self.cotangents = {
            a.name: replace(a, name=self.fresh(f"d{a.name}"), default=None)
            for a in spec.outputs
            if spec.kind(a) == "float"
        }
        self.algebra = Algebra(self.graph, [s.value for s in self.statements])
        self.formulas = dict(spec.grad) if not isinstance(spec.grad, str) else {}
        self.active = self.find_active()
        self.steep = self.find_steep()
        self.taken_from: dict[str, list[Taken]] = {}  # by table
        # What the chain calls its values, but for outputs, which are rounded
        values = [s for s in reversed(self.statements) if s.part is None and s.name not in self.made]
        self.named = {id(s.value): s.name for s in values}
        self.results, self.assigned = self.outputs(self.gradients() | self.written_formulas())
        self.known = frozenset(self.taken)

    def fresh(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    # What depends on what is differentiated

    def wanted(self, node: Node) -> bool:
        """Whether a leaf's gradient is asked for."""
        if node.op == "param":
            param = next(p for p in self.spec.params if p.name == node.attr)
            return param.kind == "float" and not param.static and param.name not in self.formulas
        if node.op == "input":
            assert isinstance(node.attr, Leaf)
            name, part = node.attr.name, node.attr.part
            given = name in self.formulas or f"{name}[{part}]" in self.formulas
            return node.kind == "float" and not given
        return False

    def find_active(self) -> set[int]:
        """The values that vary with something whose gradient is asked for, by identity."""
        active: set[int] = set()
        for node in topological(s.value for s in self.statements):
            if self.wanted(node) or (node.kind == "float" and any(id(a) in active for a in node.args)):
                active.add(id(node))
        return active

    def arguments(self, node: Node) -> tuple[Node, ...]:
        """What a node is differentiated by: the arguments of its composite function, where all that vary have a
        derivative there."""
        call = self.calls.get(id(node))
        if call is not None:
            rules = prelude()[call.name].grad
            varying = [n for n, a in call.arguments.items() if isinstance(a, Node) and id(a) in self.active]
            if varying and all(name in rules for name in varying):
                return call.values
        return node.args

    def find_steep(self) -> set[int]:
        """The values on which some outputs that have cotangents depend, and others do not, and whose slope may be infinite, by
        identity: where nothing depends on these outputs, their cotangent is 0, and so is what it comes to."""
        of: dict[int, set[str]] = {}
        nodes: dict[int, Node] = {}
        seeds = {s.name for s in self.statements if s.name in self.cotangents and id(s.value) in self.active}
        for statement in self.statements:
            if statement.name in seeds:
                for node in topological([statement.value]):
                    nodes[id(node)] = node
                    of.setdefault(id(node), set()).add(statement.name)
        sole = [nodes[i] for i, names in of.items() if names != seeds]
        folded = any(n.op in REDUCTIONS for n in sole)
        return {id(n) for n in sole if n.op in (STEEP if folded else STEEP | STEEP_TERMS)}

    # Adjoints

    def gradients(self) -> dict[tuple[str, int | None], Node]:
        """Of each input (or part) and dynamic parameter that an output depends on."""
        contributions: dict[int, list[Node]] = {}
        roots = []
        for statement in self.statements:
            cotangent = self.cotangents.get(statement.name)
            if cotangent is not None and id(statement.value) in self.active:
                leaf = Leaf(cotangent.name, statement.part)
                seed = self.graph.node("input", attr=leaf, kind="float", dims=cotangent.axes)
                contributions.setdefault(id(statement.value), []).append(seed)
                roots.append(statement.value)
        found: dict[tuple[str, int | None], Node] = {}
        for node in reversed(list(topological(roots, arguments=self.arguments))):
            if id(node) not in self.active or id(node) not in contributions:
                continue
            total = self.collected(node, contributions.pop(id(node)))
            if node.op == "input":
                assert isinstance(node.attr, Leaf)
                found[node.attr.name, node.attr.part] = total
            elif node.op == "param":
                found[str(node.attr), None] = total
            else:
                for argument, value in self.pulled(node, total):
                    if id(node) in self.steep:
                        value = self.evaluated(_UNLESS_ZERO, {"g": total, "value": value})
                    contributions.setdefault(id(argument), []).append(self.counted(node, argument, value))
        return found

    def counted(self, node: Node, argument: Node, value: Node) -> Node:
        """What a node's adjoint adds to an argument's: as often as the argument is taken along an axis that it lacks, where
        the adjoint is the same all along it. (Where it is not, `collected` sums it.)"""
        repeated = tuple(a for a in node.dims if a not in value.dims and a not in argument.dims)
        return self.evaluated(_TIMES_SIZE, {"g": value, "axis": repeated}) if repeated else value

    def collected(self, node: Node, values: list[Node]) -> Node:
        """The sum of all contributions to a node's adjoint, each kind of broadcast undone once."""
        by_axes: dict[tuple[str, ...], list[Node]] = {}
        for value, count in Counter(values).items():
            value = self.algebra.mul(self.graph.const(float(count)), value)
            by_axes.setdefault(tuple(a for a in value.dims if a not in node.dims), []).append(value)
        sums = [
            self.algebra.sum_over(functools.reduce(self.algebra.add, found), axes) for axes, found in by_axes.items()
        ]
        return functools.reduce(self.algebra.add, sums)

    def pulled(self, node: Node, g: Node) -> Iterable[tuple[Node, Node]]:
        """What a node's adjoint adds to those of its arguments that vary, where the derivative is not zero."""
        arguments = self.arguments(node)
        if arguments is not node.args:
            call = self.calls[id(node)]
            names: dict[str, Node | tuple[str, ...]] = {**call.arguments, "y": node, "g": g}
            formulas = prelude()[call.name].grad
            return [(a, self.evaluated(formulas[n], names)) for n, a in call.arguments.items()
                    if isinstance(a, Node) and id(a) in self.active]  # fmt: skip
        if node.op == "cast":  # as in JAX, the cotangent has the type that the value was rounded to
            return [(node.args[0], self.graph.node("cast", (g,), node.attr, kind="float", dims=g.dims))]
        if node.op == "take":
            table, index = node.args
            if self.by_index or not set(index.dims) <= set(table.dims) - {node.attr}:
                self.scatter(node, g)
                return []
            # Each index picks from a row of its own: no two meet in one element
            rule = f"where(index({node.attr}) == clip(i, 0, size({node.attr}) - 1), g, 0)"
            picked: dict[str, Node | tuple[str, ...]] = {"i": index, "g": g}
            return [(table, self.evaluated(_parsed(rule), picked))]
        rules = OPS[node.op].grad if node.op in OPS else ("",) * len(node.args)
        if node.op in REDUCTIONS:
            rules = (REDUCTIONS[node.op][3],)
        if not all(rules):
            raise Mistake(f"no kernel for the gradient of {node.op!r} yet")
        known: dict[str, Node | tuple[str, ...]] = {**dict(zip("abc", node.args, strict=False)), "y": node, "g": g}
        if isinstance(node.attr, tuple):
            known["axis"] = node.attr
        return [(a, self.evaluated(_parsed(rule), known))
                for a, rule in zip(node.args, rules, strict=True) if id(a) in self.active and rule != "0"]  # fmt: skip

    def scatter(self, node: Node, g: Node) -> None:
        """Two indices may meet in one row of a table, so what its rows get is added up by index after the kernel."""
        table, index = (a.attr for a in node.args)
        assert isinstance(table, Leaf) and isinstance(index, Leaf)
        taken = Taken(table.part, index.name, str(node.attr), node.dims, g)
        self.taken_from.setdefault(table.name, []).append(taken)

    def evaluated(self, formula: ast.expr, names: Mapping[str, Node | tuple[str, ...]]) -> Node:
        return self.algebra.simplified(Reader(self.scope, dict(names), _SITE, derived=True).read(formula))

    # The spec

    def backward(self, statistics: str | None = None, save: tuple[str, ...] | None = None) -> Backward:
        """The backward that takes the values of the chain in `save`, the spec's own if None. `statistics`: it may have the
        forward keep others, those of "rows" or of "columns". Raises `Mistake` where it could be no kernel."""
        outputs, assigned = self.results, self.assigned
        self.taken, self.save = set(self.known), self.spec.save if save is None else save
        if not assigned:
            raise Mistake("no output varies with an input that has a derivative")
        saved = self.saved(assigned)
        ways = {"rows": self.statistics, "columns": self.column_statistics}
        more_saved = ways[statistics](assigned, saved) if statistics and not self.save else {}
        saved |= more_saved
        leaves = {id(node): Leaf(name) for name, node in saved.items()}
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        used = {n.attr.name for n in nodes if isinstance(n.attr, Leaf)} | set(saved)
        params = tuple(p for p in self.spec.params if any(n.op == "param" and n.attr == p.name for n in nodes))
        inputs = [a for a in self.cotangents.values() if a.name in used]
        more = self.extra_outputs(saved)
        kept = [a for a in self.spec.outputs if a.name in used] + more
        inputs += kept
        inputs += self.spec.inputs_for(used, inputs, {axis for _, output, _ in outputs for axis in output.axes})
        pinned = self.pinned(assigned, saved, [output for _, output, _ in outputs])
        values = Values(tuple(assigned), self.calls, self.named, leaves, pinned=pinned)
        spec = replace(
            self.spec, op=f"{self.spec.op}_backward", summary=f"The gradients of {self.spec.op}.",
            inputs=tuple(inputs), outputs=tuple(output for _, output, _ in outputs), params=params,
            grad="none", aliases=(), save=(), tolerance=(), domain=(), schedule=(), bench=(),
        )  # fmt: skip
        spec = derived_spec(spec, f"{self.spec.path} (backward)", values, self.taken)
        if len(spec.read.statements) > MAX_STATEMENTS:
            raise Mistake(f"the backward has more than {MAX_STATEMENTS} statements")
        forward = None
        if more:
            forward = replace(
                self.spec, op=f"{self.spec.op}_forward", outputs=(*self.spec.outputs, *more), grad="none",
                save=(), kept=tuple(more_saved), bench=(),
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
                Scattered(output.name, name, taken.part, taken.index, taken.axis)
                for name, output, taken in outputs
                if taken is not None
            ),
        )

    def pinned(
        self, assigned: list[Statement], saved: Mapping[str, Node], gradients: Iterable[Array]
    ) -> dict[int, tuple[str, ...]]:
        """The values that meet a statistic of themselves which the forward saves: the backward computes them as the forward
        did (`contraction.marks`)."""
        behind = {id(n) for n in topological(saved.values())}
        nodes = list(topological(s.value for s in (*self.statements, *assigned)))
        values = [value for value, statistic in meetings(nodes) if id(statistic) in behind]
        again = reached_types(assigned, types_of(gradients), {id(node) for node in saved.values()})
        return marks(values, reached_types(self.statements, self.spec.asked_types), again)

    def written_formulas(self) -> dict[tuple[str, int | None], Node]:
        """The gradients that the spec gives itself."""
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
        """An output for each gradient, with the name of what it is the gradient of, and for each `take` from it; and what is
        assigned to them. Gradients that are zero are left out."""
        outputs: list[tuple[str, Array, Taken | None]] = []
        assigned = []
        params = [Array(p.name, self.spec.compute, ()) for p in self.spec.params if (p.name, None) in found]
        for array in (*self.spec.inputs, *params):
            taken_from = self.taken_from.get(array.name, [])
            if any((array.name, part) in found for part in output_parts(array)):
                gradient = replace(array, name=self.fresh(f"d{array.name}"), default=None, span=None)
                if taken_from:  # whose sum is rounded once
                    gradient = replace(gradient, dtype=self.spec.compute)
                outputs.append((array.name, gradient, None))
                for part in output_parts(array):
                    value = found.get((array.name, part)) or self.graph.const(0.0)
                    assigned.append(Statement(gradient.name, part, value))
            for taken in taken_from:
                dims = tuple(Axis((a,), extents=(None,)) for a in taken.dims)
                gradient = Array(self.fresh(f"d{array.name}"), self.spec.compute, dims)
                outputs.append((array.name, gradient, taken))
                assigned.append(Statement(gradient.name, None, taken.adjoint))
        return outputs, assigned

    def saved(self, assigned: list[Statement]) -> dict[str, Node]:
        """The outputs that the backward takes rather than compute them again: where it then reads fewer arrays or has fewer
        reductions. An output is rounded to its type, so where a few operations give it again it is computed: 1 - y * y of
        a rounded tanh near 1 is worth little. So is one that is `coarse`, and one that elements are compared with, as with
        their maximum, unless it is an input's element. Those of `save` are taken in any case; raises `Mistake` where one of
        them is compared so."""
        compared = {id(a) for a in _compared(topological(s.value for s in assigned))}
        values = {s.name: s.value for s in self.statements if s.part is None}
        values = {name: v for name, v in values.items() if v.op not in ("input", "const", "param")}
        chosen = {name: v for name, v in values.items() if name in self.save}
        for name, value in chosen.items():
            if id(value) in compared and value.op in ("max", "min") and not self.exact(name, value):
                what = f"elements that are computed again are compared with {name!r}, and may differ in the last bit"
                raise Mistake(f"it cannot be saved: {what}")
        most = max(len(a.axes) for a in self.spec.inputs)
        now = self.cost(assigned, chosen)
        for name, value in values.items():
            if self.kept != "float32" and len(value.dims) < most:
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
        """What rows come to in the forward, to be saved as well: where the backward would have to fold them again before it
        can fold anything else, and so goes over a row more often. It costs four bytes a row, and a pass over the row less."""
        if self.kept != "float32":
            return {}
        leaves = {id(v) for v in saved.values()}
        forward = list(topological(s.value for s in self.statements))
        widest = max((n.dims for n in forward), key=len)
        folded: set[int] = set()  # what depends on a fold along a row
        for node in forward:
            if any(id(a) in folded for a in node.args) or (node.op in REDUCTIONS and of_rows(node, widest)):
                folded.add(id(node))
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        compared = {id(a) for a in _compared(nodes) if a.op in ("max", "min")}
        own = {id(n) for n in forward if id(n) in folded and of_rows(n, widest) and n.kind == "float"} - compared
        reached = topological((s.value for s in assigned), lambda n: id(n) in own | leaves)
        taken = {id(n): n for n in reached if id(n) in own - leaves}
        for node in list(taken.values()):
            inner = topological(node.args, lambda n: id(n) in taken)
            if not any(n.op in REDUCTIONS and id(n) not in taken for n in inner) and node.op not in REDUCTIONS:
                del taken[id(node)]  # it follows from others
        ops = {i: self.calls[i].name if i in self.calls else a.op for i, a in taken.items()}
        found = {self.named.get(i) or self.fresh(f"row_{ops[i].lstrip('_')}"): a for i, a in taken.items()}
        cost = self.folds(assigned, {**saved, **found}, widest)
        if cost[0] == self.folds(assigned, saved, widest)[0]:
            return {}
        for name in list(found):  # what must be folded again all the same helps nothing
            others = {n: a for n, a in found.items() if n != name}
            if self.folds(assigned, {**saved, **others}, widest) == cost:
                found = others
        return found

    def column_statistics(self, assigned: list[Statement], saved: Mapping[str, Node]) -> dict[str, Node]:
        """What the forward folds over rows and the backward takes, to be saved as well: no row of it can wait for all rows."""
        leaves = {id(v) for v in saved.values()}
        forward = {id(n) for n in topological(s.value for s in self.statements)}
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        compared = {id(a) for a in _compared(nodes)}
        found = {}
        for node in nodes:
            if (
                node.op in REDUCTIONS
                and id(node) in forward - leaves
                and node.args[0].dims[:1] == (lost_axes(node)[0],)
            ):
                name = self.named.get(id(node)) or self.fresh(f"column_{node.op.lstrip('_')}")
                if id(node) not in compared or self.exact(name, node):
                    found[name] = node
        return found

    def folds(self, assigned: list[Statement], saved: Mapping[str, Node], widest: tuple[str, ...]) -> tuple[int, int]:
        """How many folds along rows of these axes have to wait for each other, at most; and how many there are."""
        leaves = {id(v) for v in saved.values()}
        depth: dict[int, int] = {}
        count = 0
        for node in topological((s.value for s in assigned), lambda n: id(n) in leaves):
            before = 0 if id(node) in leaves else max((depth[id(a)] for a in node.args), default=0)
            folds = node.op in REDUCTIONS and of_rows(node, widest) and id(node) not in leaves
            depth[id(node)] = before + folds
            count += folds
        return max(depth.values()), count

    def coarse(self, name: str, value: Node, assigned: list[Statement], fewer: bool) -> bool:
        """Whether an output is stored in too few bits to stand for its value: a statistic, or float8, in fewer than it has;
        other elements, unless that makes the arrays that are read `fewer`, or unless they are but factors. A product is off
        by what its factor is off by; an exponential, by as much as the exponent is large."""
        array = self.spec.array(name)
        size = min(DTYPES[dtype].size for dtype in self.spec.dtypes(array))
        if (size >= 4 and self.spec.doubles <= {array.dtype}) or self.exact(name, value):
            return False
        if size == 1 or len(value.dims) < max(len(a.axes) for a in self.spec.inputs):
            return True
        nodes = topological((s.value for s in assigned), lambda n: n is value)
        return not fewer and any(n.op not in PROPORTIONAL for n in nodes if any(a is value for a in n.args))

    def exact(self, name: str, value: Node) -> bool:
        """Whether an output holds a maximum or minimum as it is, and the elements that it is compared with are the same to the
        last bit where they are computed again: an input's, or values of arithmetic that is rounded the same everywhere."""
        kept = self.spec.array(name).dtype if name in self.made else self.saved_type
        if value.op not in ("max", "min"):
            return False
        (source,) = value.args
        while source.op in ("float", "abs", "neg"):  # which do not round
            (source,) = source.args
        if not isinstance(source.attr, Leaf):
            return kept == self.spec.compute and self.kept == "float32" and is_definite(source)
        return isinstance(source.attr, Leaf) and kept in (self.spec.compute, self.spec.array(source.attr.name).dtype)

    def extra_outputs(self, saved: Mapping[str, Node]) -> list[Array]:
        """The arrays of what is saved and no output already."""
        names = [name for name in saved if name not in self.made]
        dtypes = {"float": self.saved_type, "int": self.spec.integer, "bool": "bool"}
        return [
            Array(name, dtypes[saved[name].kind], tuple(Axis((a,), extents=(None,)) for a in saved[name].dims))
            for name in names
        ]

    def cost(self, assigned: list[Statement], saved: Mapping[str, Node]) -> tuple[int, int]:
        """Arrays read that have as many axes as any, and reductions."""
        leaves = {id(v) for v in saved.values()}
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        most = max(len(n.dims) for n in nodes)
        arrays = {(n.attr.name, len(n.dims)) for n in nodes if isinstance(n.attr, Leaf)}
        arrays |= {(name, len(v.dims)) for name, v in saved.items() if any(n is v for n in nodes)}
        large = sum(size == most for _, size in arrays)
        return large, sum(n.op in REDUCTIONS for n in nodes if id(n) not in leaves)


@functools.cache
def _parsed(rule: str) -> ast.expr:
    """A derivative of the tables of operations."""
    return parse_expression(rule)


def _compared(nodes: Iterable[Node]) -> Iterable[Node]:
    """The values that elements are held to, as ties are found."""
    return (a for n in nodes if n.op == "eq" for a in n.args)


def of_rows(node: Node, axes: tuple[str, ...]) -> bool:
    """Whether a value belongs to each row of an array with these axes: it has the first of them alone."""
    return 0 < len(node.dims) < len(axes) and node.dims == axes[: len(node.dims)]
