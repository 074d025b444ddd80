"""Finds a smaller spec that fails as a larger one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.random_specs.calls import CALLS, arrays_of
from tests.random_specs.nodes import Node, nodes
from tests.random_specs.tree import RandomSpec


def shrunk(spec: RandomSpec, fails: Callable[[RandomSpec], bool], most: int = 150) -> RandomSpec:
    """Drops and simplifies as long as `fails` is true, in at most so many attempts."""
    tried, seen = 0, {spec}
    progress = True
    while progress:
        progress = False
        for smaller in candidates(spec):
            smaller = pruned(smaller)
            if smaller in seen or not smaller.outputs or not smaller.inputs:
                continue
            seen.add(smaller)
            tried += 1
            if tried > most:
                return spec
            if fails(smaller):
                spec, progress = smaller, True
                break
    return spec


def candidates(spec: RandomSpec) -> Iterator[RandomSpec]:
    """Slightly smaller specs, the largest steps first."""
    if len(spec.outputs) > 1:
        for output in spec.outputs:
            yield replace(
                spec,
                outputs=tuple(o for o in spec.outputs if o != output),
                chain=tuple(s for s in spec.chain if s[0] != output.name),
            )
    for place, (name, part, value) in enumerate(spec.chain):
        for smaller in values(value):
            yield replace(spec, chain=(*spec.chain[:place], (name, part, smaller), *spec.chain[place + 1 :]))
    for place in range(len(spec.keys)):
        yield replace(spec, keys=(*spec.keys[:place], *spec.keys[place + 1 :]))
    for place, (name, dtypes) in enumerate(spec.types):
        for dtype in dtypes if len(dtypes) > 1 else ():
            yield replace(spec, types=(*spec.types[:place], (name, (dtype,)), *spec.types[place + 1 :]))
        if len(dtypes) == 1:
            arrays = [
                tuple(replace(a, dtype=dtypes[0]) if a.dtype == name else a for a in own)
                for own in (spec.inputs, spec.outputs)
            ]
            yield replace(
                spec, types=(*spec.types[:place], *spec.types[place + 1 :]), inputs=arrays[0], outputs=arrays[1]
            )
    for place, array in enumerate(spec.inputs):
        if array.default is not None:
            yield replace(spec, inputs=(*spec.inputs[:place], replace(array, default=None), *spec.inputs[place + 1 :]))
    for place, param in enumerate(spec.params):
        if not param.static:
            yield replace(spec, params=(*spec.params[:place], replace(param, static=True), *spec.params[place + 1 :]))


def values(node: Node) -> Iterator[Node]:
    """Values of the same kind with one operation less: an argument replaces it, here or further down."""
    if node.args:
        yield from (a for a in node.args if a.kind == node.kind and (node.op not in REDUCING or a.dims == node.dims))
        if node.kind == "float" and not node.dims:
            yield Node("const", "float", frozenset(), (), 0.5)
    for place, arg in enumerate(node.args):
        for smaller in values(arg):
            if smaller.dims == arg.dims or node.op not in REDUCING:
                made = node._replace(args=(*node.args[:place], smaller, *node.args[place + 1 :]))
                dims = frozenset().union(*(a.dims for a in made.args))
                yield made if node.op in REDUCING else made._replace(dims=dims)


REDUCING = frozenset([*"sum prod max min mean var norm logsumexp any all softmax log_softmax".split(), *CALLS])


def pruned(spec: RandomSpec) -> RandomSpec:
    """The spec without unused parts; a named value that is a leaf is replaced by it."""
    outputs = {o.name for o in spec.outputs}
    chain = list(spec.chain)
    for name, part, value in spec.chain:
        if part is None and name not in outputs and not value.args and value.op != "product":
            chain = [(n, p, put(v, name, value)) for n, p, v in chain if n != name]
    used: set[str] = set(outputs)
    for name, _, value in reversed(chain):
        if name in used:
            used |= {str(n.attr) for n in nodes(value) if n.op in ("named", "param")}
            used |= {n.attr[0] for n in nodes(value) if n.op == "input"}
            used |= {x for n in nodes(value) if n.op in ("take", "product") for x in n.attr[:2]}
            used |= {x for n in nodes(value) for x in arrays_of(n)}
    keys = tuple(
        (key, text)
        for key, text in spec.keys
        if key not in ("save", "domain")
        or all(w.partition(":")[0].strip() in used for w in text.strip("[]{}").split(","))
    )
    types = {a.dtype for a in (*spec.inputs, *spec.outputs) if a.name in used}
    return replace(
        spec,
        chain=tuple(s for s in chain if s[0] in used),
        inputs=tuple(a for a in spec.inputs if a.name in used),
        params=tuple(p for p in spec.params if p.name in used),
        types=tuple(t for t in spec.types if t[0] in types),
        keys=keys,
    )


def put(node: Node, name: str, value: Node) -> Node:
    if node.op == "named" and node.attr == name:
        return value
    if not node.args:
        return node
    args = tuple(put(a, name, value) for a in node.args)
    return node._replace(args=args)
