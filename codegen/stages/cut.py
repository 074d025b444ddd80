"""Cuts an op that no single kernel computes into stages, each an op of one kernel.

The blocks of a kernel do not wait for each other. So no value in a kernel can use a reduction over elements of other
blocks, and the graph is cut there: one kernel reduces, and a later one reads the result. Each round finds the
reductions that a kernel can compute from the results of earlier stages, and adds stages for the reductions that are
needed next. Reductions and small outputs share a kernel where one kernel can compute them. Only reductions are stored;
each kernel computes values of elements again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from codegen.errors import SpecError, UserError
from codegen.graph.contraction import marks, meetings, pin_types
from codegen.graph.names import fresh
from codegen.graph.nodes import DTYPES, Leaf, Node, Selected, Statement, lost_axes, nodes_of, topological
from codegen.graph.ops import ALONE, IN_STAGES, NUCLEUS, PINNED, PLACED, REDUCTIONS, SCANS, SELECTIONS, UNSORT
from codegen.graph.precision import deciding_types
from codegen.language.chain import in_chain
from codegen.language.transfer import Values
from codegen.plan.op import Gemm, Op, stages_of
from codegen.plan.rows.reductions import Reduction
from codegen.spec.spec import Array, Spec, types_of
from codegen.stages.neighbours import shared_by_states
from codegen.stages.splitting import restricted

_WORDS = {"cast": "factor", "contract": "product"}  # in the names of values that the chain does not name
Kernel = Callable[[Spec], Op]  # a spec to the op that one kernel computes; raises `SpecError` or `UserError`
MOST_REDUCTIONS, MOST_NODES = 64, 600  # of an op that is cut: each part that is tried is planned
Item = Node | Array  # a reduction, or an output of the spec


@dataclass(frozen=True)
class Stages:
    """The stages of an op, in the order in which they run. A stage reads inputs of the op and outputs of earlier
    stages. `held` are the values of the chain, by name, that stages write for other stages and that are not outputs of
    the op."""

    ops: tuple[Op, ...]
    held: tuple[tuple[str, Node], ...]

    @property
    def moved(self) -> tuple[int, int]:
        """How many axes the largest arrays have, and the bytes that they read and write of these, for each element."""
        arrays = [(op.spec, a) for op in self.ops for a in op.spec.arrays]
        most = max(len(a.axes) for _, a in arrays)
        return most, sum(min(DTYPES[d].size for d in spec.dtypes(a)) for spec, a in arrays if len(a.axes) == most)


def cut(spec: Spec, kernel: Kernel, more: Sequence[tuple[Node, str]] = ()) -> Stages | None:
    """The stages of an op. None if no part of the op has a `kernel`, or if the op is too large to search for parts. `more` values
    are written for later stages as reductions are, each with a word for its name. Raises `SpecError` if some part has none."""
    nodes = nodes_of(spec.read.statements)
    if len(nodes) > MOST_NODES or sum(n.op in IN_STAGES for n in nodes) > MOST_REDUCTIONS:
        return None
    made = Cutting(spec, kernel, more)
    ops = made.stages()
    return None if ops is None else _written_before(spec, kernel, more, ops) or Stages(ops, made.held())


def _written_before(spec: Spec, kernel: Kernel, more: Sequence[tuple[Node, str]], ops: Sequence[Op]) -> Stages | None:
    """The stages of an op, with an earlier stage for expensive values that several states of its scans share. `ops` are
    the stages without it. None if there are no such values, and for an op with a backward, which would take them."""
    written = [a.axes for op in ops if op.plan.kind == "scan" for a in op.spec.outputs]
    first = shared_by_states(spec, written) if spec.grad == "none" else []
    if not first:
        return None
    made = Cutting(spec, kernel, [*more, *((value, "shared") for value in first)])
    with suppress(SpecError, UserError):
        made.add(made.grouped(first))
        if (found := made.stages()) is not None:
            return Stages(found, made.held())
    return None


class Cutting:
    """The search for the stages of an op: `results` are the arrays of values that stages write, by the identity of these; `known` are those
    that a stage writes already; `left` are the outputs that none does; and `made` are the stages."""

    def __init__(self, spec: Spec, kernel: Kernel, more: Sequence[tuple[Node, str]] = ()):
        self.spec, self.kernel = spec, kernel
        self.words = {id(n): word for n, word in more}
        self.statements = spec.read.statements
        self.outputs = {a.name: a for a in spec.outputs}
        nodes = nodes_of(self.statements)
        self.reductions = [n for n in nodes if n.op in IN_STAGES]
        self.last = {i: axes for n in nodes if n.op in ALONE for i, axes in _last_axes(n)}
        chosen = [n.args[0] for n in nodes if n.op == "shift" and n.args[0].op != "input"]
        chosen += [a for n in nodes if n.op in ALONE for a in n.args[:1] if not self.is_plain(a)]
        self.copied = {id(n) for n in chosen if n.op == "input"}
        self.reductions += [n for n in dict.fromkeys(chosen) if n not in self.reductions]
        self.reductions += [n for n, _ in more]
        self.pinned = [value for value, _ in meetings(nodes)]
        self.decided = {id(n.args[0]) for n in nodes if n.op == PINNED and pin_types(n)}  # by marks of the spec's own
        self.read, self.variables = spec.float_types(spec.inputs), dict(spec.types)
        self.asked = deciding_types(self.statements, spec.asked_types, self.read, self.variables)
        self.taken = {a.name for a in spec.arrays} | {p.name for p in spec.params} | {s.name for s in self.statements}
        values = [s for s in reversed(self.statements) if s.part is None and s.at is None]
        self.called = {id(s.value): s.name for s in values if s.name not in self.outputs}
        self.given = {(id(s.value), self.outputs[s.name].dtype): s.name for s in values if s.name in self.outputs}
        self.dtypes = {"float": spec.compute, "int": spec.integer, "bool": "bool"}
        self.results: dict[int, Array] = {}
        for node in self.reductions:
            if id(node) not in self.results:
                self.results[id(node)] = self.result(node)
        selected = [n.args[0] for n in nodes if n.op in (*SELECTIONS, NUCLEUS)]
        self.ordered = {self.results[id(n)].name for n in selected if id(n) in self.results}
        self.known: dict[int, Leaf] = {}
        self.left = list(spec.outputs)
        self.made: list[Op] = []
        self.tried: dict[tuple[frozenset[int], frozenset[int]], Op | SpecError | UserError] = {}

    def result(self, node: Node) -> Array:
        """The array that holds a reduction for later stages: an output of the op, if one holds it without rounding, in
        the same order."""
        dtype = str(node.attr) if node.op == "cast" else self.dtypes[node.kind]
        dtype = "int32" if SELECTIONS.get(node.op) == "int" else dtype  # a position, in an op of 64-bit integers too
        last = self.last.get(id(node), ())
        axes = (*(a for a in node.dims if a not in last), *(a for a in node.dims if a in last))
        alike = [node, *node.args] if node.op == "cast" else [node]  # a store of this type rounds the same
        for value in alike:
            output = self.given.get((id(value), dtype))
            if output is not None and self.outputs[output].axes == axes:
                return self.outputs[output]
        found = [self.called[id(value)] for value in alike if id(value) in self.called]
        used = {a.name for a in self.results.values()}
        if found and found[0] not in used:
            name = found[0]
        else:
            word = self.words.get(id(node)) or _WORDS.get(node.op, node.op.lstrip("_"))
            name = fresh(self.taken, f"{word}_of_{_axes_word(node)}")
        return Array(name, dtype, self.spec.dims(axes))

    def is_plain(self, node: Node) -> bool:
        """Whether it is an array as kernels read it that compute nothing else: without parts, and with the right axes last."""
        if node.op != "input" or not isinstance(node.attr, Leaf):
            return False
        array = self.spec.array(node.attr.name)
        last = self.last[id(node)]
        return array.parts is None and array.default is None and array.axes[-len(last) :] == last

    def stages(self) -> tuple[Op, ...] | None:
        while self.left:
            if self.attempt(self.left):
                self.add([self.left])
                break
            alone = sorted((a for a in self.left if self.attempt([a])), key=lambda a: -len(a.axes))
            if len(alone) == len(self.left):
                self.add(self.grouped(alone))
                break
            waiting = [a for a in self.left if a not in alone]
            groups = self.groups(waiting)
            if not groups and not self.made and not alone:
                return None
            if not groups:
                self.refuse(waiting)
            self.add([self.with_small(group, alone) for group in groups])
        return tuple(self.made)

    def held(self) -> tuple[tuple[str, Node], ...]:
        known = [(self.known[id(n)].name, n) for n in self.reductions if self.is_known(n)]
        return tuple((name, node) for name, node in known if name not in self.outputs)

    def groups(self, waiting: Sequence[Array]) -> list[list[Item]]:
        """The kernels that compute the reductions needed next, and later reductions of the same arrays. Empty if no
        kernel computes any."""
        values = [s.value for s in self.statements if s.name in {a.name for a in waiting}]
        ready, blocked = self.ready(values)
        later = self.first_of(values, ready)
        now = self.first_of([a for n in blocked for a in n.args], ready) or later
        found = self.without_again(self.grouped(now))
        large = self.large()
        for item in later:
            if any(item in group for group in found):
                continue
            reads = self.read_by([item]) & large
            group = next((g for g in found if reads <= self.read_by(g) and self.attempt([*g, item])), None)
            if group is not None and blocked:
                group.append(item)
        return found

    def ready(self, values: Sequence[Node]) -> tuple[set[int], list[Node]]:
        """The unknown reductions that some values need: those that a kernel can compute now, by identity, and all
        others."""
        ready: set[int] = set()
        blocked: list[Node] = []
        for node in topological(values, self.is_known):
            if id(node) not in self.results or self.is_known(node):
                continue
            before = topological(node.args, self.is_known)
            if any(n in blocked for n in before) or not self.attempt([node]):
                blocked.append(node)
            else:
                ready.add(id(node))
        return ready, blocked

    def first_of(self, values: Sequence[Node], ready: set[int]) -> list[Node]:
        """The `ready` reductions that the values use directly, not by way of another one."""
        return [n for n in topological(values, lambda n: self.is_known(n) or id(n) in ready) if id(n) in ready]

    def large(self) -> set[str]:
        """The inputs with as many axes as any array."""
        most = max(len(a.axes) for a in self.spec.arrays)
        return {a.name for a in self.spec.inputs if len(a.axes) == most}

    def grouped(self, items: Iterable[Item]) -> list[list[Item]]:
        """The items in as few kernels as possible."""
        groups: list[list[Item]] = []
        for item in items:
            group = next((g for g in groups if self.attempt([*g, item])), None)
            if group is None:
                groups.append([item])
            else:
                group.append(item)
        return groups

    def without_again(self, groups: list[list[Item]]) -> list[list[Item]]:
        """The kernels, except those whose results the last kernel can recompute while it has their operands."""
        for group in groups if len(groups) > 1 else ():
            others = [g for g in groups if g is not group]
            before = dict(self.known)
            self.know(item for g in others for item in g)
            enough = bool(others) and self.attempt(self.left)
            self.known = before
            groups = others if enough else groups
        return groups

    def with_small(self, group: list[Item], alone: list[Array]) -> list[Item]:
        """A kernel's results, with more outputs: outputs that need no other large array, and outputs that need a scan
        which the kernel does not write."""
        most, large = max(len(a.axes) for a in self.spec.arrays), self.large()
        for output in alone:
            alike = output.axes in {
                self.results[id(item)].axes for item in group if isinstance(item, Node) and item.op in SELECTIONS
            }
            small = (alike or len(output.axes) < most) and self.read_by([output]) & large <= self.read_by(group)
            scans = self.scanned_by([output]) & self.scanned_by(group) - {id(item) for item in group}
            if (small or scans) and output in self.left and self.attempt([*group, output]):
                group = [*group, output]
                self.left = [a for a in self.left if a is not output]
        return group

    def read_by(self, items: Iterable[Item]) -> set[str]:
        nodes = topological((s.value for s in self.assigned(items)), self.is_known)
        return {n.attr.name for n in nodes if isinstance(n.attr, Leaf)}

    def scanned_by(self, items: Iterable[Item]) -> set[int]:
        """The scans that a kernel of these items computes, by identity."""
        nodes = topological((s.value for s in self.assigned(items)), self.is_known)
        return {id(n) for n in nodes if n.op in SCANS and not self.is_known(n)}

    def is_known(self, node: Node) -> bool:
        return id(node) in self.known

    # Kernels

    def add(self, groups: Iterable[Sequence[Item]]) -> None:
        """A stage for each group. No group takes results of another."""
        found = [(group, self.made_of(group)) for group in groups]
        for group, op in found:
            for stage in stages_of(op):
                self.made.append(self.named(stage, len(self.made) + 1))
            self.know(group)
            self.left = [a for a in self.left if a not in op.spec.outputs]

    def named(self, stage: Op, number: int) -> Op:
        name, summary = f"{self.spec.op}_stage{number}", f"Stage {number} of {self.spec.op}."
        if isinstance(stage.plan, Gemm):
            own = stage.plan.epilogue
            epilogue = replace(own, spec=replace(own.spec, op=f"{name}_epilogue"))
            stage = replace(stage, plan=replace(stage.plan, epilogue=epilogue))
        return replace(stage, spec=replace(stage.spec, op=name, summary=summary))

    def know(self, items: Iterable[Item]) -> None:
        """Record that later kernels read these reductions from memory."""
        self.known |= {id(i): Leaf(self.results[id(i)].name) for i in items if isinstance(i, Node)}

    def attempt(self, items: Sequence[Item]) -> bool:
        """Whether one kernel can compute these values from known ones."""
        try:
            self.made_of(items)
        except (SpecError, UserError):
            return False
        return True

    def made_of(self, items: Sequence[Item]) -> Op:
        """The kernel that computes these values. Raises `SpecError` or `UserError` if there is none."""
        key = frozenset(map(id, items)), frozenset(self.known)
        if key not in self.tried:
            try:
                self.tried[key] = self.planned(items)
            except (SpecError, UserError) as error:
                self.tried[key] = error
        found = self.tried[key]
        if isinstance(found, Exception):
            raise found
        return found

    def require(self, items: Sequence[Item]) -> None:
        """Raises the reason why no kernel computes some items."""
        try:
            self.made_of(items)
        except SpecError as error:
            raise SpecError([in_chain(self.spec, d) for d in error.diagnostics]) from None
        except UserError as error:
            raise SpecError([self.spec.source.diagnostic(self.spec.chain.span, error.message, error.hint)]) from None

    def refuse_unknown_sizes(self, nodes: Sequence[Node], outputs: Sequence[Array]) -> None:
        """Raises `UserError` for a reduction over an axis that no array of a kernel has, and that no selection makes."""
        known = [self.known[id(n)].name for n in nodes if self.is_known(n)]
        read = [n.attr.name for n in nodes if isinstance(n.attr, Leaf)]
        arrays = [self.spec.array(name) for name in read] + [a for a in self.results.values() if a.name in known]
        there = {axis for a in (*arrays, *outputs) for axis in a.axes}
        there |= {n.attr.into for n in nodes if isinstance(n.attr, Selected)}
        for node in nodes:
            if node.op in REDUCTIONS and not self.is_known(node) and not there.issuperset(lost_axes(node)):
                message = f"no array of the kernel has the axes that {node.op} reduces"
                raise UserError(message)

    def planned(self, items: Sequence[Item]) -> Op:
        assigned = self.assigned(items)
        arrays = list(dict.fromkeys(self.results[id(i)] if isinstance(i, Node) else i for i in items))
        nodes = list(topological((s.value for s in assigned), self.is_known))
        self.refuse_unknown_sizes(nodes, arrays)
        alone = any(n.op in ALONE and not self.is_known(n) for n in nodes)
        known = {i: leaf for i, leaf in self.known.items() if alone or i not in self.copied}
        read = {id(n) for n in nodes} & known.keys()
        more = [replace(self.results[i], default=None) for i in self.results if i in read]
        held = {i: self.results[i].dtype for i in self.known}
        again = deciding_types(assigned, types_of(arrays), self.read, self.variables, held)
        marked = self.marked(items, again)
        own = {a.name for a in arrays}
        names = {i: name for i, name in self.called.items() if name not in own}
        ordered = tuple(a.name for a in arrays if a.name in self.ordered)
        spec = replace(self.spec.plain(), ordered=ordered)
        title = f"{self.spec.op} ({', '.join(a.name for a in arrays)})"
        values = Values(tuple(assigned), self.spec.read.graph.calls, names, known, pinned=marked)
        made = restricted(spec, title, values, arrays, more)
        if not made.computes_as(self.spec):  # with another input that makes it float64
            more += [a for a in self.spec.inputs if a.dtype in self.spec.doubles and a not in made.inputs]
            made = restricted(spec, title, values, arrays, more)
        op = self.kernel(made)
        plan = op.plan
        idle = isinstance(plan, Reduction) and plan.columns and not (plan.collapsed or plan.walked_groups)
        if idle and len(arrays) > 1:
            raise UserError("no thread would reduce anything: partial results would be as large as the arrays")
        return op

    def marked(self, items: Sequence[Item], again: Mapping[int, frozenset[str]]) -> dict[int, tuple[str, ...]]:
        """The types that decide the values which other kernels compute too, by identity. `again` are those that decide in this kernel."""
        return {i: types for i, types in marks(self.pinned, self.asked, again).items() if i not in self.decided}

    def assigned(self, items: Iterable[Item]) -> list[Statement]:
        """The statements that assign the items' arrays."""
        found: dict[tuple[str, int | None], Statement] = {}
        for item in items:
            if isinstance(item, Node):
                statement = Statement(self.results[id(item)].name, None, item)
                found.setdefault((statement.name, None), statement)
            else:
                found |= {(s.name, s.part): s for s in self.statements if s.name == item.name}
        return list(found.values())

    def refuse(self, waiting: Sequence[Array]) -> None:
        """Raises the reason why no kernel computes the first value that is left."""
        values = [s.value for s in self.statements if s.name in {a.name for a in waiting}]
        first = next(
            (n for n in topological(values, self.is_known) if id(n) in self.results and not self.is_known(n)), None
        )
        self.require([waiting[0] if first is None else first])
        raise AssertionError(f"{self.spec.op} was cut nowhere")


def _last_axes(node: Node) -> list[tuple[int, tuple[str, ...]]]:
    """The last axes of the arrays that a kernel for this selection, sort or placement reads and writes."""
    assert isinstance(node.attr, Selected)
    along, into = node.attr.axes, (node.attr.into,)
    if node.op in (PLACED, UNSORT):
        return [*((id(a), into) for a in node.args[:2]), (id(node), along)]
    return [(id(node.args[0]), along), (id(node), into)]


def _axes_word(node: Node) -> str:
    """The axes of a reduction's result, as a part of a name."""
    return "_".join("rows" if axis == "..." else axis.lower() for axis in node.dims) or "all"
