"""The backward of a contraction's epilogue. It takes the products, or a value computed from them, whichever reads least."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from codegen.autodiff.reverse import Backward, Reverse
from codegen.errors import UserError
from codegen.graph.names import fresh
from codegen.graph.nodes import DTYPES, WIDE, Leaf, Statement
from codegen.language.chain import output_parts
from codegen.language.transfer import extended_spec
from codegen.plan.gemms.tiles import Product
from codegen.spec.spec import Array, Spec

MOST_TILES = 8  # the number of the chain's names, from the first, that are tried in place of the products


@dataclass(frozen=True)
class Pulled:
    """The backward of an epilogue. `forward` is the epilogue that runs if gradients are requested: it also saves products, and
    other values that the backward takes."""

    how: Backward
    forward: Spec | None
    products: tuple[tuple[str, str], ...]  # (acc, the output of `forward` that saves it)


def pull(spec: Spec, products: tuple[Product, ...], epilogue: Spec) -> Pulled:
    """The backward of an op's epilogue. It takes the products, or a value of the chain with their axes, whichever reads least.
    Raises `UserError` if no kernel can compute it."""
    try:
        return _pull(spec, products, epilogue, kept_dtype(spec, products))
    except UserError:
        # With products that are not rounded it may use the forward's statistics, and then waits for fewer reductions
        return _pull(spec, products, epilogue, "float32")


def _pull(spec: Spec, products: tuple[Product, ...], epilogue: Spec, dtype: str) -> Pulled:
    """The backward with products saved in this type, except products of integers, which are saved as int32. The gradient of a
    product has the type of the factors that it is multiplied with (`gradient_dtype`)."""
    stored = {(s.value.attr, spec.array(s.name).dtype): s.name for s in epilogue.read.statements
              if s.value.op == "input" and s.name in {o.name for o in spec.outputs}}  # fmt: skip
    accs, outputs = {}, {}
    for p in products:
        own_dtype = "int32" if p.acc.dtype == "int32" else dtype
        plain = own_dtype.removeprefix(WIDE)
        outputs[p.acc.name] = stored.get((Leaf(p.acc.name), plain))
        accs[p.acc.name] = replace(p.acc, dtype=plain if outputs[p.acc.name] else own_dtype)
    own = replace(epilogue, op=spec.op, inputs=tuple(accs.get(a.name, a) for a in epilogue.inputs))
    axes = products[0].acc.axes
    tiles = [
        s.name for s in own.read.statements
        if s.part is None and s.value.dims == axes and s.value.kind == "float" and s.value.args
        and s.name not in {o.name for o in spec.outputs}
    ]  # fmt: skip
    reverse = Reverse(own, dtype)
    found, reasons = [], []
    for save in ((), *((name,) for name in tiles[:MOST_TILES])):
        try:
            found.append(reverse.backward(reverse.saved_for(save=save)))
        except UserError as reason:
            reasons.append(reason)
    if not found:
        raise reasons[0]
    how = min(found, key=_reads)
    if dtype != "float32" and _compares_tiles(how.spec, axes):
        return _pull(spec, products, epilogue, "float32")  # rounding would make different elements tie
    how = functools.reduce(_sized_by_factors, products, how)
    inner = {dacc for acc, dacc in how.gradients if acc in accs}
    if inner:
        type_of = gradient_dtype(spec, products)
        made = tuple(replace(a, dtype=type_of) if a.name in inner else a for a in how.spec.outputs)
        how = replace(how, spec=replace(how.spec, outputs=made))
    shared = tuple((acc, name) for acc, name in outputs.items() if name is not None and acc in how.inputs)
    kept = [accs[p.acc.name] for p in products if p.acc.name in how.inputs and not outputs[p.acc.name]]
    forward, saved = _forward(spec, epilogue, how, kept)
    return Pulled(how, forward, (*shared, *saved))


def _forward(
    spec: Spec, epilogue: Spec, how: Backward, kept: Sequence[Array]
) -> tuple[Spec | None, tuple[tuple[str, str], ...]]:
    """The epilogue with the outputs that a backward takes: values of the chain, and `kept` products, which are saved under the returned
    names. None if it takes none."""
    more = list(how.forward.outputs[len(epilogue.outputs) :]) if how.forward else []
    if not kept and not more:
        return None, ()
    taken = {a.name for a in epilogue.arrays} | {s.name for s in epilogue.read.statements}
    names = {acc.name: fresh(taken, f"{acc.name}_saved") for acc in kept}
    graph = epilogue.read.graph.fork()
    lines = [
        Statement(
            names[acc.name],
            part,
            graph.node("input", attr=Leaf(acc.name, part), kind=epilogue.kind(acc), dims=acc.axes),
        )
        for acc in kept
        for part in output_parts(acc)
    ]
    forward = replace(
        epilogue, op=f"{spec.op}_forward", summary=f"{spec.op}, with the values that its backward takes.",
        outputs=(*epilogue.outputs, *more, *(replace(a, name=names[a.name]) for a in kept)), grad="none",
    )  # fmt: skip
    return extended_spec(forward, epilogue, lines, graph, taken), tuple(names.items())


def _sized_by_factors(how: Backward, product: Product) -> Backward:
    """The backward, with factors in place of a product that it takes only for the sizes of axes: nothing then saves the product."""
    spec, acc = how.spec, product.acc
    if acc.name not in how.inputs or any(
        n.attr == Leaf(acc.name, p) for n in spec.read.nodes for p in output_parts(acc)
    ):
        return how
    others = [a for a in spec.inputs if a.name != acc.name]
    missing = {*acc.axes} - spec.sized(others)
    factors = [a for a in (product.a, product.b) if spec.sized([a]) & missing and a not in others]
    if missing - spec.sized(factors):
        return how
    names = tuple(name for name in how.inputs if name != acc.name)
    names += tuple(a.name for a in factors)
    return replace(how, spec=replace(spec, inputs=(*others, *factors)), inputs=names)


def _compares_tiles(spec: Spec, axes: tuple[str, ...]) -> bool:
    """Whether a backward searches ties of values with all axes of a product."""
    nodes = spec.read.nodes
    return any(
        n.op == "eq" and any(a.kind == "float" and a.dims == axes and not a.is_const for a in n.args) for n in nodes
    )


def _reads(how: Backward) -> tuple[int, int]:
    """The number of arrays with the most axes that a backward reads, and the number of all arrays."""
    most = max(len(a.axes) for a in how.spec.inputs)
    return sum((a.parts or 1) for a in how.spec.inputs if len(a.axes) == most), len(how.spec.inputs)


def kept_dtype(spec: Spec, products: tuple[Product, ...]) -> str:
    """The type (a dtype or a type variable) in which products are saved. It is the type of the outputs with a product's
    axes, if the factors have the same type or all these types are narrower than float32. It is not float16, in which a
    product that the chain scales afterwards may overflow. It is float32 if factors are float8 or integers, and if all
    outputs are reductions: these are computed from the float32 sums, and so are their gradients."""
    factors = _factors(products)
    reduced = all(a.axes != products[0].acc.axes for a in spec.outputs)
    if reduced or not all(_is_wide(spec, dtype) for dtype in factors):
        return "float32"
    made = [a.dtype for a in spec.outputs if a.axes == products[0].acc.axes and _is_wide(spec, a.dtype)]
    kinds = {*made, *factors}
    if len(kinds) > 1 and any("float32" in spec.dtypes(dtype) for dtype in kinds):
        return "float32"
    found = (made or factors)[0]
    halves = [dtype == "float16" for dtype in spec.dtypes(found)]
    return "float32" if all(halves) else WIDE + found if any(halves) else found


def gradient_dtype(spec: Spec, products: tuple[Product, ...]) -> str:
    """The type of products' gradients, which are multiplied with the factors. It is the type of the factors; float32 if these have
    several types or are integers of more than 8 bits; the type of the first output if no factor has 16 bits."""
    factors = [dtype for dtype in _factors(products) if any(DTYPES[d].size > 1 for d in spec.dtypes(dtype))]
    outputs = [a.dtype for a in spec.outputs if _is_wide(spec, a.dtype)]
    found = dict.fromkeys(factors or outputs[:1])
    return next((dtype for dtype in found if len(found) == 1 and _is_wide(spec, dtype)), "float32")


def _factors(products: tuple[Product, ...]) -> list[str]:
    """The types in which the products' factors are multiplied."""
    return [x.dtype for p in products for x in ((p.a,) if p.widened else (p.a, p.b))]


def _is_wide(spec: Spec, dtype: str) -> bool:
    """Whether a type, or each type of a type variable, is a float of at least 16 bits."""
    return all(DTYPES[d].kind == "float" and DTYPES[d].size > 1 for d in spec.dtypes(dtype))
