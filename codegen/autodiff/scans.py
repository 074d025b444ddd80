"""The derivatives of scans, which are scans in the opposite direction.

Let h_t = a_t h_(t-1) + b_t, and let g_t be the cotangent of h_t. Then the adjoint of h_t is l_t = g_t + a_(t+1) l_(t+1). With
m_t = a_t l_t it is l_t = g_t + m_(t+1), and m_t = a_t m_(t+1) + a_t g_t is itself such a recurrence, in the opposite direction.
Then b_t has the gradient l_t, a_t has l_t h_(t-1), and the initial state has m of the first element. The other scans behave
like such a recurrence for small changes of their elements. Then a_t is x_t for cumprod. For cumlogsumexp it is
exp(y_(t-1) - y_t), which is sigmoid(y_(t-1) - x_t) and does not need y_t. For cummax it is 1 where the element is below the
state before it, 1/2 where they are equal, and else 0. Where a scan gives the state before each element, g_t is the cotangent of that
state, and l_t = g_(t+1) + a_(t+1) l_(t+1).

A backward that needs the states before and after each element of a recurrence, a product or a maximum stores only those before: it
computes h_t again from h_(t-1).
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from codegen.graph.nodes import Along, Graph, Node, Statement, along_of, topological
from codegen.parsing import parse_expression

Names = Mapping[str, Node | tuple[str, ...]]
Evaluated = Callable[[ast.expr, Names], Node]

# The derivative of the state after an element by the state before it, and by the element, from the state's adjoint l. p is the state
# before, x is the element. Before the first one p is -infinity, from which an infinite element has no distance
STEPS = {
    "cumprod": ("x", "l * p"),
    "cummax": ("where(x > p, 0, where(x == p, 0.5, 1))", "l * where(x > p, 1, where(x == p, 0.5, 0))"),
    "cumlogsumexp": ("sigmoid(-(x - maximum(p, -1e38)))", "l * sigmoid(x - maximum(p, -1e38))"),
}

# The state after an element: an operation of its first argument and the state before, then one more with the second argument
AGAIN = {"scan": ("mul", "add"), "cumprod": ("mul",), "cummax": ("maximum",)}


def pulled_scan(node: Node, g: Node, graph: Graph, evaluated: Evaluated) -> list[tuple[Node, Node]]:
    """The contributions of a scan to its arguments' adjoints, from its own adjoint `g`."""
    along = along_of(node)

    def scan(a: Node, b: Node) -> Node:
        b = b if along.axis in a.dims else _with_axis(b, along, value)
        return _scan(graph, "scan", (a, b, graph.const(0.0)), along.back)

    def value(formula: str, **names: Node) -> Node:
        return evaluated(_parsed(formula), names)

    if node.op == "cumsum":
        (x,) = node.args
        back = _scan(
            graph, "cumsum", (_with_axis(g, along, value),), Along(along.axis, not along.reverse, along.before)
        )
        return [(x, back)]
    if node.op != "scan":
        (x,) = node.args
        known = {"x": x, "p": _scan(graph, node.op, node.args, Along(along.axis, along.reverse, True))}
        kept, own = STEPS[node.op]
        a = value(kept, **known)
        adjoint = scan(a, g) if along.before else value("g + m", g=g, m=scan(a, value("a * g", a=a, g=g)))
        return [(x, value(own, l=adjoint, **known))]
    a, b, initial = node.args
    if along.before:
        state, later = node, scan(a, g)
        adjoint, first = later, value("g + a * l", g=g, a=a, l=later)
    else:
        state = _scan(graph, "scan", node.args, Along(along.axis, along.reverse, True))
        later = scan(a, value("a * g", a=a, g=g))
        adjoint = value("g + m", g=g, m=later)
        first = value("a * l", a=a, l=adjoint)
    found = [(a, value("l * h", l=adjoint, h=state)), (b, adjoint)]
    if not initial.is_const:
        place = f"size({along.axis}) - 1" if along.reverse else "0"
        found.append((initial, value(f"where(index({along.axis}) == {place}, first, 0)", first=first)))
    return found


def with_states_before(statements: list[Statement], known: Container[int], graph: Graph) -> list[Statement]:
    """The statements, rewritten for scans in `AGAIN` that give both the state before each element and the state after it: the state
    after is computed from the state before. Nodes that are `known`, by identity, are inputs and stay."""

    def is_known(node: Node) -> bool:
        return id(node) in known

    nodes = list(topological((s.value for s in statements), is_known))
    scans = [((n.op, *map(id, n.args)), along_of(n), n) for n in nodes if n.op in AGAIN and not is_known(n)]
    before = {(args, how) for args, how, _ in scans if how.before}
    again = {id(n) for args, how, n in scans if not how.before and (args, replace(how, before=True)) in before}
    done: dict[int, Node] = {}
    for node in nodes if again else ():
        args = tuple(done.get(id(a), a) for a in node.args)
        if id(node) in again:
            state = _scan(graph, node.op, args, replace(along_of(node), before=True))
            own, *more = AGAIN[node.op]
            found = graph.node(own, (args[0], state), kind="float", dims=node.dims)
            for op, arg in zip(more, args[1:], strict=False):
                found = graph.node(op, (found, arg), kind="float", dims=node.dims)
            done[id(node)] = found
        elif not is_known(node):
            done[id(node)] = graph.rebuilt(node, args)
    return [replace(s, value=done.get(id(s.value), s.value)) for s in statements]


def _with_axis(g: Node, along: Along, value: Callable[..., Node]) -> Node:
    """A cotangent that may lack the axis, because it is the same everywhere."""
    return g if along.axis in g.dims else value(f"where(index({along.axis}) >= 0, g, 0)", g=g)


def _scan(graph: Graph, op: str, args: tuple[Node, ...], along: Along) -> Node:
    dims = [axis for arg in args for axis in arg.dims]
    return graph.node(op, args, along, kind="float", dims=dims)


@functools.cache
def _parsed(formula: str) -> ast.expr:
    return parse_expression(formula)
