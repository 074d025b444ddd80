"""Cuts a chain around attention: stages write the factors of its scores and its values, its kernel writes its results, and later stages
compute the rest."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

from codegen.errors import SpecError
from codegen.graph.nodes import Node, topological
from codegen.graph.ops import IN_STAGES, TAKES
from codegen.plan.attention import WRITTEN, AttentionPlan
from codegen.plan.op import Op
from codegen.spec.spec import Spec
from codegen.stages.cut import Kernel, Stages
from codegen.stages.products import cut_around, factors_of, products_of, weights_of

MOST_WEIGHTS = 4  # factors that are tried as attention's weights


def attending(spec: Spec, kernel: Kernel, derived: Callable[[Spec], Op]) -> Stages | None:
    """The stages of an op of which one is attention, after stages that write its factors. None if no `kernel` computes attention's
    weights. `derived` makes the ops of parts without products."""
    products = [n for n in spec.read.nodes if n.op == "contract"]
    weights = weights_of(products)
    paged = [f for p in products for f in factors_of(p) if f.op == "cast" and f.args[0].op in TAKES]
    every = dict.fromkeys([tuple(weights), *((w,) for w in weights[:MOST_WEIGHTS])]) if weights else ()
    for given, taken in itertools.product(every, dict.fromkeys([tuple(paged), ()])):
        with contextlib.suppress(SpecError):
            # Rows that the kernel takes from pages itself are not copied; only their places are computed before
            places = [n for n in dict.fromkeys(f.args[0].args[1] for f in taken) if n.op != "input"]
            before = [*places, *_reduced(given), *_results(spec, products, given)]
            found = cut_around(spec, kernel, derived, before, {id(n) for n in (*given, *taken)})
            if found is not None and any(isinstance(op.plan, AttentionPlan) for op in found.ops):
                return found
    return None


def _reduced(weights: Sequence[Node]) -> list[Node]:
    """The reductions, scans and selections that attention's weights are made of besides products: a forget gate's running sum. The
    kernel reads the last of them as arrays."""
    found = [
        n for n in topological(weights, lambda n: n.op == "contract") if n.op in IN_STAGES and not products_of([n])
    ]
    inside = {id(n) for node in found for n in topological([node]) if n is not node}
    return [n for n in found if id(n) not in inside]


def _results(spec: Spec, products: Sequence[Node], weights: Sequence[Node]) -> list[Node]:
    """The products with these weights, or their rounded values, that are neither outputs nor factors: a stage writes
    them for other stages."""
    outputs = {a.name for a in spec.outputs if {*spec.dtypes(a)} <= {*WRITTEN}}  # other types are converted to
    stored = [s.value for s in spec.read.statements if s.name in outputs]
    stored += [f for p in products for f in factors_of(p)]
    found = []
    for product in [p for p in products if any(w in weights for w in factors_of(p))]:
        takers = [n for n in spec.read.nodes if product in n.args]
        value = takers[0] if [n.op for n in takers] == ["cast"] else product
        found += [value] if value not in stored else []
        found += _of_rows(spec, product, weights)
    return list(dict.fromkeys(found))


def _of_rows(spec: Spec, product: Node, every: Sequence[Node]) -> list[Node]:
    """The values for each row of attention's scores, such as their logsumexp, that are needed for other values than the
    weights of `every` attention. The kernel of this product's weights writes them."""
    weights = next(f for f in factors_of(product) if products_of([f]))
    scores = {id(p) for p in products_of([weights]).values()}
    rows = {*product.dims} & {*weights.dims}
    users: dict[int, list[Node]] = {}
    sources: dict[int, set[int]] = {}  # the products from which each value is made
    own: dict[int, Node] = {}
    for node in spec.read.nodes:
        for argument in node.args:
            users.setdefault(id(argument), []).append(node)
        made = {id(node)} if node.op == "contract" else set[int]().union(*(sources[id(a)] for a in node.args))
        sources[id(node)] = made
        if made == scores and node.kind == "float" and {*node.dims} <= rows:
            own[id(node)] = node
    inside = {id(n) for n in topological([*every, *own.values()])}
    last = [n for n in own.values() if any(id(u) not in inside for u in users.get(id(n), []))]
    others = {id(n) for n in last}

    def again(node: Node) -> bool:
        """Whether a value needs the scores even where the others are known."""
        return any(id(n) in scores for n in topological([node], lambda n: id(n) in others and n is not node))

    return [n for n in last if again(n)]
