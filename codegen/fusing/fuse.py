"""`codegen.fuse`: a function whose chains are ops when it is traced."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar

import jax

from codegen.fusing.chains.expressing import Chain, Expressing, place_of_input
from codegen.fusing.losses import call_of_loss, losses
from codegen.fusing.program import Program, Wanted, done, evaluate, of_arrays, program_of
from codegen.fusing.sums import call_of_sum, sums
from codegen.pipeline import read_op
from codegen.tracing.agreement import as_tuple
from codegen.tracing.ops import op_of
from codegen.tracing.steps import Place, Step

P = ParamSpec("P")
R = TypeVar("R")
EXPRESSING = Expressing(rereading=True, from_start=False)  # what was tried is known to all functions of the process


@dataclass(frozen=True)
class Replaced:
    """A chain that was replaced: the place of its first step in the source, the chain, how often a call runs it, and its bytes of
    memory traffic as XLA compiles it (by the model in `cost.py`) and as an op."""

    place: Place
    chain: str
    times: int
    now: int
    fused: int

    def __str__(self) -> str:
        saved = (self.now - self.fused) * self.times
        how = f"saves {saved / 1e6:.3g} MB" if saved else "moves as many bytes"
        return f"{self.place} ({self.place.function}): {self.times} x {self.chain!r} {how}"


class Fused(Generic[P, R]):
    """A function that calls an op for each chain. `report` is what the last trace of it replaced."""

    def __init__(self, function: Callable[P, R], wanted: Callable[[Chain], bool]):
        functools.update_wrapper(self, function)
        self._function, self._wanted = function, wanted
        self.report: tuple[Replaced, ...] = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        own, arrays, _ = of_arrays(self._function, args, kwargs)
        # An export has symbolic sizes: what a chain saves is not known
        if not all(isinstance(n, int) for a in arrays for n in a.shape):
            self.report = ()
            return self._function(*args, **kwargs)
        closed, shape = jax.make_jaxpr(own, return_shape=True)(*arrays)
        program = program_of(closed, EXPRESSING, sequences=True)
        self.report = report_of(program, self._wanted)
        if not self.report:
            return self._function(*args, **kwargs)
        program, calls = self._with_losses(program)
        results = evaluate(program, arrays, lambda chain: calls.get(chain) or self._call(chain))
        made: R = jax.tree.unflatten(jax.tree.structure(shape), results)
        return made

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """The function of an object, where it is a method of a class."""
        return self if instance is None else types.MethodType(self, instance)

    def _with_losses(self, program: Program) -> tuple[Program, dict[Chain, Callable[..., tuple[Any, ...]]]]:
        """The program, in which a loss of rows and the number made of it are one chain, as is a loop that adds up losses; and the calls
        of such chains."""
        chains, calls = dict.fromkeys(program.chains), {}
        for loss in losses(program):
            call = call_of_loss(loss, program.graph, call_of, EXPRESSING)
            if call is not None and loss.chain in chains:
                whole = loss.whole
                chains = dict.fromkeys(whole if c is loss.chain else c for c in chains)
                calls[whole] = call
        for found in sums(program):
            loop = functools.partial(_looped, found.step, program, self._call)
            calls[found.chain] = call_of_sum(found, loop, lambda terms: Fused(terms, self._wanted))
        return replace(program, chains=(*chains, *(c for c in calls if c not in chains))), calls

    def _call(self, chain: Chain) -> Callable[..., tuple[Any, ...]] | None:
        return call_of(chain) if self._wanted(chain) else None

    def __repr__(self) -> str:
        return f"<fused {getattr(self._function, '__name__', 'function')}>"


def fuse(function: Callable[P, R]) -> Fused[P, R]:
    """A function that computes what `function` does, with an op for each chain of its steps that one kernel computes in less
    memory traffic.

    It may be jitted, differentiated, mapped, checkpointed and sharded, as the function may; gradients run the ops' backward.
    Results are within the ops' tolerances of the function's: roundings between the steps of a chain are left out. Where a
    function is fused whose gradient is taken, the ops choose what they save. `fuse(jax.value_and_grad(loss))` has chains of the
    forward and of the backward together. What was replaced is in `.report`. A function without such chains is called as it is, and so
    is one of arrays whose sizes are symbolic in an export.
    """
    return Fused(function, lambda chain: True)


def _looped(step: Step, program: Program, wanted: Wanted, *arrays: Any) -> tuple[Any, ...]:
    """The results of a loop, with ops for the chains of its body."""
    return tuple(done(step, arrays, program, wanted))


def report_of(program: Program, wanted: Callable[[Chain], bool]) -> tuple[Replaced, ...]:
    """The chains that are replaced, equal ones in one place once."""
    found: dict[Any, Replaced] = {}
    for owner, chain, times in program.everywhere():
        if wanted(chain):
            place = place_of(owner, chain)
            before = found.get((chain.key, place))
            count = times + (before.times if before else 0)
            text = "; ".join(chain.made.planned.spec.chain.value.strip().split("\n"))
            found[chain.key, place] = Replaced(place, text, count, chain.cost.now, chain.cost.fused)
    return tuple(sorted(found.values(), key=lambda r: (r.fused - r.now) * r.times))


def place_of(program: Program, chain: Chain) -> Place:
    """The source line of the chain's last step that has one."""
    places = [program.graph.steps[p].place for p in chain.places]
    return next((p for p in reversed(places) if p.line), Place())


def call_of(chain: Chain) -> Callable[..., tuple[Any, ...]]:
    """The op of a chain, as a function of the chain's arrays."""
    op, shapes = _op_of(chain.made.text), [v.shape for v in chain.outputs]
    given = [(place_of_input(array.name), array.shape) for array in chain.made.inputs]

    def call(*arrays: Any) -> tuple[Any, ...]:
        results = as_tuple(op(*(arrays[place].reshape(shape) for place, shape in given)))
        return tuple(r.reshape(shape) for r, shape in zip(results, shapes, strict=True))

    return call


@functools.lru_cache(maxsize=512)
def _op_of(text: str) -> Any:
    """The op of a spec's text: chains of equal specs share it, and its kernels."""
    return op_of(read_op("specs/chain.yaml", text))
