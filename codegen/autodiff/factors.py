"""The derivative of a matrix product, and the values of products that a forward saves for a backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from codegen.graph.nodes import DTYPES, WIDE, Graph, Node, dtypes_of, topological
from codegen.language.formula.products import product_of, type_of
from codegen.spec.spec import Array


def pulled_product(
    node: Node, g: Node, graph: Graph, arrays: Mapping[str, Array], types: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[Node, Node]]:
    """The factors of a product, each with its contribution from the product's adjoint: `g @ b^T` and `a^T @ g`, in
    which `g` is rounded to the type of the factors (`multiplied_type`). For a computed factor, the contribution in full
    precision goes to its value before rounding."""
    if g.is_const and g.attr == 0:
        return
    dtype = multiplied_type(node, arrays, types)
    for factor, other in (node.args, node.args[::-1]):
        own = factor.args[0] if factor.op == "cast" and factor.args[0].kind == "float" else factor
        axes = [axis for axis in other.dims if axis not in own.dims]
        if not axes:  # the product of a vector: each element has its own
            yield own, graph.elementwise("mul", g, other)
            continue
        rounded = g
        if type_of(g, arrays) != dtype:
            rounded = graph.node("cast", (g,), dtype, kind="float", dims=g.dims)
        yield own, product_of(graph, rounded, other, axes)


def multiplied_type(product: Node, arrays: Mapping[str, Array], types: Mapping[str, tuple[str, ...]]) -> str:
    """The type in which a product's adjoint is multiplied: the type of its factors of at least 16 bits; float32 if they
    differ, and bfloat16 if both are narrower."""
    found = {dtype for f in product.args if (dtype := type_of(f, arrays)) is not None and is_wide(dtype, types)}
    return "bfloat16" if not found else found.pop() if len(found) == 1 else "float32"


def saved_type(value: Node, arrays: Mapping[str, Array], types: Mapping[str, tuple[str, ...]], compute: str) -> str:
    """The type in which a value of products is saved: the type of their factors, but float32 instead of float16, whose range is too
    small for a product that is scaled afterwards. Values with fewer axes than the product are not rounded."""
    products = [n for n in topological([value], lambda n: n.op == "contract") if n.op == "contract"]
    if value.op == "cast" or any(set(value.dims) < set(p.dims) for p in products):
        return str(value.attr) if value.op == "cast" else compute
    found = {multiplied_type(p, arrays, types) for p in products}
    if len(found) != 1:
        return compute
    (dtype,) = found
    return WIDE + dtype if "float16" in dtypes_of(dtype, types) else dtype


def is_wide(dtype: str, types: Mapping[str, tuple[str, ...]]) -> bool:
    return all(DTYPES[d].kind == "float" and DTYPES[d].size > 1 for d in dtypes_of(dtype, types))
