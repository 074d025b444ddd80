"""The steps of a function as a graph: which step computes a value, which use it, and which cost nothing.

A step is free where its consumer does it while it loads: a broadcast, a dimension of size 1, positions along an axis, a
conversion to a wider type. Free steps belong to every chain that uses them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from jax.sharding import AxisType

from codegen.graph.nodes import DTYPES
from codegen.tracing.axes import renames
from codegen.tracing.steps import Flat, Number, Step, Value
from codegen.tracing.translate import COMPUTED, ELEMENTWISE, KNOWN, SAME, is_exact, wraps

LAYOUT = frozenset({"broadcast_in_dim", "squeeze", "expand_dims", "copy", "copy_p", "iota", "stop_gradient", "pvary"})
MOVED = frozenset({"broadcast_in_dim", "squeeze", "expand_dims", "reshape", "transpose"})
REDUCING = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin",
                      "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})  # fmt: skip
COSTLY = frozenset({"exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "logistic", "erf", "erfc", "pow",
                    "custom_jvp_call", "atan2", "sinh", "cosh", "log2", "asinh", "acosh", "atanh", "lgamma", "digamma"})  # fmt: skip
FACTOR = "factor"  # a step that only gives an array to a product: there is nothing to do
OWN_KERNEL = frozenset({"dot_general", "scatter-add"})  # in XLA, of the steps that the language has
LESS = 8  # times as many bytes as its sources have an array that is computed again where it is used
OTHER = -1  # what takes an array, where it is no side of a product
# Primitives with bodies: the parameters that are closed jaxprs, or jaxprs without constants
BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",), "checkpoint": ("jaxpr",),
          "remat": ("jaxpr",), "remat2": ("jaxpr",), "shard_map": ("jaxpr",), "custom_vjp_call": ("call_jaxpr",)}  # fmt: skip
# What XLA computes within kernels besides the steps that the language has
WITHIN = frozenset({"pad", "rev", "dynamic_slice", "shift_right_logical", "bitcast_convert_type", "erf_inv", "bessel_i0e",
                    "bessel_i1e", "nextafter", "clz", "real", "imag", "complex"})  # fmt: skip
SHARDED = frozenset({"sharding_constraint", "reshard"})  # they give the same elements, as others may lay them out
APART = SHARDED | {"device_put", "optimization_barrier", "own", "reduce_precision"}


def elements(shape: Sequence[int]) -> int:
    """The number of elements of an array of this shape."""
    return math.prod(shape)


def is_within_users(step: Step) -> bool:
    """Whether XLA computes a step within the kernels that use its result. It does not for reductions, products, and
    steps that are always a kernel of their own."""
    return not takes_written(step) and step.name not in REDUCING


def takes_written(step: Step) -> bool:
    """Whether XLA writes the arguments of a step to memory first: it does for products, changes of sharding, and steps
    that are always a kernel of their own."""
    if step.inner:
        return any(map(takes_written, step.inner))
    return step.name in OWN_KERNEL | SHARDED or (step.name not in KNOWN and step.name not in WITHIN)


def is_recomputed(step: Step) -> bool:
    """Whether each kernel that uses a step's result may compute it again: the step has one array, with no more bytes
    than the result."""
    arrays = [v for v in step.inputs if isinstance(v, Value) and elements(v.shape) > 1]
    if (
        step.saved
        or len(arrays) != 1
        or len(step.outputs) != 1
        or step.name not in ("custom_jvp_call", *SAME, *COMPUTED)
    ):
        return False
    if any(s.name != "own" and s.name not in SAME and s.name not in COMPUTED for s in step.inner):
        return False  # of a function such as `relu`
    (given,), (result,) = arrays, step.outputs
    return (
        given.shape == result.shape and given.dtype in DTYPES and result.dtype in DTYPES and result.bytes >= given.bytes
    )


def has_effects(step: Step) -> bool:
    """Whether a step has effects besides its results: it prints, or reads or writes a mutable array."""
    return not step.outputs or bool(getattr(step.equation, "effects", None))


def is_renaming(step: Step) -> bool:
    """Whether a reshape only splits and joins neighbouring dimensions, of which none is sharded."""
    given, (result,) = step.inputs[0].shape, step.outputs
    if [n for n in given if n != 1] == [n for n in result.shape if n != 1]:
        return True
    return renames(given, result.shape) and not is_sharded(step)


def is_sharded(step: Step) -> bool:
    """Whether the types of a step's arrays may say how they are sharded."""
    shardings = [getattr(v.aval, "sharding", None) for v in step.equation.outvars]
    return any(AxisType.Explicit in s.mesh.axis_types for s in shardings if s is not None)


@dataclass(eq=False)
class StepGraph:
    """The steps of a function, by place. `maker` gives the place of the step that computes a value, and `users` the
    places of the steps that use it."""

    flat: Flat
    maker: dict[Value, int] = field(default_factory=dict)
    users: dict[Value, list[int]] = field(default_factory=dict)
    constants: set[int] = field(default_factory=set)  # the places of steps that are computed of numbers alone
    ordered: list[int] = field(default_factory=list)  # the places of steps with effects: each is done before the next

    def __post_init__(self) -> None:
        for place, step in enumerate(self.flat.steps):
            for value in step.outputs:
                self.maker[value] = place
            for value in {v: None for v in step.inputs if isinstance(v, Value)}:
                self.users.setdefault(value, []).append(place)
        self.results = {v for v in self.flat.outputs if isinstance(v, Value)}
        self.ordered += [p for p, step in enumerate(self.flat.steps) if has_effects(step)]
        for place, step in enumerate(self.flat.steps):
            made = [isinstance(v, Number) or self.maker.get(v) in self.constants for v in step.inputs]
            if all(made) and step.name in LAYOUT | ELEMENTWISE:
                self.constants.add(place)

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.flat.steps

    def is_free(self, place: int) -> bool:
        """Whether a step costs nothing because the steps that use its result can do it."""
        step = self.steps[place]
        if step.name in LAYOUT:
            return True
        if step.name == "reshape" and isinstance(step.inputs[0], Value):
            return is_renaming(step)
        if step.name == "transpose":  # of dimensions of size 1, or of a factor: the product reads it either way
            moved = [n for n in step.params["permutation"] if step.inputs[0].shape[n] != 1]
            users = {self.steps[u].name for u in self.users.get(step.outputs[0], ())}
            return moved == sorted(moved) or users == {"dot_general"}
        if place in self.constants:
            return True
        if step.name == "convert_element_type" and isinstance(step.inputs[0], Value):
            old, new = step.inputs[0].dtype, step.outputs[0].dtype
            if old in DTYPES and new in DTYPES:
                return DTYPES[old].kind == DTYPES[new].kind and DTYPES[new].size >= DTYPES[old].size
        return False

    def sides(self, value: Value) -> set[int]:
        """The uses of an array: 0 and 1 for the first and second factor of a product, also through transposes, and
        OTHER for other steps."""
        found: set[int] = set()
        for place in self.users.get(value, ()):
            step = self.steps[place]
            if step.name == "dot_general":
                found |= {side for side, given in enumerate(step.inputs) if given is value}
            elif self.is_free(place):
                found |= self.sides(step.outputs[0])
            else:
                found.add(OTHER)
        return found

    def is_expressed(self, place: int) -> bool:
        """Whether the language can express a step."""
        step = self.steps[place]
        if step.name in APART or step.saved or not step.outputs:
            return False
        if not (step.inner or step.name in KNOWN) or (step.name == "reshape" and not self.is_free(place)):
            return False
        if any(wraps(s) or is_exact(s) for s in step.inner or (step,)):
            return False
        values = [*(v for v in step.inputs if isinstance(v, Value)), *step.outputs]
        sizes = [elements(v.shape) for v in values]  # of nothing, there is nothing to save
        return (place in self.constants or max(sizes) > 1) and all(sizes) and all(v.dtype in DTYPES for v in values)

    def sources(self, places: Iterable[int]) -> tuple[set[int], list[Value]]:
        """The free steps that steps need, and the values that none of these steps computes. Such a value is split or
        joined before the chain, unless another form of it is needed too, or it repeats elements, as heads of keys that
        several heads of queries share."""
        inside = set(places)
        free, outside = self._sources(inside, set())
        forms = Counter(map(self.origin, outside))
        origins = {v: self.origin(v) for v in outside}
        several = {v for v, own in origins.items() if forms[own] > 1 or elements(own.shape) < elements(v.shape)}
        return self._sources(inside, several) if several else (free, outside)

    def _sources(self, inside: Set[int], through: Set[Value]) -> tuple[set[int], list[Value]]:
        """The same. Of the values that are split or joined elsewhere, these steps split or join those of `through`."""
        free: set[int] = set()
        outside: dict[Value, None] = {}
        left = [v for p in sorted(inside) for v in self.steps[p].inputs]
        seen: set[Value] = set()
        while left:
            value = left.pop(0)
            if not isinstance(value, Value) or value in seen:
                continue
            seen.add(value)
            maker = self.maker.get(value)
            if maker is None or value.constant is not None:
                outside[value] = None
            elif maker in inside:
                continue
            elif self.is_free(maker) and self.is_expressed(maker):
                made = self.maker.get(self.origin(value))
                if self._splits(maker) and made not in inside and value not in through:
                    outside[value] = None
                    continue
                free.add(maker)
                left += self.steps[maker].inputs
            else:
                outside[value] = None
        return free, list(outside)

    def _splits(self, place: int) -> bool:
        """Whether a step is a reshape that does more than add and remove dimensions of size 1."""
        step = self.steps[place]
        return step.name == "reshape" and [n for n in step.inputs[0].shape if n != 1] != [
            n for n in step.outputs[0].shape if n != 1
        ]

    def copied(self, value: Value) -> Value:
        """The array of which a value is a copy, or the value."""
        maker = self.maker.get(value)
        given = self.steps[maker].inputs[0] if maker is not None and self.steps[maker].name == FACTOR else value
        return given if isinstance(given, Value) else value

    def origin(self, value: Value) -> Value:
        """The value that free steps of one array make a value of."""
        while (maker := self.maker.get(value)) is not None and self.is_free(maker):
            arrays = [v for v in self.steps[maker].inputs if isinstance(v, Value)]
            if len(arrays) != 1:
                break
            value = arrays[0]
        return value

    def results_of(self, places: Iterable[int]) -> list[Value]:
        """The values of steps that other steps use, or that the function returns. A free step of such a value counts as
        another step, unless all its users are among the steps."""
        inside = set(places)
        found = []
        for place in sorted(inside):
            for value in self.steps[place].outputs:
                if value in self.results or any(
                    not self.reads_inside(user, inside) for user in self.users.get(value, ())
                ):
                    found.append(value)
        return found

    def needed(self, places: Set[int], results: Iterable[Value]) -> frozenset[int]:
        """The steps that compute these results."""
        found: set[int] = set()
        left = [self.maker[v] for v in results]
        while left:
            place = left.pop()
            if place in found:
                continue
            if place in places:
                found.add(place)
            if place in places or self.is_free(place):
                left += [self.maker[v] for v in self.steps[place].inputs if isinstance(v, Value) and v in self.maker]
        return frozenset(found)

    def reads_inside(self, place: int, inside: set[int]) -> bool:
        """Whether a step is among the steps, or is free and only used by them."""
        if place in inside:
            return True
        if not self.is_free(place):
            return False
        value = self.steps[place].outputs[0]
        users = self.users.get(value, ())
        return value not in self.results and bool(users) and all(self.reads_inside(u, inside) for u in users)

    def real_makers(self, place: int) -> list[int]:
        """The steps that are not free, on whose results a step depends, through free ones."""
        found: dict[int, None] = {}
        left = list(self.steps[place].inputs)
        while left:
            value = left.pop(0)
            maker = self.maker.get(value) if isinstance(value, Value) else None
            if maker is None:
                continue
            if self.is_free(maker):
                left += self.steps[maker].inputs
            else:
                found[maker] = None
        return list(found)
