"""The steps of a function as a graph: who computes a value, who uses it, and what costs nothing.

A step is free where its consumer does it while it loads: a broadcast, a dimension of size 1, positions along an axis, a
conversion to a wider type. Free steps belong to every chain that uses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from jax.sharding import AxisType

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES
from codegen.tracing.axes import Axes, added, renames
from codegen.tracing.steps import Atom, Flat, Number, Place, Step, Value
from codegen.tracing.translate import COMPUTED, ELEMENTWISE, KNOWN, SAME, constants_apart, is_exact, wraps

LAYOUT = frozenset({"broadcast_in_dim", "squeeze", "expand_dims", "copy", "copy_p", "iota", "stop_gradient", "pvary"})
MOVED = frozenset({"broadcast_in_dim", "squeeze", "expand_dims", "reshape", "transpose"})
REDUCING = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin",
                      "cumsum", "cumprod", "cummax", "cumlogsumexp"})  # fmt: skip
COSTLY = frozenset({"exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "logistic", "erf", "erfc", "pow",
                    "custom_jvp_call", "atan2", "sinh", "cosh", "log2"})  # fmt: skip
FACTOR = "factor"  # a step that only gives an array to a product: there is nothing to do
OWN_KERNEL = frozenset({"dot_general", "scatter-add"})  # in XLA, of the steps that the language has
LESS = 8  # times as many bytes as its sources have an array that is computed again where it is used
OTHER = -1  # what takes an array, where it is no side of a product
# Primitives with bodies: the parameters that are closed jaxprs, or jaxprs without constants
BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",), "checkpoint": ("jaxpr",),
          "remat": ("jaxpr",), "remat2": ("jaxpr",), "shard_map": ("jaxpr",), "custom_vjp_call": ("call_jaxpr",)}  # fmt: skip
WITHIN = frozenset({"pad", "rev", "dynamic_slice", "shift_right_logical"})  # besides those that the language has
SHARDED = frozenset({"sharding_constraint", "reshard"})  # they give the same elements, as others may lay them out
APART = SHARDED | {"device_put", "optimization_barrier", "own", "reduce_precision"}


def elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


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


def prepared(flat: Flat) -> Flat:
    """The same function, in the form in which chains are searched. Unused steps are removed, and equal steps become
    one. A step that is recomputed where it is used, or that makes a constant, is copied for each use. Factors of
    products are copied too."""
    return _factors_apart(spread(_sides_apart(constants_apart(once(_needed(flat))))))


def _needed(flat: Flat) -> Flat:
    """The same function without steps that no result needs. A derivative that JAX has taken has such steps, as the mask of the
    maximum that a softmax subtracts."""
    needed = {v for v in flat.outputs if isinstance(v, Value)}
    steps = []
    for step in reversed(flat.steps):
        if needed.intersection(step.outputs) or has_effects(step):
            steps.append(step)
            needed.update(v for v in step.inputs if isinstance(v, Value))
    return Flat(flat.inputs, tuple(reversed(steps)), flat.outputs)


def once(flat: Flat) -> Flat:
    """The same function without steps that repeat an earlier step. XLA removes them too."""
    same: dict[Value, Value] = {}
    seen: dict[object, Step] = {}
    steps = []
    for step in flat.steps:
        own = on(step, same)
        if step.inner or step.name in BODIES or has_effects(step):
            steps.append(own)
            continue
        key = (step.name, own.inputs, tuple(sorted((k, str(v)) for k, v in step.params.items())))
        first = seen.setdefault(key, own)
        if first is own:
            steps.append(own)
        same |= zip(step.outputs, first.outputs, strict=True)
    return Flat(flat.inputs, tuple(steps), tuple(same.get(v, v) if isinstance(v, Value) else v for v in flat.outputs))


def on(step: Step, same: Mapping[Value, Atom]) -> Step:
    """A step on other values, as are the steps within it."""
    inputs = tuple(same.get(v, v) if isinstance(v, Value) else v for v in step.inputs)
    return replace(step, inputs=inputs, inner=tuple(on(s, same) for s in step.inner))


def _sides_apart(flat: Flat) -> Flat:
    """The same function, with a copy of each array that a step combines with itself along other axes, as in `d[:, None]
    == d` of documents. The copy has axes of its own. An array that is computed of numbers alone is computed again
    instead (`of_less`)."""
    constants = StepGraph(flat).constants
    maker = {v: s for s in flat.steps for v in s.outputs}
    copies: dict[Value, Value] = {}
    made: list[Step] = []

    def path(value: Atom) -> list[Step]:
        """The steps that move an array to this value, the last first."""
        found: list[Step] = []
        while isinstance(value, Value) and value in maker and maker[value].name in MOVED:
            found.append(maker[value])
            value = found[-1].inputs[0]
        return found

    for place, step in enumerate(flat.steps):
        sides = [path(v) for v in step.inputs]
        if step.name in ELEMENTWISE and place not in constants and _meet(step, sides):
            value = sides[1][-1].inputs[0]
            assert isinstance(value, Value)
            if value not in copies:
                copies[value] = Value(value.shape, value.dtype)
                made.append(Step(FACTOR, (value,), (copies[value],), {}, Place()))
            value = copies[value]
            for move in reversed(sides[1]):
                moved = Value(move.outputs[0].shape, move.outputs[0].dtype)
                made.append(replace(move, inputs=(value,), outputs=(moved,)))
                value = moved
            step = replace(step, inputs=(step.inputs[0], value))
        made.append(step)
    return Flat(flat.inputs, tuple(made), flat.outputs)


def _meet(step: Step, sides: Sequence[Sequence[Step]]) -> bool:
    """Whether both sides of a step are moved from one array, so that two dimensions of the result would have the same
    axis."""
    if len(sides) != 2 or not all(sides) or sides[0][-1].inputs[0] is not sides[1][-1].inputs[0]:
        return False
    axes = Axes()
    try:
        for move in (*sides[0][::-1], *sides[1][::-1], step):
            axes.see(move)
    except UserError:
        return False
    found = axes.all(step.outputs[0])
    return len(set(found)) < len(found)


def _factors_apart(flat: Flat) -> Flat:
    """The same function, in which a product takes a copy of an array that other steps or its other side take too. So the array has
    axes of its own there: `a * x + n @ x` has x along the product's rows, and along what is contracted."""
    graph = StepGraph(flat)
    copies: dict[tuple[Value, int], Value] = {}
    made: list[Step] = []

    def copied(given: Atom, side: int) -> Atom:
        """A product's factor, computed of a copy where its array is taken otherwise too."""
        maker = graph.maker.get(given) if isinstance(given, Value) else None
        if not isinstance(given, Value) or (maker is not None and graph.steps[maker].name == "transpose"):
            if maker is None:
                return given
            step = graph.steps[maker]
            before = copied(step.inputs[0], side)
            if before is step.inputs[0]:
                return given
            result = Value(step.outputs[0].shape, step.outputs[0].dtype)
            made.append(replace(step, inputs=(before,), outputs=(result,)))
            return result
        sides = graph.sides(given)
        if len(sides) == 1 or side == min(sides):
            return given
        if (given, side) not in copies:
            copies[given, side] = Value(given.shape, given.dtype)
            made.append(Step(FACTOR, (given,), (copies[given, side],), {}, Place()))
        return copies[given, side]

    for step in flat.steps:
        if step.name == "dot_general":
            step = replace(step, inputs=tuple(copied(given, side) for side, given in enumerate(step.inputs)))
        made.append(step)
    return Flat(flat.inputs, tuple(made), flat.outputs)


def spread(flat: Flat) -> Flat:
    """The same function, with a copy of each recomputed step for each use. Steps that take the result from memory share
    one copy."""
    maker = {v: s for s in flat.steps for v in s.outputs}
    uses = Counter(v for s in flat.steps for v in {v for v in s.inputs if isinstance(v, Value)})
    kept = {v for v in flat.outputs if isinstance(v, Value)}  # the values whose own steps are needed
    copies: dict[Value, list[Value]] = {}
    made: list[Step] = []
    few = max((v.bytes for v in maker), default=0) // 8
    each = {s for s in flat.steps if is_recomputed(s) or _is_of_numbers(s, maker) or _is_of_labels(s, few)}
    each |= of_less(flat)
    taking = _taking(flat)
    for step in reversed(flat.steps):
        again = step in each
        whole = [step] if not again or step.outputs[0] in kept else []
        whole += [_giving(step, copy) for copy in (copies.get(step.outputs[0], ()) if again else ())]
        for one in whole:
            inputs = list(one.inputs)
            for place, given in enumerate(inputs):
                if not isinstance(given, Value) or given not in maker:
                    continue
                several = (uses[given] > 1 or len(whole) > 1) and step not in taking
                if several and not one.inner and maker[given] in each and len(made) < 4 * len(flat.steps):
                    inputs[place] = copy = Value(given.shape, given.dtype)
                    copies.setdefault(given, []).append(copy)
                else:
                    kept.add(given)
            made.append(replace(one, inputs=tuple(inputs)))
    return Flat(flat.inputs, tuple(reversed(made)), flat.outputs)


def _taking(flat: Flat) -> set[Step]:
    """The steps that take arrays from memory, as products do, and the steps that only reshape or reorder arrays for
    them."""
    users: dict[Value, list[Step]] = {}
    for step in flat.steps:
        for value in {v for v in step.inputs if isinstance(v, Value)}:
            users.setdefault(value, []).append(step)
    found: set[Step] = set()
    for step in reversed(flat.steps):
        own = [u for v in step.outputs for u in users.get(v, ())]
        moves = step.name in MOVED and own and not set(step.outputs).intersection(flat.outputs)
        if takes_written(step) or (moves and all(u in found for u in own)):
            found.add(step)
    return found


def _is_of_numbers(step: Step, maker: Mapping[Value, Step]) -> bool:
    """Whether a step adds one element to each row of zeros, or of another number. Such a row can be computed by
    comparing positions."""
    if step.name != "scatter-add" or added(step) is None:
        return False
    table = maker.get(step.inputs[0]) if isinstance(step.inputs[0], Value) else None
    return table is not None and table.name == "broadcast_in_dim" and isinstance(table.inputs[0], Number)


def of_less(flat: Flat) -> set[Step]:
    """The steps that compute an array from much smaller ones, such as an attention mask from positions or documents.
    Computing it again costs less than reading it."""
    found: set[Step] = set()
    sources: dict[Value, frozenset[Value]] = {}  # of what is computed again, or moved
    for step in flat.steps:
        given = [v for v in step.inputs if isinstance(v, Value)]
        own = frozenset[Value]().union(*(sources.get(v, {v}) for v in given))
        moves = step.name in MOVED | LAYOUT
        if len(step.outputs) != 1 or step.inner or step.saved or not (moves or step.name in ELEMENTWISE - COSTLY):
            continue
        (result,) = step.outputs
        if LESS * sum(v.bytes for v in own) <= result.bytes:
            sources[result] = own
            if not moves or any(v in sources for v in given):
                found.add(step)
    return found


def _is_of_labels(step: Step, few: int) -> bool:
    """Whether a step compares or selects integers of a `few` bytes, as the labels of rows: to read them again costs nothing."""
    values = [v for v in (*step.inputs, *step.outputs) if isinstance(v, Value)]
    whole = all(v.dtype in DTYPES and DTYPES[v.dtype].kind != "float" and v.bytes <= few for v in values)
    return step.name in ELEMENTWISE and whole and len(step.outputs) == 1


def _giving(step: Step, value: Value) -> Step:
    """The same step with another value as its result."""
    inner = tuple(replace(s, outputs=(value,)) if s.outputs == step.outputs else s for s in step.inner)
    return replace(step, outputs=(value,), inner=inner)


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
        large = place in self.constants or max(elements(v.shape) for v in values) > 1
        return large and all(v.dtype in DTYPES for v in values)

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
