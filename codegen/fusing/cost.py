"""The memory traffic of steps, as XLA compiles them and as one op.

The model of XLA: an element-wise step is computed within the kernels that use it. The results of reductions and products are
written to memory before others use them. Kernels that read a common array, none of them another's result, are one. A product is a
kernel of its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence, Set
from dataclasses import dataclass

from codegen.fusing.graph import OWN_KERNEL, REDUCING, StepGraph, is_within_users, takes_written
from codegen.tracing.steps import Atom, Value


@dataclass(frozen=True)
class Cost:
    """The bytes that XLA's kernels read and write, the number of these kernels, and the bytes that one op reads and
    writes."""

    now: int
    kernels: int
    fused: int

    @property
    def saved(self) -> int:
        return self.now - self.fused if self.kernels > 1 else 0


def cost(graph: StepGraph, places: Iterable[int], results: Sequence[Value] | None = None) -> Cost:
    """The cost of a chain of steps that writes these results, or all that others use."""
    inside = set(places)
    results = graph.results_of(inside) if results is None else results
    _, outside = graph.sources(inside)
    tables, gathered = _tables(graph, inside)
    fused = sum(v.bytes for v in (*outside, *results, *gathered) if v not in tables)
    ends = _ends(graph, inside)
    reads = {v: _read(graph, v, inside, ends) for v in ends.union(results)}
    now, kernels = 0, _kernels(graph, reads)
    for kernel in kernels:
        now += sum(v.bytes for v in {r for v in kernel for r in reads[v]}) + sum(v.bytes for v in kernel)
    return Cost(now, len(kernels), fused)


def _ends(graph: StepGraph, inside: Set[int]) -> set[Value]:
    """The values that are in memory before others are computed of them."""
    ends: set[Value] = set()
    for place in inside:
        step = graph.steps[place]
        if step.name in REDUCING or step.name in OWN_KERNEL:
            ends.update(step.outputs)
        if step.name == "dot_general":  # what is computed of a factor is written before the product
            ends.update(v for v in step.inputs if isinstance(v, Value) and graph.maker.get(v) in inside)
    return ends


def written(graph: StepGraph, places: Iterable[int], chains: Container[int]) -> list[Value]:
    """The results that the op of a chain writes. `chains` are the steps of other chains, whose ops read arrays.

    XLA computes some results within the kernels that use them, and does not write them. The op does not write them
    either: those kernels still compute them, from the chain's arrays and from its reductions and products, which the op
    writes."""
    inside = set(places)
    ends = _ends(graph, inside)
    results = graph.results_of(inside)
    most = max((v.bytes for v in graph.sources(inside)[1]), default=0)
    large = {v for v in results if v not in ends and 8 * v.bytes > most}  # to write others costs nothing
    later = {v for v in large if _is_within_users(graph, v, chains)}
    needed = {r for v in later for r in _read(graph, v, inside, ends) if graph.maker.get(r) in inside}
    return [
        v for p in sorted(inside) for v in graph.steps[p].outputs if v in needed or (v in results and v not in later)
    ]


def _is_within_users(graph: StepGraph, value: Value, chains: Container[int]) -> bool:
    return is_within_users(graph.steps[graph.maker[value]]) and not _is_taken_written(graph, value, chains)


def unwritten(graph: StepGraph, places: Iterable[int], chains: Container[int]) -> int:
    """The bytes that are written and read so that a chain's arrays are in memory. `chains` are the steps of all chains.
    Their results are in memory, and so are the function's arguments, and the arguments and results of products,
    reductions and other steps that are kernels of their own."""
    _, outside = graph.sources(places)
    return sum(2 * v.bytes for v in outside if _is_within(graph, v, chains))


def _is_within(graph: StepGraph, value: Value, chains: Container[int]) -> bool:
    """Whether XLA computes a value within the kernels that use it."""
    maker = graph.maker.get(value)
    if maker is None or maker in chains or not is_within_users(graph.steps[maker]):
        return False
    if _is_taken_written(graph, value):
        return False
    before = [v for v in graph.steps[maker].inputs if isinstance(v, Value)]
    if graph.is_free(maker) or graph.steps[maker].name == "reshape":
        return _is_within(graph, before[0], chains) if before else True
    return True


def _is_taken_written(graph: StepGraph, value: Value, chains: Container[int] = ()) -> bool:
    """Whether a value is needed in memory: by the caller, by a product, by a step that is a kernel of its own, or by a
    chain's op."""
    users = graph.users.get(value, ())
    if value in graph.results or any(u in chains or takes_written(graph.steps[u]) for u in users):
        return True
    moved = [u for u in users if graph.is_free(u) or graph.steps[u].name == "reshape"]
    return any(_is_taken_written(graph, graph.steps[u].outputs[0], chains) for u in moved)


def _kernels(graph: StepGraph, reads: dict[Value, set[Value]]) -> list[list[Value]]:
    """The values that XLA's kernels write, each kernel's together: those that read a common array, none another's result."""
    depth: dict[Value, int] = {}
    for value in sorted(reads, key=lambda v: graph.maker[v]):
        depth[value] = 1 + max((depth[r] for r in reads[value] if r in depth), default=0)
    kernels: list[tuple[int, set[Value], list[Value]]] = []
    for value, own in reads.items():
        product = graph.steps[graph.maker[value]].name == "dot_general"
        level = -depth[value] if product else depth[value]
        same = [k for k in kernels if k[0] == level and k[1] & own and not product]
        merged = (level, own.union(*(k[1] for k in same)), [value, *(v for k in same for v in k[2])])
        kernels = [k for k in kernels if k not in same] + [merged]
    return [values for _, _, values in kernels]


def _read(graph: StepGraph, value: Value, inside: set[int], ends: set[Value]) -> set[Value]:
    """The values that a kernel which computes a value reads."""
    found: set[Value] = set()
    left = _operands(graph, value)
    while left:
        one = left.pop()
        if not isinstance(one, Value) or one in found:
            continue
        maker = graph.maker.get(one)
        if one in ends or maker is None or not (maker in inside or graph.is_free(maker)):
            found.add(one)
        else:
            left += _operands(graph, one)
            if graph.steps[maker].name == "gather":
                found.add(one)
    return found


def _operands(graph: StepGraph, value: Value) -> list[Atom]:
    """The values that a step reads in full. A gather reads as many elements of its table as it gives."""
    step = graph.steps[graph.maker[value]]
    return list(step.inputs[1:] if step.name == "gather" else step.inputs)


def _tables(graph: StepGraph, inside: set[int]) -> tuple[set[Value], list[Value]]:
    """The inputs that are only gathered from, and what is gathered."""
    gathers = [graph.steps[p] for p in inside if graph.steps[p].name == "gather"]
    found = {
        s.inputs[0]: s.outputs[0]
        for s in gathers
        if isinstance(s.inputs[0], Value) and graph.maker.get(s.inputs[0]) not in inside
    }
    return set(found), list(found.values())
