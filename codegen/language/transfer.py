"""Makes the chain of one spec from the values of another spec's chain, graph to graph.

The new spec has its own order of axes, other inputs and outputs, and perhaps narrower integers. So every node is made again, in
the way of `formula/`: operations on constants are evaluated, and an integer that does not fit is an error. The chain's text is
printed only when it is requested.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from codegen.errors import Diagnostic, Span, SpecError
from codegen.graph.names import temporaries
from codegen.graph.nodes import Call, Chain, Graph, Leaf, Node, Statement, topological
from codegen.graph.ops import ALONE, PINNED, REDUCTIONS, SCANS
from codegen.language.chain import stored
from codegen.language.formula.reader import Reader, reader
from codegen.language.scope import Scope, make_scope
from codegen.language.statements import Placed
from codegen.language.unparse import unparse
from codegen.spec.spec import Spec

_NOWHERE = ast.Constant(0)  # the nodes have no place in a text
UNNAMED = ("input", "param", "const", "index", "size", "float")  # operations that get no statement of their own


@dataclass(frozen=True)
class Values:
    """The values to transfer: those of the `statements`, which may share nodes.

    `calls` are the results of composite functions. `names` are the values' names in the old chain. `leaves` are inputs of the
    new spec, so they are not computed; `known` are values that earlier statements compute. `pinned` values are marked, each with
    its types (`contraction.marks`). The keys are the identities of nodes. `sizes` are those of axes that no array of the new
    spec has.
    """

    statements: tuple[Statement, ...]
    calls: Mapping[int, Call]
    names: Mapping[int, str] = field(default_factory=dict)
    leaves: Mapping[int, Leaf] = field(default_factory=dict)
    known: Collection[int] = ()
    pinned: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)

    @functools.cached_property
    def kept(self) -> dict[int, Call]:
        """The calls that remain calls, since there is neither a leaf nor a mark with types between result and arguments."""
        nodes = topological((s.value for s in self.statements), self.is_leaf)
        return {id(n): self.calls[id(n)] for n in nodes if id(n) in self.calls and self.is_whole(n)}

    def is_whole(self, node: Node) -> bool:
        given = {id(a) for a in self.calls[id(node)].values}
        inside = [*topological([node], lambda n: id(n) in given or self.is_leaf(n))][:-1]
        return given <= {id(n) for n in inside} and not any(
            self.is_leaf(n) or self.pinned.get(id(n)) for n in inside if id(n) not in given
        )

    def arguments(self, node: Node) -> tuple[Node, ...]:
        """The nodes that a node is written with: the arguments of a call that remains one, else the arguments of the operation."""
        call = self.kept.get(id(node))
        return node.args if call is None or call.is_private else call.values

    def is_leaf(self, node: Node) -> bool:
        return id(node) in self.leaves or id(node) in self.known

    def reached(self) -> Iterator[Node]:
        """The nodes that are computed, and the leaves."""
        return topological((s.value for s in self.statements), self.is_leaf, self.arguments)

    def with_shared(self, taken: Collection[str]) -> tuple[Statement, ...]:
        """The statements. Before each one are new statements for the values that it shares with others. New names differ from
        those `taken`."""
        arguments = {id(n): () if self.is_leaf(n) else self.arguments(n) for n in self.reached()}
        uses = Counter(id(s.value) for s in self.statements)
        for args in arguments.values():
            uses.update({id(a) for a in args})
        names = temporaries({*taken, *self.names.values(), *(s.name for s in self.statements)})
        found: list[Statement] = []
        met: dict[int, str | None] = {}
        for statement in self.statements:
            for node in topological(
                [statement.value], lambda n: id(n) in met or self.is_leaf(n), lambda n: arguments[id(n)]
            ):
                if id(node) in met:
                    continue
                met[id(node)] = None
                if (
                    uses[id(node)] > 1
                    and not self.is_leaf(node)
                    and (node.op not in UNNAMED or id(node) in self.pinned)
                ):
                    name = met[id(node)] = self.names.get(id(node)) or next(names)
                    found.append(Statement(name, None, node))
            if met[id(statement.value)] != statement.target or statement.at:
                found.append(statement)
        return tuple(found)


def derived_spec(spec: Spec, title: str, values: Values, taken: Collection[str]) -> Spec:
    """The spec with the values as its chain. Messages about it name `title`. The names of shared values differ from those
    `taken`. Raises `SpecError` if the chain does not fit the spec."""
    chain = transferred(spec, title, values.with_shared(taken), values)
    return spec.with_chain(title, chain, lambda: printed(spec, chain))


def extended_spec(spec: Spec, base: Spec, more: Iterable[Statement], graph: Graph, taken: Collection[str]) -> Spec:
    """The spec with the chain of `base` and `more` statements after it, with values in `graph`. Raises `SpecError` if the chain
    does not fit the spec."""
    more, own = tuple(more), base.read.statements
    known = {id(s.value) for s in own if s.part is None}
    values = Values(more, graph.calls, {id(s.value): s.name for s in more}, known=known)
    statements = (*own, *values.with_shared(taken))
    chain = transferred(spec, base.source.path, statements, Values(statements, graph.calls))

    def text() -> str:
        return base.chain.value.rstrip("\n") + "\n" + printed(spec, chain, len(own))

    return spec.with_chain(base.source.path, chain, text)


def joined_spec(spec: Spec, title: str, parts: Iterable[Spec]) -> Spec:
    """The spec whose chain computes the chains of `parts` in order. Each may read the outputs of earlier ones, rounded to their types.
    Raises `SpecError` if the chain does not fit the spec."""
    joined = _Joined(spec, title, Values((), {}))
    for part in parts:
        joined.add(part)
    outputs = {a.name for a in spec.outputs}
    results = tuple(Statement(*place, value) for place, value in joined.results.items() if place[0] in outputs)
    values = Values(results, joined.graph.calls)
    return derived_spec(spec, title, values, {a.name for a in spec.arrays} | {p.name for p in spec.params})


def printed(spec: Spec, chain: Chain, first: int = 0) -> str:
    """The text of a chain's statements from number `first` on, in the language of chains."""
    taken = {a.name for a in spec.arrays} | {p.name for p in spec.params}
    return unparse(chain, {a.name for a in spec.outputs}, taken, first)


def transferred(spec: Spec, title: str, statements: Iterable[Statement], values: Values) -> Chain:
    """The statements as a chain of the spec. The spec's own chain is not used."""
    return _Transfer(spec, title, values).chain(statements)


class _Transfer:
    def __init__(self, spec: Spec, title: str, values: Values):
        self.spec, self.title, self.values = spec, title, values
        self.scope: Scope = make_scope(spec)
        self.reader: Reader = reader(self.scope)
        self.graph = self.scope.graph
        self.made: dict[int, Node] = {}

    def chain(self, statements: Iterable[Statement]) -> Chain:
        outputs = {a.name: a for a in self.spec.outputs}
        found = []
        for statement in statements:
            try:
                value = self.node(statement.value)
                if statement.name in outputs:
                    value = stored(self.spec, self.scope, outputs[statement.name], value, _NOWHERE, statement.at)
            except Placed as error:
                place, line = Span(self.title, 1, 1, 1), f"{statement.target} = ..."
                raise SpecError([Diagnostic(place, error.cause.message, error.cause.hint, line)]) from None
            found.append(Statement(statement.name, statement.part, value, statement.at))
        return Chain(tuple(found), self.graph)

    def node(self, value: Node) -> Node:
        """A value in the new graph."""
        values = self.values
        for node in topological([value], lambda n: id(n) in self.made or id(n) in values.leaves):
            if id(node) in self.made:
                continue
            made = self.leaf(node) or self.computed(node)
            call = values.kept.get(id(node))
            if call is not None and made.args and made.op != "float":
                arguments = {n: self.made[id(a)] if isinstance(a, Node) else a for n, a in call.arguments.items()}
                self.graph.calls.setdefault(id(made), Call(call.name, arguments))
            types = None if id(node) in values.leaves else values.pinned.get(id(node))
            if types is not None:
                made = self.graph.node(PINNED, (made,), types, kind=made.kind, dims=made.dims)
            self.made[id(node)] = made
        return self.made[id(value)]

    def leaf(self, node: Node) -> Node | None:
        """A node without arguments in the new graph, or None if it has some."""
        leaf = self.values.leaves.get(id(node), node.attr)
        if isinstance(leaf, Leaf):
            return self.reader.leaf(self.scope.inputs[leaf.name], leaf.part)
        if node.op == "size" and node.attr in self.values.sizes:
            return self.graph.const(self.values.sizes[str(node.attr)])
        if node.is_const:
            return self.graph.const(node.attr)  # type: ignore[arg-type]
        return None if node.args else self.graph.node(node.op, attr=node.attr, kind=node.kind, dims=node.dims)

    def computed(self, node: Node) -> Node:
        args = [self.made[id(a)] for a in node.args]
        if node.op == "float":
            return self.reader.to_float(args[0])
        if node.op == "cast":
            self.reader.fitting(_NOWHERE, args)
            return self.reader.cast(_NOWHERE, args[0], str(node.attr))
        if node.op in REDUCTIONS:
            axes = self.graph.order(node.attr)  # type: ignore[arg-type]
            dims = [axis for axis in args[0].dims if axis not in axes]
            return self.graph.node(node.op, tuple(args), axes, kind=node.kind, dims=dims)
        if node.op in SCANS:
            dims = [axis for arg in args for axis in arg.dims]
            return self.graph.node(node.op, tuple(args), node.attr, kind=node.kind, dims=dims)
        if node.op == "pick" and self.is_whole(args[1]) and all(n.op == "index" for n in args[2:]):
            return self.graph.node("take", tuple(args[:2]), node.attr, kind=node.kind, dims=node.dims)
        if node.op in ("take", "pick", "contract", "shift", "_bits", PINNED, *ALONE):
            return self.graph.node(node.op, tuple(args), node.attr, kind=node.kind, dims=node.dims)
        return self.reader.fold(_NOWHERE, node.op, args)

    def is_whole(self, node: Node) -> bool:
        """Whether a node is an input without parts and without a default. A table's elements at its positions are a `take`."""
        leaf = node.attr
        return isinstance(leaf, Leaf) and leaf.part is None and self.scope.inputs[leaf.name].default is None


class _Joined(_Transfer):
    """Transfers one chain after the other into one graph."""

    def __init__(self, spec: Spec, title: str, values: Values):
        super().__init__(spec, title, values)
        self.results: dict[tuple[str, int | None], Node] = {}

    def add(self, part: Spec) -> None:
        assert not any(s.at for s in part.read.statements)
        arrays = {a.name: a for a in part.outputs}
        self.values = Values(part.read.statements, part.read.graph.calls)
        own = {a.name for a in self.spec.outputs}
        for statement in part.read.statements:
            value = self.node(statement.value)
            array = arrays.get(statement.name)
            if array is not None and array.name not in own and array.dtype not in (value.kind, "float32"):
                value = self.reader.cast(_NOWHERE, value, array.dtype)
            if array is not None:
                self.results[statement.name, statement.part] = value

    def leaf(self, node: Node) -> Node | None:
        found = self.results.get((node.attr.name, node.attr.part)) if isinstance(node.attr, Leaf) else None
        return found or super().leaf(node)
