"""Computes a mean and the variance about it in one pass, where a kernel for each would read the elements twice.

With any centre `k`, `mean(x) = k + mean(x - k)` and `var(x) = mean(square(x - k)) - square(mean(x - k))`. The centre is the mean of
a sample, one element of every `s` (`shared.SPACING`). Then `square(mean(x - k)) <= s * var(x)`, since the mean of the sample's
squares about the mean is at most `s` times that of all elements. So the difference loses a factor of at most `s + 1` in accuracy,
and about 1 where the sample is like the other elements. A shift by an estimate is known from Chan, Golub and LeVeque, Algorithms
for computing the sample variance, 1983.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from codegen.graph.nodes import Node, lost_axes, nodes_of, topological
from codegen.graph.ops import OPS
from codegen.plan.op import Op
from codegen.spec.spec import Spec
from codegen.stages.rewriting import with_statements

_OF_ELEMENTS = frozenset({*OPS, "input", "param", "const", "float", "cast"})


@dataclass(frozen=True)
class Centred:
    """The same op with its variances about centres. `results` are the values that stages write, each with a word for its name;
    `centres` those of them that are made of a sample. `origins` are the op's own values, by the identities of the values that
    replace them."""

    spec: Spec
    results: tuple[tuple[Node, str], ...]
    centres: tuple[Node, ...]
    origins: Mapping[int, Node]


def centred(spec: Spec) -> Centred | None:
    """The op with its variances about centres; None if it has no mean with a variance about it."""
    nodes = nodes_of(spec.read.statements)
    pairs = {id(v): m for v in nodes if (m := _mean_of(v)) is not None}
    if not pairs:
        return None
    made = _Centring(spec, pairs)
    statements = [replace(s, value=made.node(s.value)) for s in spec.read.statements]
    own = with_statements(spec, statements, made.graph, "means and variances in one sweep")
    return Centred(own, tuple(made.results), tuple(made.centres), made.origins)


def _mean_of(node: Node) -> Node | None:
    """The mean about which a node is a variance, or a variance times the number of elements: mean(square(x - m)) or
    sum(square(x - m)), where m = mean(x). So are mean(x - m) and sum(x - m), the rounding error of m."""
    if node.op not in ("mean", "sum") or node.args[0].op not in ("square", "mul", "sub"):
        return None
    (value,) = node.args
    difference, other = (value, value) if value.op == "sub" else (value.args[0], value.args[-1])
    if difference is not other or difference.op != "sub":
        return None
    x, mean = difference.args
    if mean.op != "mean" or mean.args[0] is not x or mean.attr != node.attr:
        return None
    return mean if all(n.op in _OF_ELEMENTS for n in topological([x])) else None


def sampled_axes(centres: Op) -> tuple[str, ...]:
    """The axes along which a stage that computes centres may read a sample: all its means are along them, and their
    size is not fixed."""
    means = [set(lost_axes(n)) for n in topological(s.value for s in centres.statements) if n.op == "mean"]
    dims = [d for a in centres.spec.inputs for d in a.dims]
    whole = {axis for d in dims if d.parts is not None or len(d.names) > 1 for axis in d.names}
    free = set.intersection(*means) - whole - set(centres.spec.extents)
    return tuple(axis for axis in centres.spec.axes if axis in free)


class _Centring:
    """Makes the nodes of a spec again, with `pairs` of a mean and the variance about it computed about a centre."""

    def __init__(self, spec: Spec, pairs: Mapping[int, Node]):
        self.graph, self.pairs = spec.read.graph.fork(), pairs
        self.made: dict[int, Node] = {}
        self.origins: dict[int, Node] = {}
        self.results: list[tuple[Node, str]] = []
        self.centres: list[Node] = []
        self.about: dict[int, tuple[Node, Node, Node]] = {}  # of a mean: x, the centre, mean(x - centre)
        self.means = {id(m) for m in pairs.values()}

    def node(self, value: Node) -> Node:
        for node in topological([value], lambda n: id(n) in self.made):
            if id(node) in self.made:
                continue
            if id(node) in self.means:
                own = self.mean(node)
            elif (mean := self.pairs.get(id(node))) is not None:
                own = self.variance(mean, node) if node.args[0].op != "sub" else self.error(mean, node)
            else:
                own = self.again(node)
            self.made[id(node)] = own
            self.origins[id(own)] = node
        return self.made[id(value)]

    def again(self, node: Node) -> Node:
        return self.graph.rebuilt_with_call(node, tuple(self.made[id(a)] for a in node.args), self.made)

    def mean(self, node: Node) -> Node:
        """The centre is 0 where the sample's is not finite: otherwise an infinity would become NaN."""
        (x,) = node.args
        finite = self.graph.node("isfinite", (node,), kind="bool", dims=node.dims)
        centre = self.graph.node("where", (finite, node, self.graph.const(0.0)), kind="float", dims=node.dims)
        rest = self.reduced(node, self.graph.elementwise("sub", x, centre))
        self.about[id(node)] = x, centre, rest
        own = self.graph.elementwise("add", centre, rest)
        self.centres.append(centre)
        self.results += [(centre, "centre"), (own, "mean")]
        return own

    def variance(self, mean: Node, node: Node) -> Node:
        x, centre, rest = self.about[id(mean)]
        elementwise = self.graph.elementwise
        difference = elementwise("sub", x, centre)
        squares = self.reduced(mean, elementwise("mul", difference, difference))
        own = elementwise("sub", squares, elementwise("mul", rest, rest))
        own = self.times_count(elementwise("maximum", own, self.graph.const(0.0)), node)
        self.results.append((own, "squares" if node.op == "sum" else "var"))
        return own

    def error(self, mean: Node, node: Node) -> Node:
        """The rounding error of `mean`, the sum of the centre and the rest."""
        _, centre, rest = self.about[id(mean)]
        own = self.graph.elementwise("add", self.graph.elementwise("sub", centre, self.made[id(mean)]), rest)
        own = self.times_count(own, node)
        self.results.append((own, "error"))
        return own

    def times_count(self, own: Node, node: Node) -> Node:
        """A mean, times the number of elements where the node is a sum."""
        for axis in lost_axes(node) if node.op == "sum" else ():
            size = self.graph.node("size", attr=axis, kind="int", dims=())
            own = self.graph.elementwise("mul", own, self.graph.node("float", (size,), kind="float", dims=()))
        return own

    def reduced(self, like: Node, x: Node) -> Node:
        return self.graph.node("mean", (x,), like.attr, kind="float", dims=like.dims)
