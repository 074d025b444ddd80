"""Factors that a product's kernel computes itself from an input with narrow elements, as it loads them: `cast(q, T)`, or two
numbers of 4 bits in a byte of `q`. Either may be multiplied by a scale for each group along the contracted axis.

To find out which numbers a byte holds, the chain's integer operations are evaluated for every byte. So any way to write
them will do.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from codegen.graph.nodes import DTYPES, Leaf, Node, as_multiplied, topological
from codegen.plan.gemms.narrow_tiles import SOURCES
from codegen.shared import Loading
from codegen.spec.spec import Array, Axis, Spec

INTEGERS: dict[str, Callable[..., int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "shl": operator.lshift, "shr": operator.rshift, "floordiv": operator.floordiv, "mod": operator.mod, "neg": operator.neg,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "gt": operator.gt, "le": operator.le, "ge": operator.ge,
    "where": lambda condition, a, b: a if condition else b,
}  # fmt: skip


AS_IT_IS = Loading()  # elements of a byte, converted


@dataclass(frozen=True)
class Loaded:
    """How a product's kernel computes b. `source` is the input in memory; b has the product's axes instead."""

    source: Array
    along: str  # the axis of `source` along the contracted one
    how: Loading = AS_IT_IS
    scale: Array | None = None  # (blocks, columns)

    @property
    def converts(self) -> bool:
        """Whether b is only a conversion of the source."""
        return self.how == AS_IT_IS and self.scale is None

    def covers(self, extent: int, count: Callable[[tuple[str, ...]], int]) -> bool:
        """Whether there are as many bytes and scales as the contracted axis needs. If not, the last ones are used
        again."""
        scales = self.scale is None or count((self.scale.axes[0],)) * self.how.group >= extent
        return scales and (self.how.bits == 8 or 2 * count((self.along,)) >= extent)


def loaded(spec: Spec, factor: Node, axes: tuple[str, ...]) -> tuple[Leaf, Array, Loaded] | None:
    """The input that a factor is made of, b as an array with the product's axes, and how it is made. None for other factors: those
    that are no float of at least 16 bits, and more than narrow elements and a scale."""
    if factor.op != "cast" or len(axes) != 1 or any(DTYPES[d].size < 2 for d in spec.dtypes(str(factor.attr))):
        return None
    (axis,) = axes
    terms, waiting = list[Node](), [factor.args[0]]
    while waiting:
        term = waiting.pop()
        if term.op in ("mul", "stop_gradient") and term.kind == "float":
            waiting += term.args
        else:
            terms.append(term)
    scales = [found for t in terms if (found := _scale(spec, t, axis)) is not None]
    others = [t for t in terms if _scale(spec, t, axis) is None]
    if len(others) != 1 or len(scales) > 1:
        return None
    made = _bytes(spec, others[0]) or _halves(spec, others[0], axis)
    if made is None or not scales:
        return made
    ((scale, group),) = scales
    leaf, b, how = made
    columns = tuple(a for a in b.axes if a != axis)
    if len(b.dims) != 2 or leaf.part is not None or scale.axes[1:] != columns:
        return None
    return leaf, b, replace(how, how=replace(how.how, group=group), scale=scale)


def _bytes(spec: Spec, term: Node) -> tuple[Leaf, Array, Loaded] | None:
    """An input with elements of a byte, as it is."""
    value = as_multiplied(term)
    value = as_multiplied(value.args[0]) if value.op == "cast" else value
    if value.op != "input" or not isinstance(value.attr, Leaf):
        return None
    array = spec.array(value.attr.name)
    if array.default is not None or not {*spec.dtypes(array)} <= SOURCES:
        return None
    return value.attr, array, Loaded(array, "")


def _halves(spec: Spec, term: Node, axis: str) -> tuple[Leaf, Array, Loaded] | None:
    """Numbers of 4 bits, two in a byte along the contracted axis."""
    while term.op in ("float", "cast"):
        (term,) = term.args
    if term.kind != "int":
        return None
    inside = list(topological([term], lambda n: n.op == "pick"))
    picks = [n for n in inside if n.op == "pick"]
    known = all(
        n.op in INTEGERS or n.op == "const" or (n.op == "index" and n.attr == axis) for n in inside if n not in picks
    )
    if len(picks) != 1 or not known or (found := _picked(spec, picks[0], axis)) is None:
        return None
    table, along, each = found
    if each != 2 or len(table.dims) != 2 or spec.dtypes(table) != ("uint8",):
        return None
    numbers = {(byte, k): _computed(inside, {id(picks[0]): byte}, k) for byte in range(256) for k in range(4)}
    for flip, offset in itertools.product((0, 8), (numbers[0, 0] * -1, 8 - numbers[0, 0])):
        if (
            all(n == ((byte >> 4 * (k % 2) & 15) ^ flip) - offset for (byte, k), n in numbers.items())
            and 0 <= offset < 16
        ):
            dims = tuple(Axis((axis,), extents=(None,)) if d.names == (along,) else d for d in table.dims)
            b = replace(table, dims=dims)
            return Leaf(table.name), b, Loaded(table, along, Loading(4, flip, offset))
    return None


def _scale(spec: Spec, term: Node, axis: str) -> tuple[Array, int] | None:
    """The table of a scale for each group along the contracted axis, (blocks, columns), and the group."""
    if term.op != "pick" or (found := _picked(spec, term, axis)) is None:
        return None
    table, along, group = found
    if len(table.dims) != 2 or table.axes[0] != along or any(DTYPES[d].size not in (2, 4) for d in spec.dtypes(table)):
        return None
    return table, group


def _picked(spec: Spec, pick: Node, axis: str) -> tuple[Array, str, int] | None:
    """The table of a `pick`, its axis along which elements are taken, and how many neighbours along another `axis` take the same."""
    table, *indices = pick.args
    if table.op != "input" or not isinstance(table.attr, Leaf) or table.attr.part is not None:
        return None
    array, along = spec.array(table.attr.name), str(pick.attr)
    if array.default is not None or any(len(d.names) != 1 or d.parts is not None for d in array.dims):
        return None
    moved = [i for i in indices if i.op != "index"]  # the others are the result's own positions
    own = {str(i.attr) for i in indices if i.op == "index"}
    if len(moved) != 1 or own != {*table.dims} - {along} or moved[0].op != "floordiv":
        return None
    position, each = moved[0].args
    if (
        position.op != "index"
        or position.attr != axis
        or not each.is_const
        or not isinstance(each.attr, int)
        or each.attr < 1
    ):
        return None
    return array, along, each.attr


def _computed(nodes: list[Node], given: Mapping[int, int], position: int) -> int:
    """The last of some integer nodes, arguments before their users, at a position along the contracted axis."""
    values = dict(given)
    for node in nodes:
        if id(node) in values:
            continue
        if node.is_const:
            values[id(node)] = int(node.attr)  # type: ignore[call-overload]
        else:
            args = [values[id(a)] for a in node.args]
            values[id(node)] = position if node.op == "index" else INTEGERS[node.op](*args)
    return values[id(nodes[-1])]
