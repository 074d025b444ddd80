"""Outputs that take an input's buffer (`aliases` of a spec), where the caller donates it.

XLA would copy a buffer that is still needed, or that is not the program's to overwrite, before the kernel runs. So an
alias takes effect where an argument of the program with that array's shape and dtype is donated, and where the kernel
reads each element of the input before the same thread writes it: element by element, or with rows kept in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from codegen.plan import Launch
from codegen.reductions import RowLaunch, WalkLaunch

if TYPE_CHECKING:
    from codegen.runtime.op import Op


def in_place(op: Op, how: Launch | RowLaunch | WalkLaunch) -> dict[str, str]:
    """The inputs whose buffers a launch may write an output to, and which."""
    if not isinstance(how, Launch) and not (isinstance(how, RowLaunch) and how.kept):
        return {}
    found = {}
    for output, source in op.spec.aliases:
        reads = [a for a in op.plan.loads if source in (a.array and a.array.name, a.index_of and a.index_of[0])]
        writes = [a for a in op.plan.stores if a.array and a.array.name == output]
        if [(a.mode, a.tokens, a.index_of) for a in reads] == [("flat", a.tokens, None) for a in writes]:
            found[source] = output
    return found


def pairs(op: Op, how: Launch | RowLaunch | WalkLaunch, donated: Mapping[str, bool]) -> dict[int, int]:
    """The same by place, of the inputs that are `donated`."""
    inputs, outputs = ([a.name for a in arrays] for arrays in (op.spec.inputs, op.spec.outputs))
    return {inputs.index(i): outputs.index(o) for i, o in in_place(op, how).items() if donated.get(i)}


@dataclass(frozen=True)
class _InPlace:
    """A launcher for `cutlass_call`, which passes no outputs that are inputs. Equal ones are equal keys of its caches."""

    launch: Callable[..., None]
    inputs: int
    pairs: tuple[tuple[int, int], ...]  # an input's place, its output's

    def __call__(self, stream: Any, *tensors: Any, **constants: Any) -> None:
        outputs = list(tensors[self.inputs :])
        for source, output in sorted(self.pairs, key=lambda pair: pair[1]):
            outputs.insert(output, tensors[source])
        self.launch(stream, *tensors[: self.inputs], *outputs, **constants)


def launcher(launch: Callable[..., None], inputs: int, pairs: dict[int, int]) -> Callable[..., None]:
    """What `cutlass_call` is given for a launcher of so many inputs, some of which (by place) are outputs as well."""
    return _InPlace(launch, inputs, tuple(pairs.items())) if pairs else launch
