"""Draws calls that take an axis, a table or a key, with arguments that suit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.random_specs.calls import LOOKUPS, Draw, Put, Scan
from tests.random_specs.nodes import ROWS, Array, Dim, Node
from tests.random_specs.values import call, const, leaf

SELECTED = "J"  # the axis of what `top_k` selects
Dims = frozenset[str]


def operand(m: Any, dims: Dims) -> Node:
    """A float that varies along all these axes: an input, or a formula."""
    found = [n for n in m.pool if n.kind == "float" and n.dims == dims and n.op == "input"]
    if found and m.chance(0.5):
        return m.random.choice(found)
    return m.covering(m.expression("float", dims, m.random.choice([0, 1, 1, 2])), dims)


def an_axis(m: Any, dims: Dims) -> str:
    """One of the named axes, most often the last."""
    named = [a for a in m.family.axes if a in dims and a != ROWS]
    return named[-1] if m.chance(0.5) else m.random.choice(named)


def last_axis(m: Any, whole: Dims) -> str:
    """The axis of a selection or a sort, whose kernels work along the last one."""
    return an_axis(m, whole) if m.chance(0.1) else m.family.axes[-1]


def part_of(m: Any, whole: Dims, axis: str) -> Dims:
    """All axes, or some of those that inputs have."""
    found = sorted({tuple(sorted(n.dims)) for n in m.pool if axis in n.dims and n.op == "input"})
    return frozenset(m.random.choice(found)) if found and m.chance(0.3) else whole


def scan(m: Any, whole: Dims) -> Node:
    axis = an_axis(m, whole)
    dims = part_of(m, whole, axis)
    how = Scan(axis, m.chance(0.3), m.chance(0.2))
    name = m.weighted({"cumsum": 4, "scan": 6, "cumprod": 1, "cummax": 1, "cumlogsumexp": 2})
    value = operand(m, dims)
    if name != "scan":
        value = m.confined("near_one", value) if name == "cumprod" else value
        return Node(name, "float", dims, (value,), how)
    decay = (
        const(m.random.choice([0.5, 0.9, 1.0])) if m.chance(0.2) else call("sigmoid", m.expression("float", dims, 1))
    )
    value = call("mul", call("sub", const(1.0), decay), value) if m.chance(0.3) else value
    first: tuple[Node, ...] = ()
    if m.chance(0.5):
        rest = [a for a in m.family.axes if a in dims and a != axis]
        m.inputs.append(Array(m.fresh("first"), m.dtype(m.floats), m.dims(rest), 0.0 if m.chance(0.3) else None))
        first = (leaf("input", "float", rest, (m.inputs[-1].name, None)),)
    return Node("scan", "float", dims, (decay, value, *first), how)


def states(m: Any, whole: Dims) -> Node:
    """A scan whose states have one more axis, of a fixed size, along which they are reduced."""
    *lead, axis, last = m.family.axes
    width, arrays = m.random.choice([2, 4, 16]), []
    width = next((d.width for a in m.inputs for d in a.dims if d.axis == "H"), width)  # the same in two calls
    for axes in ((last, "H"), (*lead, axis, "H"), (*lead, axis, "H")):
        dims = (*map(Dim, axes[:-1]), Dim("H", width=width))
        m.inputs.append(Array(m.fresh("h"), m.dtype(m.floats), dims))
        arrays.append(leaf("input", "float", axes, (m.inputs[-1].name, None)))
    m.axes = (*m.family.axes, "H")
    step = call("sigmoid", operand(m, whole))
    decay = call("exp", call("neg", call("mul", step, call("sigmoid", arrays[0]))))
    value = call("mul", call("mul", step, operand(m, whole)), arrays[1])
    made = Node("scan", "float", whole | {"H"}, (decay, value), Scan(axis, m.chance(0.3), m.chance(0.1)))
    made = m.assign(m.fresh("states"), made)
    return call("sum", call("mul", made, arrays[2]), attr=("H",))


def shift(m: Any, whole: Dims) -> Node:
    axis = an_axis(m, whole)
    dims = part_of(m, whole, axis)
    by, fill = m.random.choice([1, 1, -1, -1, 2, -3, 5]), m.random.choice([0, 0, 0, 1.5, "-inf" if m.wild else -2.0])
    named = [n for n in m.pool if n.op == "named" and n.kind == "float" and axis in n.dims]
    value = m.random.choice(named) if named and m.chance(0.4) else operand(m, dims)
    return Node("shift", "float", value.dims, (value,), (axis, by, fill))


def top_k(m: Any, whole: Dims) -> Node | None:
    """Outputs along the selected axis; its smallest or its sum is returned."""
    if m.count:
        return None
    axes: tuple[str, ...] = (last_axis(m, whole),)
    named = [a for a in m.family.axes if a in whole and a != ROWS]
    if len(named) > 1 and m.chance(0.25):  # as if they were one
        axes = tuple(named[-2:])
    m.count, m.axes = m.random.choice([1, 2, 4, 8]), (*m.axes, SELECTED)
    value, dims = operand(m, whole), (whole - {*axes}) | {SELECTED}
    attr, own = (axes, SELECTED, m.count), [*(a for a in m.family.axes if a in whole and a not in axes), SELECTED]
    chosen = m.assign(m.fresh("top"), Node("top_k", "float", dims, (value,), attr))
    total = call("add", call("abs", call("sum", chosen, attr=(SELECTED,))), const(0.5))
    m.add_output(own, call("div", chosen, total) if m.chance(0.4) else chosen, given=m.dims(own))
    if m.chance(0.7):
        m.add_output(own, Node("top_k_index", "int", dims, (value,), attr), dtype="int32", given=m.dims(own))
    return call(m.random.choice(["min", "sum", "max"]), chosen, attr=(SELECTED,)) if m.chance(0.5) else None


def sort(m: Any, whole: Dims) -> Node:
    return Node("sort", "float", whole, (operand(m, whole),), last_axis(m, whole))


def argsort(m: Any, whole: Dims) -> Node:
    return Node("argsort", "int", whole, (operand(m, whole),), last_axis(m, whole))


def unsort(m: Any, whole: Dims) -> Node:
    """A value of sorted elements, each at its own place again."""
    axis, value = last_axis(m, whole), operand(m, whole)
    ordered = m.assign(m.fresh("sorted"), Node("sort", "float", whole, (value,), axis))
    changed = call("tanh", ordered) if m.chance(0.5) else Node("cumsum", "float", whole, (ordered,), Scan(axis))
    return Node("unsort", "float", whole, (changed, Node("argsort", "int", whole, (value,), axis)), axis)


def argmax(m: Any, whole: Dims) -> Node:
    named = tuple(a for a in m.family.axes if a in whole and a != ROWS)
    axes = named[-2:] if len(named) > 1 and m.chance(0.2) else (an_axis(m, whole),)
    return Node(m.random.choice(["argmax", "argmin"]), "int", whole - set(axes), (operand(m, whole),), axes)


def nucleus(m: Any, whole: Dims) -> Node:
    axis = last_axis(m, whole)
    q = m.assign(m.fresh("q"), call("softmax", operand(m, whole), attr=(axis,)))
    least = Node("nucleus", "float", whole - {axis}, (q, const(m.random.choice([0.3, 0.7, 0.9]))), axis)
    return call("where", call("ge", q, least), q, const(0.0))


def draw(m: Any, whole: Dims) -> Node:
    axes = tuple(m.family.axes)
    named = m.chance(0.4) or bool(m.family.along or m.family.over or m.outputs)  # else the first output has all axes
    if named and m.chance(0.5):
        axes = tuple(a for a in axes if m.chance(0.6)) or axes
    key = next((a.name for a in m.inputs if a.dtype == "uint32" and a.dims == (Dim(parts=2),)), None)
    if key is None or m.chance(0.3):
        key = m.fresh("key")
        m.inputs.append(Array(key, "uint32", (Dim(parts=2),)))
    name = m.weighted({"uniform": 3, "bernoulli": 3, "normal": 1, "bits": 1})
    dtypes = {
        "uniform": ["float32", "float16", "bfloat16"],
        "bits": ["uint32", "uint16", "uint8"],
        "normal": ["float32"],
    }
    dtype = m.random.choice(dtypes[name]) if name in dtypes else ""
    args = (const(m.random.choice([0.25, 0.5, 0.9])),) if name == "bernoulli" else ()
    kind = {"bernoulli": "bool", "bits": "int"}.get(name, "float")
    made = Node(name, kind, frozenset(axes), args, Draw(key, axes, named, dtype))
    if name == "bits":  # a few of the bits
        made = call("rem", made, const(7))
    return made


def gather(m: Any, whole: Dims) -> Node:
    """A table at computed indices."""
    named = [a for a in m.family.axes if a != ROWS]
    rest = named[-1] if m.chance(0.4) and len(m.family.axes) > 1 and not m.family.split else None
    kind = m.weighted({"float": 5, "int": 1})
    dtype = m.dtype(m.floats if kind == "float" else m.ints)
    m.inputs.append(Array(m.fresh("lookup"), dtype, tuple(map(Dim, ["P", *([rest] if rest else [])]))))
    dims = whole - {rest}
    wild = m.expression("int", dims, 2)
    index = wild if m.chance(0.5) else Node("cast", "int", (v := m.expression("float", dims, 1)).dims, (v,), "int32")
    own = index.dims | ({rest} if rest else frozenset())
    return Node("gather", kind, own, (index,), (m.inputs[-1].name, "P", rest))


def lookup(m: Any, whole: Dims) -> Node:
    """What is computed from a table, at computed indices."""
    found = gather(m, whole)
    while found.kind != "float":
        m.inputs.pop()
        found = gather(m, whole)
    name, axis, rest = found.attr
    which = m.random.randrange(len(LOOKUPS) if rest else len(LOOKUPS) - 1)
    return found._replace(op="lookup", attr=(name, axis, rest, which))


def put(m: Any, whole: Dims) -> None:
    """An output that is a table with new values."""
    axes = m.family.axes
    rest = axes[-1:] if m.chance(0.7) and axes[-1] != ROWS else ()
    lead = tuple(a for a in axes if a not in rest)
    how = m.weighted({"": 4, "add": 1, "max": 1, "min": 1})
    dims, dtype = tuple(map(Dim, ("P", *rest))), "int32" if how else m.dtype(m.floats)
    table, places = Array(m.fresh("cache"), dtype, dims), Array(m.fresh("slot"), "int32", tuple(map(Dim, lead)))
    m.inputs += [table, places]
    if how and m.chance(0.7):
        m.domains.append(f"{places.name}: index(P)")
    value = operand(m, frozenset(axes))
    value = Node("cast", "int", value.dims, (value,), "int8") if how else value
    attr = Put(table.name, places.name, "P", how, axes)
    made = Node("put", value.kind, frozenset(("P", *rest)), (value,), attr)
    m.add_output(("P", *rest), made, dtype=dtype, given=dims)


def parts(m: Any, whole: Dims) -> None:
    """Nothing: inputs and outputs of such a family have parts of blocks."""


FORMS: dict[str, Callable[[Any, Dims], Node | None]] = {
    "scan": scan, "states": states, "shift": shift, "top_k": top_k, "sort": sort, "argsort": argsort, "unsort": unsort,
    "argmax": argmax, "nucleus": nucleus, "draw": draw, "gather": gather, "lookup": lookup, "put": put, "parts": parts,
}  # fmt: skip
