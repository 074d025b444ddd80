"""An op's backward as a spec of its own, made graph to graph.

`adjoints.py` differentiates, `gradients.py` assigns the results to outputs, and `saving.py` chooses the values that the forward saves.
`language/transfer.py` then makes the backward's spec, and `backward.py` plans it like any other op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from codegen.autodiff.quotients import cheaper
from codegen.autodiff.saving import Saved, Saving
from codegen.autodiff.scans import with_states_before
from codegen.errors import UserError
from codegen.graph.contraction import marks, meetings
from codegen.graph.nodes import Leaf, Node, Statement, put_inputs, topological
from codegen.graph.precision import deciding_types
from codegen.language.statements import MAX_STATEMENTS
from codegen.language.transfer import Values, derived_spec, extended_spec
from codegen.spec.spec import Array, Spec, types_of


@dataclass(frozen=True)
class Scattered:
    """An output of a backward that is the gradient of a `take`'s result. It is added by index, along an axis, to the gradient of
    the table or of one of its parts. The index is an input of the op, or another output of the backward."""

    output: str
    table: str
    part: int | None
    index: str
    axis: str
    divided: tuple[str, ...] = ()  # axes of the index: the output is divided by their sizes first


@dataclass(frozen=True)
class Backward:
    """An op's backward: its `spec`, and the names of the op's arrays in it.

    It takes the `cotangents` of floating outputs, values that the forward saves, and inputs. Its outputs are the `gradients` of
    the floating inputs and dynamic parameters that an output depends on. If the forward saves more than its outputs, `forward`
    is the op with the other values as further outputs.
    """

    spec: Spec
    forward: Spec | None
    cotangents: tuple[tuple[str, str], ...]  # (y, dy)
    saved: tuple[str, ...]  # the outputs and values of the chain that it takes
    inputs: tuple[str, ...]  # the inputs of the op that it takes
    gradients: tuple[tuple[str, str], ...]  # (x, dx) for each output; a table may have several, which are added up
    scattered: tuple[Scattered, ...] = ()  # the outputs that are gradients of a `take`'s result
    same: tuple[tuple[str, Array], ...] = ()  # (x, the cotangent or the output that is also the gradient of x)
    passed: tuple[tuple[str, str], ...] = ()  # (an output of `scattered`, the cotangent that is added in its place)


class Reverse(Saving):
    """The derivative of a checked spec, and the backwards that compute it. They differ in the values that the forward saves.

    With `by_index`, the gradients of all tables are added up by index, also if each index selects from its own row. `held` are the
    values, by name, that the op's stages write in any case, and `constant` values are not differentiated. Raises `UserError` if
    there is no derivative that kernels can compute.
    """

    def backward(self, chosen: Saved) -> Backward:
        """The backward that takes the values that `saved_for` chose last. Raises `UserError` if kernels cannot compute it."""
        assigned, saved, gradients = self.assigned, chosen.values, [result.array for result in self.results]
        self.from_stages = {name for name in saved if name not in self.made} <= self.held.keys()
        leaves = {id(node): Leaf(name) for name, node in saved.items()}
        for name in saved:  # what was rounded to a saved factor is read from it
            if (factor := self.held_factor(name)) is not None:
                leaves[id(factor.args[0])] = Leaf(name)
        assigned = with_states_before(assigned, leaves, self.graph)
        held = self.pinned(assigned, saved, gradients)
        again = [n for n in topological(s.value for s in (*self.statements, *assigned)) if id(n) in held]
        assigned = cheaper(self.graph, assigned, leaves, again)
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        used = {n.attr.name for n in nodes if isinstance(n.attr, Leaf)} | set(saved) | put_inputs(assigned)
        inputs = [a for a in self.cotangents.values() if a.name in used]
        more = self.extra_outputs(saved)
        kept = [a for a in self.spec.outputs if a.name in used] + more
        inputs += kept
        axes = {axis for a in gradients for axis in a.axes}
        inputs += self.spec.inputs_for(used, inputs, axes | {str(n.attr) for n in nodes if n.op == "size"})
        pinned = self.pinned(assigned, saved, gradients)
        values = Values(tuple(assigned), self.calls, self.named, leaves, pinned=pinned)
        spec = replace(
            self.spec.plain(), op=f"{self.spec.op}_backward", summary=f"The gradients of {self.spec.op}.",
            inputs=tuple(inputs), outputs=(*gradients, *self.places.values()), params=self.spec.params_of(nodes), schedule=(),
        )  # fmt: skip
        spec = derived_spec(spec, f"{self.spec.path} (backward)", values, self.taken)
        if len(spec.read.statements) > MAX_STATEMENTS:
            raise UserError(f"the backward has more than {MAX_STATEMENTS} statements")
        forward = None
        if not self.from_stages:
            forward = replace(
                self.spec, op=f"{self.spec.op}_forward", outputs=(*self.spec.outputs, *more), grad="none",
                save=(), for_backward=tuple(chosen.more), bench=(),
            )  # fmt: skip
            named = {s.name for s in self.statements}
            unnamed = [Statement(name, None, value) for name, value in saved.items() if name not in named]
            forward = extended_spec(forward, self.spec, unnamed, self.graph, self.taken)
        return Backward(
            spec,
            forward,
            tuple((y, a.name) for y, a in self.cotangents.items() if a.name in used),
            tuple(a.name for a in kept),
            tuple(a.name for a in inputs if a in self.spec.inputs),
            tuple((result.of, result.array.name) for result in self.results),
            tuple(
                Scattered(output.name, name, taken.part, self.index_of(taken), taken.axis, taken.divided)
                for name, output, taken in self.results
                if taken is not None
            ),
        )

    def pinned(
        self, assigned: list[Statement], saved: Mapping[str, Node], gradients: Iterable[Array]
    ) -> dict[int, tuple[str, ...]]:
        """The values that are used with a statistic of themselves that the forward saves. The backward computes them with the same
        bits as the forward (`contraction.marks`)."""
        behind = {id(n) for n in topological(saved.values())}
        nodes = list(topological(s.value for s in (*self.statements, *assigned)))
        values = [value for value, _ in meetings(nodes, behind)]
        read, variables = self.spec.float_types(self.spec.inputs), dict(self.spec.types)
        first = deciding_types(self.statements, self.spec.asked_types, read, variables)
        made = types_of(self.spec.outputs)
        held = {id(node): made.get(name, self.dtype_saved(node)) for name, node in saved.items()}
        read |= types_of(self.cotangents.values())
        return marks(values, first, deciding_types(assigned, types_of(gradients), read, variables, held))

    def extra_outputs(self, saved: Mapping[str, Node]) -> list[Array]:
        """The arrays for saved values that are not outputs of the op."""
        return [
            Array(name, self.dtype_saved(node), self.spec.dims(node.dims))
            for name, node in saved.items()
            if name not in self.made
        ]
