"""Groups of steps that may become chains: single steps are joined as long as the language expresses and a kernel computes them together,
and they save more than their parts. Products come last: a group takes them in where it is their epilogue.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from codegen.fusing.chains.expressing import Expressing, has_backward, is_sequence
from codegen.fusing.chains.parts import part_of
from codegen.fusing.cost import Cost, cost
from codegen.fusing.graph import COSTLY, OTHER, REDUCING, StepGraph, elements, is_recomputed
from codegen.fusing.prepared import of_less
from codegen.plan.attention import Attention
from codegen.tracing.specs import Made

MOST_STEPS = 150  # of a group
SLACK = 0.02  # of a chain's bytes, that a step towards a better chain may cost
# Steps that a kernel may not compute though their results have one shape
PARTS = frozenset({"dot_general", "gather", "split", "slice", "concatenate", "stack", "unstack", "select_n", "transpose",
                   "reshape", "scatter-add"})  # fmt: skip


class Groups:
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
        """All groups, in the order of their first steps."""
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
        """Join a step with the steps before it, except products."""
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
            if self.made(whole) is None:
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
                made = self.made(whole)
                if made is not None and isinstance(made.planned.plan, Attention):
                    for other in {p for q in whole for p in self.group.get(q, ())} - whole:
                        self.group[other] = frozenset([other])
                    self.merge(whole)

    def products_before(self, places: Iterable[int]) -> set[int]:
        """The products whose results some steps take."""
        return {m for p in places for m in self.before[p] if m in self.group and self.is_product(m)}

    def is_product(self, place: int) -> bool:
        """Whether a step is a matrix product."""
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
                made = self.made(whole)
                if made is not None and is_sequence(made) and has_backward(made):
                    self.merge(whole)

    def made(self, whole: frozenset[int]) -> Made | None:
        """The spec of a group, or None if no kernel computes it, or if other steps would be between its steps."""
        return self.expressing.made(self.graph, whole) if self.is_convex(whole) else None

    def users_of(self, places: frozenset[int]) -> set[int]:
        """The steps that take a chain's results; OTHER where the function returns one."""
        results = self.graph.results_of(places)
        found = {p for v in results for p in self.after.get(self.graph.maker[v], ())} - places
        return found | ({OTHER} if self.graph.results.intersection(results) else set())

    def merge(self, whole: frozenset[int]) -> None:
        """Make steps one group."""
        for place in whole:
            self.group[place] = whole

    def try_to_join(self, first: frozenset[int], second: frozenset[int]) -> None:
        """Join two groups, if one kernel computes them together and that saves as many bytes as they do apart."""
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
        found = self.expressing.expressed(self.graph, whole)
        if found.made is None or is_sequence(found.made):
            return False
        self._reread[whole] = found.reread
        return own.saved - found.reread + SLACK * own.fused >= least

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
        """The cost of steps as one op."""
        if places not in self._costs:
            self._costs[places] = cost(self.graph, places)
        return self._costs[places]
