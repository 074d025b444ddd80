"""What names mean while a spec's formulas are read."""

from __future__ import annotations

from dataclasses import dataclass, field

from codegen.graph.nodes import DTYPES, Chain, DType, Graph, Node
from codegen.spec.spec import Array, Spec


@dataclass
class Scope:
    """What names mean while a formula is read."""

    graph: Graph
    types: dict[str, tuple[str, ...]]
    integer: DType  # what integers are computed in
    inputs: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Node] = field(default_factory=dict)  # params and the chain's names so far
    axes: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    output_axes: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()  # names that some line assigns
    broken: set[str] = field(default_factory=set)  # names whose own line has a mistake
    used: set[str] = field(default_factory=set)

    @property
    def example_axis(self) -> str:
        """An axis for examples: the last one an output has."""
        return next((a for a in reversed(self.graph.axes) if a in self.output_axes), "N")

    def names(self) -> list[str]:
        return [*self.inputs, *self.values]


def make_scope(spec: Spec, chain: Chain | None = None) -> Scope:
    """What names mean in a spec's formulas: in those of its chain, or in others, which may use the names of the `chain`."""
    scope = Scope(
        Graph(spec.axes) if chain is None else chain.graph.fork(),
        dict(spec.types),
        DTYPES[spec.integer],
        {a.name: a for a in spec.inputs},
        axes=frozenset(spec.axes),
        outputs=frozenset(a.name for a in spec.outputs),
        output_axes=frozenset(axis for a in spec.outputs for axis in a.axes),
    )
    for p in spec.params:
        scope.values[p.name] = scope.graph.node("param", attr=p.name, kind=p.kind, dims=())
    if chain is not None:
        scope.values |= {s.name: s.value for s in chain.statements if s.part is None}
    return scope
