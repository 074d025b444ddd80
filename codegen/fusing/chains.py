"""Chains: sets of steps that one op computes. They are grown from single steps, as long as the language expresses and a kernel
computes them and they save more than their parts. Products come last: a chain takes them in where it is their epilogue.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from codegen.autodiff.backward import Derived, backward_of
from codegen.errors import SpecError, UserError
from codegen.fusing.cost import Cost, cost, unwritten, written
from codegen.fusing.graph import COSTLY, OTHER, REDUCING, StepGraph, elements, is_recomputed
from codegen.fusing.prepared import of_less
from codegen.fusing.staged import has_kernel, read_again
from codegen.graph.nodes import nodes_of
from codegen.plan.attention import Attention
from codegen.plan.op import Gemm, Staged
from codegen.tracing.naming import unique
from codegen.tracing.specs import Made, Request, spec_of
from codegen.tracing.steps import Atom, Number, Step, Value
from codegen.tracing.translate import NotExpressed

MOST_STEPS = 150  # of a chain
# A chain that saves a smaller share of the bytes that XLA's kernels move is left to XLA. Attention is not: its kernel also skips what
# the mask hides.
LEAST = 0.03
LARGE_HEADS = 64  # elements of a head, beyond which the op of attention is faster than cuDNN
SLACK = 0.02  # of a chain's bytes, that a step towards a better chain may cost
# A chain of these operations alone only copies, or multiplies
MOVING = frozenset({"input", "contract", "const", "param", "float"})
# Steps that a kernel may not compute though their results have one shape
PARTS = frozenset({"dot_general", "gather", "split", "slice", "concatenate", "stack", "unstack", "select_n", "transpose",
                   "reshape", "scatter-add"})  # fmt: skip
Key = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Chain:
    """Steps that one op computes: their places, and the places of free steps among them; their inputs and results; the spec;
    the cost. `reread` is the number of bytes that the op's kernels move besides reading and writing each array once."""

    places: tuple[int, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    made: Made
    cost: Cost
    key: Key
    reread: int = 0


class Expressing:
    """Makes specs of chains. Equal steps share a spec: results are cached by the steps' form. With `rereading`, kernels of an op may
    read its arrays again."""

    def __init__(self, rereading: bool = False) -> None:
        self._rereading = rereading
        self._tried: dict[Key, Made | None] = {}
        self._reread: dict[Key, int | None] = {}

    def made(
        self, graph: StepGraph, places: Sequence[int], results: Sequence[Value] | None = None
    ) -> tuple[Made | None, Key, list[Value], list[Value]]:
        """The spec of steps, with these results or all that others use, or None if no kernel computes them; also its key, its inputs
        and its outputs."""
        free, inputs = graph.sources(places)
        outputs = graph.results_of(places) if results is None else list(results)
        steps = [graph.steps[p] for p in sorted({*places, *free})]
        arrays = [graph.copied(v) for v in inputs]
        first = [arrays.index(v) for v in arrays]
        key = (*key_of(steps, inputs, outputs), tuple(first))
        if key not in self._tried:
            made = _made(steps, inputs, outputs, first)
            reread = self._reread[key] = (
                0 if made is None or isinstance(made.planned.plan, Gemm) or is_sequence(made) else read_again(made)
            )
            self._tried[key] = made if reread == 0 or (reread is not None and self._rereading) else None
        return self._tried[key], key, inputs, outputs

    def reread(self, key: Key) -> int:
        """The bytes that the kernels of a chain's op move besides reading and writing each array once."""
        return self._reread[key] or 0


def _made(
    steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value], first: Sequence[int]
) -> Made | None:
    """The spec of steps. `first` has for each input the place of the first that is a copy of the same array."""
    if any(v.dtype.startswith("uint32") for v in inputs):
        return None
    names = [f"x{place}" for place in range(len(inputs))]
    request = Request(
        "chain", "A chain of a model.", steps, dict(zip(inputs, names, strict=True)),
        list(zip(unique(["y"] * len(outputs), names), outputs, strict=True)), generic=False, own=False, lean=True,
        copies={names[i]: names[n] for i, n in enumerate(first)},
    )  # fmt: skip
    try:
        made = spec_of(request)
    except (NotExpressed, SpecError, UserError):
        return None
    plan = made.planned.plan
    if {n.op for n in nodes_of(made.planned.statements)} <= MOVING:
        return None
    if is_sequence(made):
        return made
    if isinstance(plan, Gemm):  # with sums of a row's tiles the backward would multiply once more
        return made if not isinstance(plan.tile, UserError) and not any(f.along for f in plan.tile.folds) else None
    if not has_kernel(made):
        return None
    if plan.kernels > 1 and any(elements(v.shape) == 1 for v in outputs):
        return None  # the sum of all rows, as a loss has it: what it is a sum of would need a second kernel too
    return made


def is_sequence(made: Made) -> bool:
    """Whether an op is products one after the other, a kernel each."""
    plan = made.planned.plan
    return isinstance(plan, Staged) and all(isinstance(stage.plan, Gemm) for stage in plan.stages)


def has_backward(made: Made) -> bool:
    """Whether kernels compute the gradients of a chain."""
    return isinstance(backward_of(made.planned), Derived)


def is_sum(made: Made) -> bool:
    """Whether an op only reduces over rows, in several kernels as XLA does too."""
    most = max((elements(a.value.shape) for a in made.inputs), default=0)
    several = made.planned.plan.kernels > 1 and not is_sequence(made)
    return several and all(elements(a.value.shape) * 2 < most for a in made.outputs)


def place_of_input(name: str) -> int:
    """The place of an input of a chain, from the name that it has in the chain's spec."""
    return int(name.removeprefix("x"))


def key_of(steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value]) -> Key:
    """The form of steps, which is equal for steps that compute the same from arrays of the same shapes."""
    number: dict[Value, int] = {v: i for i, v in enumerate(inputs)}

    def atom(a: Atom) -> Any:
        if isinstance(a, Number):
            return (a.value, a.dtype)
        return number.setdefault(a, len(number))

    def form(step: Step) -> Key:
        params = () if step.inner else tuple(sorted((k, str(v)) for k, v in step.params.items()))
        inner = tuple(form(s) for s in step.inner)
        own = (step.name, tuple(map(atom, step.inputs)), params, inner, tuple(map(atom, step.outputs)))
        return (*own, tuple((v.shape, v.dtype) for v in step.outputs))

    formed = tuple(map(form, steps))
    return tuple((v.shape, v.dtype) for v in inputs), formed, tuple(number[v] for v in outputs)


def chains(graph: StepGraph, expressing: Expressing, sequences: bool = False) -> list[Chain]:
    """The chains of a function that save memory traffic, in the order of their first steps. With `sequences`, a chain may end in
    another product: its kernels move as many bytes, and its gradient fewer. cuDNN's attention is a chain then, too."""
    calls = range(len(graph.steps)) if sequences else ()
    chosen = [chain for place in calls if (chain := attention(graph, expressing, place)) is not None]
    grown = _Groups(graph, expressing)
    grown.join_steps()
    grown.join_appended()
    grown.join_attention()
    grown.join_reorderings()
    grown.join_products()
    if sequences:
        grown.join_next_products()
    found = {group: expressing.made(graph, sorted(group))[0] for group in grown.groups()}
    least = {
        group: 0 if isinstance(made.planned.plan, Attention) else LEAST
        for group, made in found.items() if made is not None and not is_sum(made)
    }  # fmt: skip
    for part in worthwhile(graph, least):
        chosen += _chain(graph, expressing, part)
    return sorted(chosen, key=lambda chain: chain.places)


def _chain(graph: StepGraph, expressing: Expressing, part: Part) -> list[Chain]:
    """The chain of a part; of its whole group where the rest is no op, as attention without the order of its result's dimensions."""
    made, key, inputs, outputs = expressing.made(graph, sorted(part.places), part.results)
    if made is None and part.places != part.group:
        results = tuple(graph.results_of(part.group))
        return _chain(graph, expressing, Part(part.group, part.group, results, cost(graph, part.group)))
    if made is None:
        return []
    free, _ = graph.sources(part.places)
    places = tuple(sorted({*part.places, *free}))
    reread = expressing.reread(key)
    more = between(graph, part.places) if is_sequence(made) else reread
    own = replace(part.cost, fused=part.cost.fused + more)
    if reread and own.saved <= LEAST * own.now:
        return []
    return [Chain(places, tuple(inputs), tuple(outputs), made, own, key, reread)]


def attention(graph: StepGraph, expressing: Expressing, place: int) -> Chain | None:
    """The chain of a step that is a call of cuDNN's causal attention, where the op's kernels take less time. They move as many bytes.
    Gradients of heads of 64 elements take an H200 6 % more."""
    if not graph.steps[place].is_attention or graph.steps[place].inputs[0].shape[-1] <= LARGE_HEADS:
        return None
    made, key, inputs, outputs = expressing.made(graph, [place])
    if made is None or not isinstance(made.planned.plan, Attention):
        return None
    if not has_backward(made):  # cuDNN's gradients are kernels
        return None
    moved = sum(v.bytes for v in (*inputs, *outputs))
    return Chain((place,), tuple(inputs), tuple(outputs), made, Cost(moved, 1, moved), key)


def between(graph: StepGraph, places: Set[int]) -> int:
    """The bytes that kernels of a sequence of products write and read between them."""
    taken = {v for p in places if graph.steps[p].name == "dot_general" for v in graph.steps[p].inputs}
    return sum(2 * v.bytes for v in taken if isinstance(v, Value) and graph.maker.get(v) in places)


@dataclass(frozen=True)
class Part:
    """The steps of a chain that its op computes, of those of a group, and the results that it writes."""

    group: frozenset[int]
    places: frozenset[int]
    results: tuple[Value, ...]
    cost: Cost


def worthwhile(graph: StepGraph, groups: Mapping[frozenset[int], float]) -> list[Part]:
    """The parts of groups of steps that save more than a share of their traffic as an op, once its arrays are in memory. XLA computes
    some arrays in the kernel that uses them; an op needs them written first, unless they are another chain's results."""
    left = list(groups)
    while True:
        chains = {place for group in left for place in group}
        parts = {group: part_of(graph, group, chains) for group in left}
        found = [group for group in left if parts[group].cost.saved > groups[group] * parts[group].cost.now]
        if len(found) == len(left):
            return [parts[group] for group in left]
        left = found


def part_of(graph: StepGraph, group: frozenset[int], chains: Set[int]) -> Part:
    """The part of a group of steps that its op computes. `chains` are the steps of all groups."""
    results = written(graph, group, chains - group)
    places = graph.needed(group, results)
    own = cost(graph, places, results)
    return Part(group, places, tuple(results), replace(own, fused=own.fused + unwritten(graph, places, chains)))


class _Groups:
    """Groups of steps, each of which may become a chain: at first one step each, which are joined. `group` has the group of each
    step, by its place."""

    def __init__(self, graph: StepGraph, expressing: Expressing):
        self.graph, self.expressing = graph, expressing
        steps = [p for p, step in enumerate(graph.steps) if not step.is_attention]
        real = [p for p in steps if graph.is_expressed(p) and not graph.is_free(p)]
        self.group: dict[int, frozenset[int]] = {p: frozenset([p]) for p in real}
        less = of_less(graph.flat)
        self.recomputed = {p for p, step in enumerate(graph.steps) if step in less or is_recomputed(step)}
        self.before = {p: graph.real_makers(p) for p in range(len(graph.steps)) if not graph.is_free(p)}
        self.after: dict[int, list[int]] = {}
        for place, makers in self.before.items():
            for maker in makers:
                self.after.setdefault(maker, []).append(place)
        for place, following in itertools.pairwise(graph.ordered):
            self.after.setdefault(place, []).append(following)
        self._costs: dict[frozenset[int], Cost] = {}
        self._saved_alone: dict[frozenset[int], int] = {}
        self._reread: dict[frozenset[int], int] = {}  # what the kernels of a group's op move besides its arrays

    def groups(self) -> list[frozenset[int]]:
        return sorted({id(g): g for g in self.group.values()}.values(), key=min)

    def join_steps(self) -> None:
        """Join each step with the steps before it, if one kernel computes them together. Products are left out."""
        for place in sorted(self.group):
            if self.is_product(place) or self.joins_its_user(place) or self.reorders_product(place):
                continue
            left, others = list(self.before[place]), []
            while left:  # first what is recomputed for it, and for that
                maker = left.pop()
                if maker not in self.group or self.is_product(maker) or self.reorders_product(maker):
                    continue
                if self.joins_its_user(maker) and self.repeats_no_work(self.group[maker], self.group[place]):
                    self.try_to_join(self.group[maker], self.group[place])
                    if self.group[maker] is self.group[place]:
                        left += self.before[maker]
                    continue
                # As the logarithm of a row's sum, which each element would compute again
                if self.joins_its_user(maker):
                    self.join_makers(maker)
                others.append(maker)
            makers, alone = sorted(set(others), reverse=True), self.group[place]
            for maker in makers:
                self.try_to_join(self.group[maker], self.group[place])
            if self.group[place] is not alone:  # with one of them, the step may be worth joining to another
                # Now a recomputed step before a maker may join: its user alone had no axes, as zeros with one element set
                for early in sorted({p for m in makers if self.group[m] is self.group[place] for p in self.before[m]}):
                    if early in self.group and self.joins_its_user(early):
                        self.try_to_join(self.group[early], self.group[place])
                for maker in makers:
                    self.try_to_join(self.group[maker], self.group[place])

    def join_makers(self, place: int) -> None:
        for maker in sorted(self.before[place], reverse=True):
            if maker in self.group and not self.is_product(maker):
                self.try_to_join(self.group[maker], self.group[place])

    def join_reorderings(self) -> None:
        """Join each transpose of a product's result that is no part of attention with the steps that use it."""
        for place in filter(self.reorders_product, sorted(self.group)):
            for user in self.after.get(place, ()):
                if user in self.group and len(self.group[place]) == 1 and not self.is_product(user):
                    self.try_to_join(self.group[place], self.group[user])

    def reorders_product(self, place: int) -> bool:
        """Whether a step is a transpose of a product's result."""
        return self.graph.steps[place].name == "transpose" and any(map(self.is_product, self.before[place]))

    def joins_its_user(self, place: int) -> bool:
        """Whether a step is recomputed where it is used: it joins that step before it joins the steps of its arguments."""
        users = [u for u in self.after.get(place, ()) if u in self.group and not self.is_product(u)]
        return place in self.recomputed and self.graph.steps[place].outputs[0] not in self.graph.results and bool(users)

    def join_appended(self) -> None:
        """Join what is computed of an axis with one element more, as a softmax of scores and a sink, to where the element is added."""
        for place in sorted(self.group):
            step = self.graph.steps[place]
            if step.name != "concatenate" or len(self.group[place]) > 1 or len({v.shape for v in step.inputs}) == 1:
                continue
            size, found, left = step.outputs[0].shape[step.params["dimension"]], {place}, [place]
            while left:
                for user in self.after.get(left.pop(), ()):
                    if user in self.group and user not in found and self.takes_size(user, size):
                        found |= self.group[user]
                        left += self.group[user]
            whole = frozenset(found)
            if not self.is_convex(whole) or self.expressing.made(self.graph, sorted(whole))[0] is None:
                continue
            self.merge(whole)
            for early in sorted({m for p in whole for m in self.before[p] if m not in whole}, reverse=True):
                if early in self.group and not self.is_product(early):
                    self.try_to_join(self.group[early], self.group[place])
            for user in sorted({u for p in whole for u in self.after.get(p, ()) if u not in whole}):
                if user in self.group and not self.is_product(user):
                    self.try_to_join(self.group[place], self.group[user])

    def takes_size(self, place: int, size: int) -> bool:
        """Whether a step takes an array with a dimension of a size."""
        return any(size in v.shape for v in self.graph.steps[place].inputs)

    def join_attention(self) -> None:
        """Join two products, the softmax between them, and a transpose of the result, where one kernel computes them."""
        for place in filter(self.is_product, sorted(self.group)):
            for weights in {self.group[m] for m in self.before[place] if m in self.group}:
                between = weights.union(m for p in weights for m in self.before[p] if self.reorders_product(m))
                scores = self.products_before(between)
                if not scores:  # a bias that has its dimensions in another order is another chain, with the sum of it and the scores
                    early = {m for p in weights for m in self.before[p] if m in self.group}
                    between = weights.union(m for m in early if self.products_before([m]))
                    scores = self.products_before(between)
                if len(scores) != 1 or any(len(self.group[p]) > 1 for p in (place, *scores)):
                    continue
                users = self.after.get(place, ())
                ordered = users if [self.graph.steps[u].name for u in users] == ["transpose"] else ()
                whole = between | {place, *scores, *ordered}
                made = self.expressing.made(self.graph, sorted(whole))[0] if self.is_convex(whole) else None
                if made is not None and isinstance(made.planned.plan, Attention):
                    for other in {p for q in whole for p in self.group.get(q, ())} - whole:
                        self.group[other] = frozenset([other])
                    self.merge(whole)

    def products_before(self, places: Iterable[int]) -> set[int]:
        """The products whose results some steps take."""
        return {m for p in places for m in self.before[p] if m in self.group and self.is_product(m)}

    def is_product(self, place: int) -> bool:
        return self.graph.steps[place].name == "dot_general"

    def join_products(self) -> None:
        """Join each product with a chain that uses it: with the first one that is better so, where there are several, as of a
        forward and of its backward. The others then read the product's result, which the op writes too."""
        for place in sorted(self.group, reverse=True):
            if self.is_product(place):
                for user in sorted(self.after.get(place, ())):
                    if user in self.group and len(self.group[place]) == 1:
                        self.join_product(place, self.group[user])

    def join_product(self, place: int, users: frozenset[int]) -> None:
        """Join a product to a chain, together with the other products that the chain uses, or else alone."""
        others = {
            m for u in users for m in self.before[u]
            if m not in users and m in self.group and self.is_product(m) and len(self.group[m]) == 1
        }  # fmt: skip
        whole = frozenset({place, *others}) | users
        if others != {place} and self.is_convex(whole) and self.saves_more(whole, [users]):
            self.merge(whole)
        else:
            self.try_to_join(frozenset([place]), users)

    def join_next_products(self) -> None:
        """Join a product's epilogue with the product that alone takes its result, as the two layers of an MLP. The gradient of what is
        between them is then computed in the epilogue of a product too."""
        for place in filter(self.is_product, sorted(self.group)):
            for first in {self.group[m] for m in self.before[place] if m in self.group}:
                if (
                    first is self.group[place]
                    or not any(map(self.is_product, first))
                    or self.users_of(first) != {place}
                ):
                    continue
                whole = first | self.group[place]
                made = self.expressing.made(self.graph, sorted(whole))[0] if self.is_convex(whole) else None
                if made is not None and is_sequence(made) and has_backward(made):
                    self.merge(whole)

    def users_of(self, places: frozenset[int]) -> set[int]:
        """The steps that take a chain's results; OTHER where the function returns one."""
        results = self.graph.results_of(places)
        found = {p for v in results for p in self.after.get(self.graph.maker[v], ())} - places
        return found | ({OTHER} if self.graph.results.intersection(results) else set())

    def merge(self, whole: frozenset[int]) -> None:
        for place in whole:
            self.group[place] = whole

    def try_to_join(self, first: frozenset[int], second: frozenset[int]) -> None:
        if first is second or len(first) + len(second) > MOST_STEPS or not self.repeats_no_work(first, second):
            return
        whole = first | second
        if self.is_convex(whole) and self.saves_more(whole, [first, second]):
            self.merge(whole)

    def repeats_no_work(self, first: frozenset[int], second: frozenset[int]) -> bool:
        """Whether no expensive step of the first group would be computed again for many elements of the second."""
        if self.size(first) * 2 >= self.size(second):
            return True
        names = {self.graph.steps[p].name for p in first}
        return not names & (COSTLY | REDUCING)

    def size(self, places: Iterable[int]) -> int:
        """The number of elements of a chain's largest array."""
        steps = [self.graph.steps[p] for p in places]
        return max(elements(v.shape) for s in steps for v in (*s.inputs, *s.outputs))

    def is_convex(self, whole: frozenset[int]) -> bool:
        """Whether no step outside of a group depends on the group and is needed by it."""
        last = max(whole)
        left = [u for p in whole for u in self.after.get(p, ()) if u not in whole]
        seen: set[int] = set()
        while left:
            place = left.pop()
            if place in seen:
                continue
            chain = self.group.get(place, frozenset([place])) - whole
            seen |= chain
            if min(chain) > last:  # what comes after all of them
                continue
            after = {u for p in chain for u in self.after.get(p, ())} - chain
            if after & whole:
                return False
            left += after
        return True

    def saves_more(self, whole: frozenset[int], parts: Sequence[frozenset[int]]) -> bool:
        """Whether a kernel computes the joined group, which saves at least as many bytes as its parts do apart."""
        own, least = self.cost(whole), sum(map(self.saved_alone, parts))
        if own.saved + SLACK * own.fused < least:
            return False
        if self.is_elementwise(whole):
            return True
        made, key, *_ = self.expressing.made(self.graph, sorted(whole))
        if made is None or is_sequence(made):
            return False
        reread = self._reread[whole] = self.expressing.reread(key)
        return own.saved - reread + SLACK * own.fused >= least

    def is_elementwise(self, whole: frozenset[int]) -> bool:
        """Whether all steps are element-wise on one shape: a kernel computes any of these."""
        shapes = {v.shape for p in whole for v in self.graph.steps[p].outputs}
        names = {self.graph.steps[p].name for p in whole}
        return len(shapes) == 1 and not names & (REDUCING | PARTS) and not any(self.graph.steps[p].inner for p in whole)

    def saved_alone(self, places: frozenset[int]) -> int:
        """The bytes that a group saves by itself. Values that XLA would not write either do not count."""
        if places not in self._saved_alone:
            own = min(self.cost(places).saved, part_of(self.graph, places, places).cost.saved)
            self._saved_alone[places] = max(own - self._reread.get(places, 0), 0)
        return self._saved_alone[places]

    def cost(self, places: frozenset[int]) -> Cost:
        if places not in self._costs:
            self._costs[places] = cost(self.graph, places)
        return self._costs[places]
