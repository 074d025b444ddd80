"""The specs of chains: the steps that one op computes, where the language expresses and a kernel computes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.autodiff.backward import Derived, backward_of
from codegen.errors import SpecError, UserError
from codegen.fusing.chains.kernels import has_kernel, read_again
from codegen.fusing.cost import Cost
from codegen.fusing.graph import StepGraph, elements
from codegen.graph.nodes import nodes_of
from codegen.plan.op import Gemm, Staged
from codegen.tracing.naming import unique
from codegen.tracing.specs import Made, Request, spec_of
from codegen.tracing.steps import Atom, Number, Step, Value
from codegen.tracing.translate import NotExpressed

# A chain of these operations alone only copies, or multiplies
MOVING = frozenset({"input", "contract", "const", "param", "float"})
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


@dataclass(frozen=True)
class Expressed:
    """Steps as a spec. `made` is None if no kernel computes them; `key` is equal for equal steps. `reread` is the number of bytes that
    the op's kernels move besides reading and writing each array once."""

    made: Made | None
    key: Key
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    reread: int


class Expressing:
    """Makes specs of chains. Equal steps share a spec: results are cached by the steps' form. With `rereading`, kernels of an op may
    read its arrays again. With `from_start`, callers of the op promise that no index is negative."""

    def __init__(self, rereading: bool = False, from_start: bool = True) -> None:
        self._rereading, self._from_start = rereading, from_start
        self._tried: dict[Key, tuple[Made | None, int]] = {}

    def expressed(self, graph: StepGraph, places: Iterable[int], results: Sequence[Value] | None = None) -> Expressed:
        """The steps at these places as a spec, with these results or all that others use."""
        free, inputs = graph.sources(places)
        outputs = graph.results_of(places) if results is None else list(results)
        steps = [graph.steps[p] for p in sorted({*places, *free})]
        arrays = [graph.copied(v) for v in inputs]
        first = [arrays.index(v) for v in arrays]
        key = (*key_of(steps, inputs, outputs), tuple(first))
        if key not in self._tried:
            self._tried[key] = self._try(steps, inputs, outputs, first)
        made, reread = self._tried[key]
        return Expressed(made, key, tuple(inputs), tuple(outputs), reread)

    def made(self, graph: StepGraph, places: Iterable[int]) -> Made | None:
        """The spec of the steps at these places, or None if no kernel computes them."""
        return self.expressed(graph, places).made

    def _try(
        self, steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value], first: Sequence[int]
    ) -> tuple[Made | None, int]:
        made = _made(steps, inputs, outputs, first, self._from_start)
        once = made is None or isinstance(made.planned.plan, Gemm) or is_sequence(made)
        reread = 0 if once or made is None else read_again(made)
        if reread is None or (reread and not self._rereading):
            return None, 0
        return made, reread


def _made(
    steps: Sequence[Step], inputs: Sequence[Value], outputs: Sequence[Value], first: Sequence[int], from_start: bool
) -> Made | None:
    """The spec of steps. `first` has for each input the place of the first that is a copy of the same array."""
    if any(v.dtype.startswith("uint32") for v in inputs):
        return None
    names = [f"x{place}" for place in range(len(inputs))]
    request = Request(
        "chain", "A chain of a model.", steps, dict(zip(inputs, names, strict=True)),
        list(zip(unique(["y"] * len(outputs), names), outputs, strict=True)), generic=False, own=False, lean=True,
        copies={names[i]: names[n] for i, n in enumerate(first)}, from_start=from_start,
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
