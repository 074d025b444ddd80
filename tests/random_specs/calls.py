"""The two texts of calls that take an axis, a table or a key: scans, shifts, selections, products of any values, computed
indices, and random numbers.

In the texts in jnp, a value has one dimension for each named axis, so that axis is at the same place from the end everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.random_specs.nodes import ROWS, Node

LETTERS = "abcdefghijklm"  # of a product's axes


class Scan(NamedTuple):
    """How a scan runs: the axis, its direction, and whether it gives the state before each element."""

    axis: str
    reverse: bool = False
    before: bool = False


class Draw(NamedTuple):
    """A draw of random numbers with the input `key`. `axes` is empty where the chain names none."""

    key: str
    axes: tuple[str, ...]
    named: bool
    dtype: str = ""


class Put(NamedTuple):
    """A table with values at the places along `axis` that an index array names."""

    table: str
    places: str
    axis: str
    how: str
    axes: tuple[str, ...]  # of the values: those of the index, and the table's others


# The state before the first element, for scans without an initial state
NEUTRAL = {"cumsum": "0", "cumprod": "1", "cummax": "-jnp.inf", "cumlogsumexp": "-jnp.inf", "scan": "0"}


def arrays_of(node: Node) -> tuple[str, ...]:
    """The inputs that a call names, other than those in its arguments."""
    if node.op in ("gather", "lookup"):
        return (node.attr[0],)
    if isinstance(node.attr, Draw):
        return (node.attr.key,)
    return (node.attr.table, node.attr.places) if isinstance(node.attr, Put) else ()


def axes_text(axes: tuple[str, ...]) -> str:
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def moved(made: Any, name: str, axis: str, by: int, fill: str) -> str:
    """The array `name` moved `by` places along an axis, with `fill`, an array of size `by` there, at the end that is free."""
    place, size = f"{name}.ndim - {-made.at(axis)}", made.sizes[axis]
    joined = f"[{fill}, {name}]" if by > 0 else f"[{name}, {fill}]"
    first = 0 if by > 0 else -by
    joined = f"jnp.concatenate({joined}, axis={made.at(axis)})"
    return f"jax.lax.slice_in_dim({joined}, {first}, {first} + {size}, axis={place})"


def filled(made: Any, node: Node, axis: str, by: int, value: str) -> str:
    return f"jnp.full({made.shape(node.dims, **{axis: str(abs(by))})}, {value}, {made.dtype(node.kind)})"


def _scan(made: Any, node: Node) -> str:
    how, name = node.attr, node.op
    place = f"{made.at(how.axis)}"
    args = [made.whole(a, node.dims) for a in node.args[: 2 if name == "scan" else 1]]
    first = node.args[2:] if name == "scan" else ()
    if name == "scan":
        how_far = f"reverse={how.reverse}, axis={args[0]}.ndim - {-made.at(how.axis)}"
        joined = "lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1])"
        text = made.assigned(("pair", node), f"jax.lax.associative_scan({joined}, ({', '.join(args)}), {how_far})")
        text = f"{text}[1] + {text}[0] * {made.value(first[0])}" if first else f"{text}[1]"
    elif name in ("cummax", "cumlogsumexp"):
        text = f"jax.lax.{name}({args[0]}, axis={args[0]}.ndim - {-made.at(how.axis)}, reverse={how.reverse})"
    else:
        own = f"jnp.flip({args[0]}, {place})" if how.reverse else args[0]
        text = f"jnp.{name}({own}, axis={place})"
        text = f"jnp.flip({text}, {place})" if how.reverse else text
    if how.before:
        by = -1 if how.reverse else 1
        state = f"jnp.broadcast_to({made.value(first[0])}, {made.shape(node.dims, **{how.axis: '1'})})" if first else ""
        start = state or filled(made, node, how.axis, by, NEUTRAL[name])
        text = moved(made, made.assigned(("states", node), text), how.axis, by, start)
    return text


def _scan_text(node: Node, args: list[str]) -> str:
    words = [*args[:2], f"axis={node.attr.axis}", *(f"initial={a}" for a in args[2:])]
    words += [f"{word}=true" for word in ("reverse", "before") if getattr(node.attr, word)]
    return f"{node.op}({', '.join(words)})"


def _shift(made: Any, node: Node) -> str:
    axis, by, fill = node.attr
    value = {"inf": "jnp.inf", "-inf": "-jnp.inf"}.get(str(fill), str(fill))
    array = made.whole(node.args[0], node.dims)
    return moved(made, array, axis, by, filled(made, node, axis, by, value))


def _top_k(made: Any, node: Node) -> str:
    lost, kept, count = node.attr
    places, ends = tuple(map(made.at, lost)), tuple(range(-len(lost), 0))
    rows = f"jnp.moveaxis({made.whole(node.args[0], node.args[0].dims)}, {places}, {ends})"
    if len(lost) > 1:  # as if they were one
        rows = made.assigned(("rows", node.args, node.attr), rows)
        rows = f"{rows}.reshape({rows}.shape[:-{len(lost)}] + ({' * '.join(made.sizes[a] for a in lost)},))"
    if node.args[0].kind == "float":  # jax.lax.top_k takes a NaN with a sign for the smallest number
        rows = f"jnp.where(jnp.isnan({rows}), jnp.nan, {rows})"
    both = made.assigned(("top_k", node.args, node.attr), f"jax.lax.top_k({rows}, {count})")
    found = f"{both}[{int(node.op != 'top_k')}]"
    found = f"jnp.expand_dims({found}, {ends[1:]})" if len(lost) > 1 else found
    text = f"jnp.swapaxes(jnp.moveaxis({found}, {ends}, {places}), {places[0]}, {made.at(kept)})"
    return text if node.op == "top_k" else f"{text}.astype({made.dtype('int')})"


def _order(made: Any, node: Node) -> str:
    text = f"jnp.{node.op}({made.whole(node.args[0], node.args[0].dims)}, axis={made.at(node.attr)})"
    return text if node.op == "sort" else f"{text}.astype({made.dtype('int')})"


def _unsort(made: Any, node: Node) -> str:
    x, places = (made.whole(a, node.dims) for a in node.args)
    place = made.at(node.attr)
    return f"jnp.take_along_axis({x}, jnp.argsort({places}, axis={place}), axis={place})"


def _largest(made: Any, node: Node) -> str:
    """The position of the largest along one axis, or along several, the last ones, as if they were one."""
    array, first = made.whole(node.args[0], node.args[0].dims), made.at(node.attr[0])
    if len(node.attr) == 1:
        text = f"jnp.{node.op}({array}, axis={first}, keepdims=True)"
    else:
        size = " * ".join(made.sizes[a] for a in node.attr)
        text = f"jnp.{node.op}({array}.reshape({array}.shape[:{first}] + ({size},)), axis=-1)"
        text += f"[..., {', '.join(['None'] * len(node.attr))}]"
    return f"{text}.astype({made.dtype('int')})"


def _nucleus(made: Any, node: Node) -> str:
    x, mass = node.args
    place = made.at(node.attr)
    order = made.assigned(("falling", node), f"jnp.flip(jnp.sort({made.whole(x, x.dims)}, axis={place}), {place})")
    short = f"jnp.cumsum({order}, axis={place}) - {order} < {made.value(mass)}"
    return f"jax.lax.stop_gradient(jnp.min(jnp.where({short}, {order}, jnp.inf), axis={place}, keepdims=True))"


def _dot(made: Any, node: Node) -> str:
    letters = dict(zip(made.named, LETTERS, strict=False)) | {ROWS: "..."}
    ordered = [[n for n in (ROWS, *made.named) if n in dims] for dims in (*(a.dims for a in node.args), node.dims)]
    left, right, result = ("".join(letters[n] for n in axes) for axes in ordered)
    factors = [made.flat(made.value(a), a.dims, axes) for a, axes in zip(node.args, ordered, strict=False)]
    return made.laid_out(f"jnp.einsum('{left},{right}->{result}', {', '.join(factors)})", ordered[2])


def _gather(made: Any, node: Node) -> str:
    table, _, rest = node.attr
    text = f"jnp.take({table}, {made.whole(node.args[0], node.args[0].dims)}, axis=0, mode='clip')"
    if rest:  # its axis comes last, and the index has an axis of size 1 there
        after = [":"] * (-1 - made.at(rest))
        text = f"jnp.moveaxis({text}, -1, {made.at(rest) - 1})[{', '.join(['...', '0', *after])}]"
    return text if node.kind == "bool" else f"{text}.astype({made.dtype(node.kind)})"


# What is computed from a table of the axis P, and perhaps another: in the chain and in jnp, as formulas of a table {0} and the axis {1}
LOOKUPS = (
    ("tanh({0}) * 2", "jnp.tanh({0}) * 2"),
    ("where(index(P) % 2 == 0, {0}, -{0})", "(jnp.where((jnp.arange({0}.shape[0]) % 2 == 0), 1, -1) * {0}.T).T"),
    ("softmax({0}, axis=P)", "jax.nn.softmax({0}, axis=0)"),
    (
        "{0} * rsqrt(mean(square({0}), axis={1}) + 0.1)",
        "{0} / jnp.sqrt(jnp.mean({0} * {0}, axis=-1, keepdims=True) + 0.1)",
    ),
)


def _lookup(made: Any, node: Node) -> str:
    table, axis, rest, which = node.attr
    wide = made.assigned(("table", table), f"{table}.astype(real)")
    computed = made.assigned(("computed", table, which), LOOKUPS[which][1].format(wide, rest))
    return _gather(made, node._replace(attr=(computed, axis, rest)))


def _draw(made: Any, node: Node) -> str:
    how = node.attr
    sizes = "".join(f"{made.sizes[a]}, " for a in how.axes if a != ROWS)
    shape = f"{'rows' if ROWS in how.axes else '()'} + ({sizes})"
    if node.op == "bernoulli":
        text = f"jax.random.bernoulli({how.key}, jnp.float32({made.value(node.args[0])}), {shape})"
    else:
        text = f"jax.random.{node.op}({how.key}, {shape}, jnp.{how.dtype})"
    text = text if node.kind == "bool" else f"{text}.astype({made.dtype(node.kind)})"
    return made.laid_out(text, how.axes)


def _draw_text(node: Node, args: list[str]) -> str:
    how, words = node.attr, [node.attr.key, *args]
    if how.named:
        words.append(f"axes={axes_text(how.axes)}")
    if node.op != "normal" and how.dtype not in ("", "float32", "uint32"):
        words.append(f"dtype={how.dtype}")
    return f"{node.op}({', '.join(words)})"


def _put(made: Any, node: Node) -> str:
    how = node.attr
    size = f"{how.table}.shape[0]"
    outside = f"({how.places} < 0) | ({how.places} >= {size})"
    places = f"jnp.where({outside}, {size}, {how.places}).reshape({how.places}.size)"
    rows = made.assigned(("rows", node), places)
    value = made.flat(made.whole(node.args[0], how.axes), how.axes, how.axes)
    value = f"{value}.reshape(({how.places}.size,) + {how.table}.shape[1:])"
    way = how.how or "set"
    return f"{how.table}.astype({made.dtype(node.kind)}).at[{rows}].{way}({value}, mode='drop')"


def _put_text(node: Node, args: list[str]) -> str:
    how = node.attr
    return f"put({how.table}, {args[0]}, {how.places}, axis={how.axis}{f', how={how.how}' if how.how else ''})"


def _along(node: Node, args: list[str]) -> str:
    return f"{node.op}({', '.join(args)}, axis={node.attr})"


class Call(NamedTuple):
    chain: Callable[[Node, list[str]], str]
    jnp: Callable[[Any, Node], str]


CALLS: dict[str, Call] = {
    **dict.fromkeys(NEUTRAL, Call(_scan_text, _scan)),
    "shift": Call(
        lambda node, args: "shift({}, axis={}, by={}, fill={})".format(*args, *node.attr),
        _shift,
    ),
    **dict.fromkeys(
        ("top_k", "top_k_index"),
        Call(lambda n, args: f"{n.op}({args[0]}, {n.attr[1]}, axis={axes_text(n.attr[0])})", _top_k),
    ),
    **dict.fromkeys(("sort", "argsort"), Call(_along, _order)),
    "unsort": Call(_along, _unsort),
    **dict.fromkeys(
        ("argmax", "argmin"),
        Call(
            lambda n, args: f"{n.op}({args[0]}, axis={axes_text(n.attr)})",
            _largest,
        ),
    ),
    "nucleus": Call(_along, _nucleus),
    "dot": Call(lambda node, args: f"dot({args[0]}, {args[1]}, axis={node.attr})", _dot),
    "gather": Call(lambda node, args: f"take({node.attr[0]}, {args[0]}, axis={node.attr[1]})", _gather),
    "lookup": Call(
        lambda n, args: f"take({LOOKUPS[n.attr[3]][0].format(n.attr[0], n.attr[2])}, {args[0]}, axis={n.attr[1]})",
        _lookup,
    ),
    **dict.fromkeys(("uniform", "normal", "bits", "bernoulli"), Call(_draw_text, _draw)),
    "put": Call(_put_text, _put),
}
