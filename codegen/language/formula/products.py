"""Reads matrix products: which axes `a @ b` contracts, and the type that its factors are rounded to."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES, Graph, Leaf, Node, as_multiplied, dtypes_of, topological
from codegen.spec.spec import Array


def contracted(left: Node, right: Node, outputs: Collection[str], arrays: Mapping[str, Array]) -> str:
    """The axis that `left @ right` contracts: the one that both have and no output has; if there is none, the left side's last
    axis, if the right side has it. Raises `UserError` if no rule names one axis."""
    both = [a for a in left.dims if a in right.dims]
    own = [a for a in both if a not in outputs]
    axes = arrays[left.attr.name].axes if isinstance(left.attr, Leaf) and left.op == "input" else left.dims
    if not own and axes and axes[-1] in both:
        return axes[-1]
    if len(own) != 1:
        found = f"these are {', '.join(own)}" if own else "here there is none"
        hint = f"name it: dot(a, b, axis={own[0]})" if own else "name it: dot(a, b, axis=K)"
        raise UserError(f"'@' contracts the one axis that both sides have and no output has, and {found}", hint)
    return own[0]


def rounded(
    graph: Graph, left: Node, right: Node, arrays: Mapping[str, Array], types: Mapping[str, tuple[str, ...]]
) -> tuple[Node, Node]:
    """The factors of a product. Inputs and casts are multiplied in their own type. Any other value is rounded first (`cast`). It is
    rounded to the other factor's type if that is a float of at least 16 bits, else to the one such type of the arrays that the
    factors are computed from. Raises `UserError` if there are several types."""

    def wide(dtype: str) -> bool:
        return all(DTYPES[d].kind == "float" and DTYPES[d].size > 1 for d in dtypes_of(dtype, types))

    sides = (left, right)
    given = {type_of(n, arrays) for n in sides}
    if None not in given:
        return sides
    if {n.kind for n in sides} == {"int"}:
        found = {"int32"}
    else:
        found = {t for t in given if t is not None and wide(t)}
        found = found or {t for n in sides for t in types_within(n, arrays) if wide(t)}
    if len(found) != 1:
        words = " and ".join(sorted(found)) or "no float of 16 bits or more"
        message = f"'@' rounds a computed factor to the type of the arrays, and here there is {words}"
        raise UserError(message, "name the type: cast(e, bfloat16) @ b")
    (dtype,) = found
    kind = DTYPES[dtypes_of(dtype, types)[0]].kind

    def factor(value: Node) -> Node:
        if type_of(value, arrays) is not None:
            return value
        return graph.node("cast", (value,), dtype, kind=kind, dims=value.dims)

    return factor(left), factor(right)


def product_of(graph: Graph, left: Node, right: Node, axes: Collection[str]) -> Node:
    """The product of two factors over some axes."""
    dims = {*left.dims, *right.dims} - {*axes}
    return graph.node("contract", (left, right), graph.order(axes), kind=left.kind, dims=dims)


def type_of(factor: Node, arrays: Mapping[str, Array]) -> str | None:
    """The type of a factor that is an input or a cast: a dtype or a type variable. None for other values."""
    value = as_multiplied(factor)
    if value.op == "cast":
        return str(value.attr)
    return arrays[value.attr.name].dtype if isinstance(value.attr, Leaf) and value.op == "input" else None


def types_within(value: Node, arrays: Mapping[str, Array]) -> set[str]:
    """The types of the inputs and casts from which a value is computed; what a cast converts does not count. Only the inputs with the
    most axes count: a scale in float32 does not decide."""
    found = [
        n for n in topological([value], lambda n: n.op == "cast") if n.op in ("input", "cast") and n.kind == "float"
    ]
    most = max((len(n.dims) for n in found), default=0)
    return {t for n in found if len(n.dims) == most and (t := type_of(n, arrays)) is not None}
