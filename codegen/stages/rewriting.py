"""Makes a spec that computes the same op with other nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from codegen.graph.nodes import Chain, Graph, Node, Statement
from codegen.language.unparse import unparse
from codegen.spec.spec import Spec

# A graph, a node, and its arguments as they are then: the node that replaces it, if another one does
Rule = Callable[[Graph, Node, tuple[Node, ...]], Node | None]


def rewritten(spec: Spec, rule: Rule, word: str) -> Spec:
    """The same op with other nodes for some, as messages name it: the spec with a `word` in parentheses."""
    graph, made = spec.read.graph.fork(), dict[int, Node]()
    for node in spec.read.nodes:
        args = tuple(made[id(a)] for a in node.args)
        made[id(node)] = rule(graph, node, args) or graph.rebuilt_with_call(node, args, made)
    return with_statements(spec, (replace(s, value=made[id(s.value)]) for s in spec.read.statements), graph, word)


def with_statements(spec: Spec, statements: Iterable[Statement], graph: Graph, word: str) -> Spec:
    """The same op with other statements, as messages name it."""
    chain, outputs, names = Chain((*statements,), graph), {a.name for a in spec.outputs}, {a.name for a in spec.arrays}
    return spec.with_chain(f"{spec.source.path} ({word})", chain, lambda: unparse(chain, outputs, names))
