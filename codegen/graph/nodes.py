"""The typed expression graph: dtypes, named axes, nodes, and how they print.

A node has an operation, arguments, a kind (float, int or bool) and the named axes along which it varies. The `Graph` that
makes nodes interns them, so equal expressions are the same object and a shared subexpression is stored once. Nothing here
depends on YAML, on text positions, or on a backend.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from codegen.errors import UserError

ROWS = "..."  # one logical axis for any number of leading axes


OWN = ("uint4", "float4_e2m1fn")  # dtypes for which kernels have element types of their own


@dataclass(frozen=True)
class DType:
    """An array element type: its name in JAX and in CuTe DSL, its kind, its size in bits, and the architectures that have it."""

    name: str
    cutlass: str
    kind: str
    bits: int
    min_arch: int = 80

    @property
    def size(self) -> int:
        """The bytes that hold an element: 1 also where two elements share a byte."""
        return max(1, self.bits // 8)

    @property
    def packed(self) -> bool:
        """Whether two neighbours along the last axis share a byte, the first of them in its low half."""
        return self.bits < 8

    @property
    def scales(self) -> bool:
        """Whether it is a type of powers of two: no sign, no zero."""
        return self.name == "float8_e8m0fnu"

    @property
    def unusual(self) -> bool:
        """Whether kernels convert it with functions of their own."""
        return self.packed or self.scales

    @property
    def text(self) -> str:
        """Its name in a kernel."""
        return f"{'device' if self.name in OWN else 'cutlass'}.{self.cutlass}"

    @property
    def low(self) -> int:
        """The least value of an integer type."""
        return 0 if self.name.startswith("u") else -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        """The greatest value of an integer type."""
        return (1 << (self.bits - (not self.name.startswith("u")))) - 1

    def bytes_of(self, count: int) -> int:
        """The bytes of a number of neighbouring elements."""
        return count * self.bits // 8


DTYPES = {
    d.name: d
    for d in (
        DType("bool", "Boolean", "bool", 8),
        DType("int4", "Int4", "int", 4),
        DType("int8", "Int8", "int", 8),
        DType("int16", "Int16", "int", 16),
        DType("int32", "Int32", "int", 32),
        DType("int64", "Int64", "int", 64),
        DType("uint4", "Uint4", "int", 4),
        DType("uint8", "Uint8", "int", 8),
        DType("uint16", "Uint16", "int", 16),
        DType("uint32", "Uint32", "int", 32),
        DType("float4_e2m1fn", "Float4", "float", 4),
        DType("float8_e4m3fn", "Float8E4M3FN", "float", 8, 89),
        DType("float8_e5m2", "Float8E5M2", "float", 8, 89),
        DType("float8_e8m0fnu", "Float8E8M0FNU", "float", 8),
        DType("float16", "Float16", "float", 16),
        DType("bfloat16", "BFloat16", "float", 16),
        DType("float32", "Float32", "float", 32),
        DType("float64", "Float64", "float", 64),
    )
}


@dataclass(frozen=True, eq=False)
class Node:
    """One operation. `attr` is its parameter that is not a node: a name, a constant, a dtype, an axis."""

    op: str
    args: tuple[Node, ...]
    attr: object
    kind: str
    dims: tuple[str, ...]

    @property
    def is_const(self) -> bool:
        return self.op == "const"


WIDE = "wide "  # a prefix of a type: float32 instead of float16, whose range is too small; other types are unchanged
COMPUTE = "float"  # instead of a type: the type in which a call computes floats, float64 where an input is float64, else float32


def dtypes_of(name: str, variables: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The possible dtypes of: a dtype's name, a type variable, either of them after `WIDE`, or `COMPUTE`."""
    if name == COMPUTE:
        return ("float32", "float64")
    own = name.removeprefix(WIDE)
    found = variables.get(own, (own,))
    return found if own == name else tuple(dict.fromkeys(map(widened, found)))


def dtype_of(name: str, variables: Mapping[str, str]) -> str:
    """Its dtype in a binding of the type variables; for `COMPUTE`, with all inputs present."""
    if name == COMPUTE:
        return "float64" if "float64" in variables.values() else "float32"
    own = name.removeprefix(WIDE)
    bound = variables.get(own, own)
    return bound if own == name else widened(bound)


def widened(dtype: str) -> str:
    """The dtype itself, or float32 for float16."""
    return "float32" if dtype == "float16" else dtype


@dataclass(frozen=True)
class Leaf:
    """The attribute of an `input` node: the input's name, and the part of its axis with parts (None without parts)."""

    name: str
    part: int | None = None

    def __str__(self) -> str:
        return part_text(self.name, self.part)


@dataclass(frozen=True)
class Along:
    """The attribute of a scan: its axis; whether it runs from the axis' end; whether it gives the state before each element
    instead of the state after it."""

    axis: str
    reverse: bool = False
    before: bool = False

    @property
    def back(self) -> Along:
        """The opposite direction, with the state before each element."""
        return Along(self.axis, not self.reverse, True)


@dataclass(frozen=True)
class Selected:
    """The attribute of a selection: the axes along which it selects, as if they were one, the axis that replaces them in the
    result, and the number of selected elements. A sort, which selects all elements, has its only axis twice, and 0. A
    threshold replaces its only axis by none, "", and has 0."""

    axes: tuple[str, ...]
    into: str
    count: int

    @property
    def sorts(self) -> bool:
        return self.axes == (self.into,)

    def __str__(self) -> str:
        if not self.count:
            return f"axis={axes_text(self.axes)}"
        return f"{self.into}={self.count}, axis={axes_text(self.axes)}"


@dataclass(frozen=True)
class Call:
    """A call of a composite function, whose result is a node: its arguments by name."""

    name: str
    arguments: dict[str, Node | tuple[str, ...]]  # a value, or axes

    @property
    def is_private(self) -> bool:
        """Whether only the prelude calls the function."""
        return self.name.startswith("_")

    @property
    def values(self) -> tuple[Node, ...]:
        return tuple(a for a in self.arguments.values() if isinstance(a, Node))


@dataclass(frozen=True)
class Put:
    """The place of an output that is another array except at some indices: the `index`, and the axis that it
    indexes."""

    table: str  # the input whose elements the output has elsewhere
    index: str
    axis: str
    how: str = "set"  # or add, max, min: the element of the table is combined with the value
    # Whether floats are combined: one kernel writes them, and later kernels combine those of one index in a fixed order
    apart: bool = False


@dataclass(frozen=True)
class Statement:
    """A checked line of the chain: the name (and the part of an output) that it assigns, and its value; for an output
    of `put`, also where it is written."""

    name: str
    part: int | None
    value: Node
    at: Put | None = None

    @property
    def target(self) -> str:
        """The assigned name, as in the chain."""
        return part_text(self.name, self.part)


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain that is read: its statements, and the graph that made their values."""

    statements: tuple[Statement, ...]
    graph: Graph

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, arguments before their users."""
        return nodes_of(self.statements)

    @functools.cached_property
    def ops(self) -> frozenset[str]:
        """The operations of its nodes."""
        return frozenset(node.op for node in self.nodes)


class Graph:
    """Makes nodes, each distinct node once. `axes` is the spec's order of axes, which dims always follow. `calls` maps nodes that
    are results of composite functions, by identity, to their calls."""

    def __init__(self, axes: Iterable[str]):
        self.axes = tuple(axes)
        self.calls: dict[int, Call] = {}
        self._nodes: dict[tuple[Any, ...], Node] = {}
        self._orders: dict[tuple[str, ...], tuple[str, ...]] = {}

    def node(
        self, op: str, args: tuple[Node, ...] = (), attr: object = None, *, kind: str, dims: Iterable[str]
    ) -> Node:
        """The node of an operation; equal calls give the same object."""
        # 0.0 == -0.0 and 1 == True == 1.0, but they are different constants
        tag = (type(attr).__name__, repr(attr)) if op == "const" else attr
        key = (op, tuple(map(id, args)), tag, kind)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Node(op, args, attr, kind, self.order(dims))
        return found

    def elementwise(self, op: str, *args: Node) -> Node:
        """The float that an element-wise operation computes."""
        return self.node(op, args, kind="float", dims=[axis for a in args for axis in a.dims])

    def rebuilt(self, node: Node, args: tuple[Node, ...], dims: Iterable[str] | None = None) -> Node:
        """A node with these arguments, along these axes or by default its own."""
        if all(a is b for a, b in zip(args, node.args, strict=True)):
            return node
        return self.node(node.op, args, node.attr, kind=node.kind, dims=node.dims if dims is None else dims)

    def rebuilt_with_call(self, node: Node, args: tuple[Node, ...], made: Mapping[int, Node]) -> Node:
        """The same, with the call whose result the node is. `made` are the new nodes of that call's arguments, by identity."""
        own = self.rebuilt(node, args)
        if own is not node and (call := self.calls.get(id(node))) is not None:
            arguments = {n: made.get(id(a), a) if isinstance(a, Node) else a for n, a in call.arguments.items()}
            self.calls.setdefault(id(own), Call(call.name, arguments))
        return own

    def fork(self) -> Graph:
        """A graph that begins with these nodes; nodes that are added to it are not added to this one."""
        made = Graph(self.axes)
        made.calls, made._nodes = dict(self.calls), dict(self._nodes)
        return made

    def const(self, value: bool | int | float) -> Node:
        """A constant. Raises `UserError` for an integer of more than 64 bits."""
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UserError(f"the integer constant {_short(value)} does not fit 64 bits", "write it as a float: 1e20")
        return self.node("const", attr=value, kind=kind, dims=())

    def order(self, dims: Iterable[str]) -> tuple[str, ...]:
        """The union of axes in the spec's order."""
        names = tuple(dims)
        found = self._orders.get(names)
        if found is None:
            found = self._orders[names] = tuple(axis for axis in self.axes if axis in names)
        return found


def _short(value: int) -> str:
    return str(value) if -(2**70) < value < 2**70 else f"of {value.bit_length()} bits"


def topological(
    roots: Iterable[Node],
    leaf: Callable[[Node], bool] | None = None,
    arguments: Callable[[Node], tuple[Node, ...]] | None = None,
) -> Iterator[Node]:
    """Every node that the roots reach, each once, arguments before their users. It does not recurse, so any depth works. Nodes
    behind a `leaf` are not reached. `arguments` gives the arguments of a node."""
    seen: set[int] = set()
    stack: list[Node | None] = [*reversed([*roots])]
    users: list[Node] = []  # their arguments are on the stack, each one's above a None
    # Names for the methods, since a build meets half a million nodes here: a fifth of the time of this loop
    pop, push, add = stack.pop, stack.append, seen.add
    while stack:
        node = pop()
        if node is None:
            yield users.pop()
            continue
        key = id(node)
        if key in seen:
            continue
        add(key)
        if leaf is None or not leaf(node):
            args = node.args if arguments is None else arguments(node)
            if args:
                users.append(node)
                push(None)
                stack += args[::-1]
                continue
        yield node


@functools.lru_cache(maxsize=64)
def nodes_of(statements: tuple[Statement, ...]) -> tuple[Node, ...]:
    """Every node of some statements, arguments before their users. A plan and its text ask a dozen times for the nodes of a chain."""
    return tuple(topological(s.value for s in statements))


def picked_axes(node: Node) -> tuple[str, ...]:
    """The axes of the table of a `pick`, in the order of its places: first the one along which it is indexed. Each of the others is
    the only axis of its place: the order of the table's axes may be another one, and differs between specs."""
    return (str(node.attr), *(axis for place in node.args[2:] for axis in place.dims))


def put_inputs(statements: Iterable[Statement]) -> set[str]:
    """The inputs that `put` names: tables and indices, which are not values of the chain."""
    return {name for s in statements if s.at for name in (s.at.table, s.at.index)}


def least_sizes(values: Iterable[Node]) -> dict[tuple[str, ...], int]:
    """The least number of elements along axes, since so many of them are selected."""
    chosen = [n.attr for n in topological(values) if isinstance(n.attr, Selected) and n.attr.count]
    return {how.axes: max(other.count for other in chosen if other.axes == how.axes) for how in chosen}


def reaching(statements: Iterable[Statement], names: Iterable[str]) -> dict[int, set[str]]:
    """For each node, by identity, the named values that use it, directly or not."""
    wanted = set(names)
    found: dict[int, set[str]] = {}
    for statement in statements:
        if statement.name in wanted:
            for node in topological([statement.value]):
                found.setdefault(id(node), set()).add(statement.name)
    return found


def part_text(name: str, part: int | None) -> str:
    """x, or x[0]"""
    return name if part is None else f"{name}[{part}]"


def axes_text(axes: tuple[str, ...]) -> str:
    """Axes as the language writes them: N, or (..., N)."""
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def dims_text(dims: tuple[str, ...]) -> str:
    """Named axes as messages and golden files print them: [..., N]."""
    return "[" + ", ".join(dims) + "]"


def print_statements(statements: Iterable[Statement]) -> str:
    """The graph as text, one operation per line, for debugging and golden files.

    %0 = input x : float[..., N]
    """
    lines: list[str] = []
    names: dict[int, str] = {}
    numbers = itertools.count()
    for statement in statements:
        for node in topological([statement.value]):
            if id(node) in names:
                continue
            if node.is_const:
                names[id(node)] = repr(node.attr)
                continue
            names[id(node)] = name = f"%{next(numbers)}"
            attr = "" if node.attr is None else f" {_attr_text(node.attr)}"
            args = ", ".join(names[id(arg)] for arg in node.args)
            lines.append(f"{name} = {node.op}{attr}{' ' + args if args else ''} : {node.kind}{dims_text(node.dims)}")
        lines.append(f"{statement.target} = {names[id(statement.value)]}")
    return "\n".join(lines) + "\n"


def _attr_text(attr: object) -> str:
    if isinstance(attr, tuple):
        return "(" + ", ".join(map(_attr_text, attr)) + ")"
    return str(attr)


def most_alive(values: Sequence[Node], axes: AbstractSet[str], within: bool = False) -> int:
    """How many values along some axes are alive at once at most, each from where it is computed, in the graph's order, until its
    last use. Parameters and constants do not count. `within`: nor does what only values without these axes need."""
    nodes = list(topological(values, lambda n: within and not axes & set(n.dims)))
    last = {id(arg): place for place, node in enumerate(nodes) for arg in node.args}
    alive: set[int] = set()
    most = 0
    for place, node in enumerate(nodes):
        if axes & set(node.dims):
            alive.add(id(node))
        most = max(most, len(alive))
        alive = {i for i in alive if last.get(i, -1) > place}
    return most


def lost_axes(reduction: Node) -> tuple[str, ...]:
    """The axes that a reduction reduces, in the spec's order."""
    assert isinstance(reduction.attr, tuple)
    return reduction.attr


def as_multiplied(factor: Node) -> Node:
    """A factor of a matrix product in the form in which it is multiplied: an input or a cast, without the conversion of
    integers to floats, which the product does."""
    inner = factor.args[0] if factor.op == "float" else factor
    return inner if inner.op in ("input", "cast") else factor


def along_of(scan: Node) -> Along:
    """The attribute of a scan."""
    assert isinstance(scan.attr, Along)
    return scan.attr
