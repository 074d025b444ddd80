"""Draws ops with several products: attention, and layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.random_specs.calls import Draw
from tests.random_specs.decisions import FACTORS, FLOATS, QUERIES
from tests.random_specs.nodes import ROWS, Array, Dim, Node
from tests.random_specs.values import call, const, leaf


def array(m: Any, prefix: str, dtype: str, dims: Sequence[Dim], kind: str = "float") -> Node:
    """A new input."""
    m.inputs.append(Array(m.fresh(prefix), dtype, tuple(dims)))
    return leaf("input", kind, m.inputs[-1].axes, (m.inputs[-1].name, None))


def factor(m: Any, value: Node, other: str) -> Node:
    """A computed factor of a product with an array of this dtype, in 16 bits where the array has fewer."""
    dtypes = dict(m.types).get(other, (other,))
    return Node("cast", "float", value.dims, (value,), "bfloat16") if any("8" in d for d in dtypes) else value


def dot(a: Node, b: Node, axis: str) -> Node:
    return Node("dot", "float", (a.dims | b.dims) - {axis}, (a, b), axis)


def some(m: Any, axes: Sequence[str], share: float = 0.5) -> tuple[str, ...]:
    return tuple(a for a in axes if m.chance(share))


# Attention


def attention(m: Any) -> None:
    """Scores, a chain of them, weights, and an output; perhaps the logsumexp of the scores, and formulas of the output."""
    grouped, single, same = m.chance(0.3), m.chance(0.15), m.chance(0.5)
    batch = () if single else ("B",)
    heads = ("H", "G") if grouped else ("H",) if m.chance(0.75) else ()
    value = "D" if same else "E"
    m.axes = (*batch, *heads, "Q", "S", "D", *(() if same else "E"))
    inner = (Dim("H", inner="G"),) if grouped else tuple(map(Dim, heads))
    rows_first = m.chance(0.5)

    def laid(row: str, last: str, own: tuple[Dim, ...]) -> tuple[Dim, ...]:
        middle = (Dim(row), *own) if rows_first else (*own, Dim(row))
        return (*map(Dim, batch), *middle, Dim(last))

    dtype = m.dtype(QUERIES)
    shared = m.chance(0.15) and not grouped  # one head of keys and values
    own = () if shared else tuple(map(Dim, heads[:1]))
    q = array(m, "q", dtype, laid("Q", "D", inner))
    k, v = array(m, "k", dtype, laid("S", "D", own)), array(m, "v", dtype, laid("S", value, own))
    m.domains += [f"{x.attr[0]}: finite" for x in (q, k)]
    scores = (*batch, *heads, "Q", "S")
    s = m.assign(m.fresh("s"), dot(q, k, "D"))
    for _ in range(m.random.choice([0, 1, 2, 3])):
        s = m.assign(m.fresh("s"), m.weighted(STEPS)(m, s, scores))
    p = m.assign(m.fresh("p"), m.weighted(WEIGHTS)(m, s, heads))
    if m.chance(0.15):
        key = m.fresh("key")
        m.inputs.append(Array(key, "uint32", (Dim(parts=2),)))
        kept = Node("bernoulli", "bool", frozenset(scores), (const(0.75),), Draw(key, scores, True))
        p = m.assign(m.fresh("p"), call("where", kept, call("div", p, const(0.75)), const(0.0)))
    o = m.assign(m.fresh("o"), dot(factor(m, p, dtype), v, "S"))
    m.pool = [o]
    written = laid("Q", value, inner)
    axes = tuple(name for d in written for name in (d.axis, d.inner) if name)
    for _ in range(m.random.choice([0, 0, 1, 2])):
        rest = some(m, axes, 0.6)
        if not grouped or ("H" in rest) == ("G" in rest):
            dims = [d for d in written if d.axis in rest]
            m.pool.append(array(m, "g", m.dtype(FLOATS), dims))
    whole = frozenset(axes)
    o = o if m.chance(0.6) else m.covering(m.expression("float", whole, 1), whole)
    m.add_output(axes, m.absorbing(o, whole), dtype=dtype if m.chance(0.6) else "", given=written)
    if m.chance(0.25):
        dims = (*map(Dim, batch), *inner, Dim("Q"))
        lse = call("logsumexp", s, attr=("S",))
        m.add_output((*batch, *heads, "Q"), lse, dtype="float32", given=dims)


def _scaled(m: Any, s: Node, axes: Sequence[str]) -> Node:
    if m.chance(0.5):
        return call("mul", s, const(m.random.choice([0.125, 0.3])))
    if m.chance(0.5):
        return call("mul", s, array(m, "scale", "float32", [Dim("H")] if "H" in axes else []))
    m.make_params()
    found = [n for n in m.pool if n.op == "param" and n.kind == "float"]
    m.params = [p for p in m.params if any(p.name == n.attr for n in found[:1])]
    m.pool = []
    return call("mul", s, found[0]) if found else call("mul", s, const(0.2))


def _biased(m: Any, s: Node, axes: Sequence[str]) -> Node:
    own = some(m, [a for a in axes if a != "G"], 0.6)
    return call("add", s, array(m, "bias", m.dtype(FLOATS), [Dim(a) for a in own]))


def _masked(m: Any, s: Node, axes: Sequence[str]) -> Node:
    own = some(m, [a for a in axes if a != "G"], 0.6) or ("S",)
    fill = const(m.random.choice(["-inf", -1e4]))
    return call("where", array(m, "mask", "bool", [Dim(a) for a in own], "bool"), s, fill)


def _places() -> tuple[Node, Node]:
    return leaf("index", "int", ["S"], "S"), leaf("index", "int", ["Q"], "Q")


def _causal(m: Any, s: Node, axes: Sequence[str]) -> Node:
    column, row = _places()
    keep = call("le", column, row)
    if m.chance(0.3):
        keep = call("both", keep, call("lt", call("sub", row, column), const(m.random.choice([3, 20, 100]))))
    elif m.chance(0.3):
        row = call("add", row, call("sub", leaf("size", "int", (), "S"), leaf("size", "int", (), "Q")))
        keep = call("le", column, row)
    elif m.chance(0.3):
        keep = call("either", keep, call("lt", column, const(8)))
    return call("where", keep, s, const("-inf"))


def _documents(m: Any, s: Node, axes: Sequence[str]) -> Node:
    batch = [Dim("B")] if "B" in axes and m.chance(0.7) else []
    own = [array(m, "document", "int32", [*batch, Dim(a)], "int") for a in "QS"]
    return call("where", call("eq", *own), s, const("-inf"))


def _sloped(m: Any, s: Node, axes: Sequence[str]) -> Node:
    column, row = _places()
    slope = const(m.random.choice([0.1, -0.02]))
    return call("add", s, call("mul", slope, call("sub", column, row)))


STEPS: dict[Callable[[Any, Node, Sequence[str]], Node], int] = {
    _scaled: 5,
    lambda m, s, axes: call("mul", const(3.0), call("tanh", call("div", s, const(3.0)))): 2,
    _biased: 3,
    _masked: 3,
    _causal: 5,
    _documents: 1,
    _sloped: 1,
}


def _sink(m: Any, s: Node, heads: Sequence[str]) -> Node:
    sink = array(m, "sink", "float32", [Dim("H")] if "H" in heads else [])
    most = m.assign(m.fresh("most"), call("maximum", call("max", s, attr=("S",)), sink))
    e = m.assign(m.fresh("e"), call("exp", call("sub", s, most)))
    total = call("add", call("sum", e, attr=("S",)), call("exp", call("sub", sink, most)))
    return Node("div", "float", e.dims, (e, total))


WEIGHTS: dict[Callable[[Any, Node, Sequence[str]], Node], int] = {
    lambda m, s, heads: call("softmax", s, attr=("S",)): 7,
    _sink: 1,
    lambda m, s, heads: call("sigmoid", s): 1,
    lambda m, s, heads: call("mul", call("tanh", s), const(0.1)): 1,
}


# Layers


def layers(m: Any) -> None:
    """One or two products of what formulas and a norm give, with gates, and several outputs."""
    rows = ("B", "S") if m.chance(0.3) else (ROWS,)
    two, dtype = m.chance(0.5), m.dtype(FACTORS)
    m.axes = (*rows, "K", "F", *("M" if two else ""))
    x = array(m, "x", dtype, map(Dim, [*rows, "K"]))
    m.pool, first = [x], frozenset([*rows, "K"])
    for _ in range(m.random.choice([0, 1, 1])):
        m.pool.append(array(m, "a", m.dtype(FLOATS), map(Dim, some(m, [*rows, "K"]))))
    n = x
    if m.chance(0.3):
        mean = call("mean", call("square", x), attr=("K",))
        n = call("mul", x, call("rsqrt", call("add", mean, const(1e-3))))
    if m.chance(0.5) or len(m.pool) > 1:
        n = m.absorbing(m.covering(n, first), first)
    n = m.assign(m.fresh("n"), n) if n.args else n
    made = [_product(m, n, dtype, "K", "F") for _ in range(m.random.choice([1, 1, 2]))]
    u = _after(m, made, (*rows, "F"))
    if two and m.chance(0.3):
        m.add_output((*rows, "F"), u)
    if two:
        u = _after(m, [_product(m, u, dtype, "F", "M")], (*rows, "M"))
    last = "M" if two else "F"
    for axes in m.random.sample([(), (last,), rows], k=m.random.choice([1, 1, 2])):
        value = call(m.random.choice(["sum", "mean", "max"]), u, attr=axes) if axes else u
        m.add_output([a for a in (*rows, last) if a not in axes], value)


def _product(m: Any, value: Node, dtype: str, axis: str, column: str) -> Node:
    weight = array(m, "w", dtype, map(Dim, (axis, column) if m.chance(0.5) else (column, axis)))
    return m.assign(m.fresh("p"), dot(factor(m, value, dtype) if value.op != "input" else value, weight, axis))


def _after(m: Any, made: list[Node], axes: Sequence[str]) -> Node:
    """An epilogue."""
    m.pool = list(made)
    for _ in range(m.random.choice([0, 1, 1, 2])):
        m.pool.append(array(m, "c", m.dtype(FLOATS), map(Dim, some(m, axes))))
    dims = frozenset(axes)
    value = m.absorbing(m.covering(m.expression("float", dims, m.random.choice([0, 1, 2])), dims), dims)
    return m.assign(m.fresh("u"), value)


MAKERS: dict[str, Callable[[Any], None]] = {"attention": attention, "layers": layers}
