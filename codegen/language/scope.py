"""The names that a spec's formulas may use, and their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from codegen.graph.nodes import DTYPES, Chain, DType, Graph, Node
from codegen.spec.spec import Array, Spec

CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}


@dataclass(frozen=True)
class Parted:
    """A value with parts: the name of each part's value, and the axes that have the parts."""

    names: tuple[str, ...]
    axes: frozenset[str]


@dataclass
class Scope:
    """The names that a formula may use, and their values."""

    graph: Graph
    types: dict[str, tuple[str, ...]]
    integer: DType  # the type that integers are computed in
    inputs: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Node] = field(default_factory=dict)  # params, and the names that the chain has assigned so far
    axes: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)  # of axes of a fixed size
    outputs: frozenset[str] = frozenset()
    output_axes: frozenset[str] = frozenset()
    # The axes of random numbers whose call names none: the first output's, in its order
    draw_axes: tuple[str, ...] = ()
    later: frozenset[str] = frozenset()  # names that some line assigns
    parted: dict[str, Parted] = field(default_factory=dict)  # names that the chain has assigned whole arrays with parts
    part: int | None = None  # the part that a statement of whole arrays computes
    broken: set[str] = field(default_factory=set)  # names that a wrong line assigns
    used: set[str] = field(default_factory=set)

    @property
    def example_axis(self) -> str:
        """An axis for examples: the last one an output has."""
        return next((a for a in reversed(self.graph.axes) if a in self.output_axes), "N")

    def kind(self, array: Array) -> str:
        """The kind of an array's elements: float, int or bool."""
        return DTYPES[self.types.get(array.dtype, (array.dtype,))[0]].kind

    def names(self) -> list[str]:
        return [*self.inputs, *self.values, *self.parted]


def make_scope(spec: Spec, chain: Chain | None = None) -> Scope:
    """The scope of a spec's chain, or of its other formulas, which may use the names of the `chain`."""
    scope = Scope(
        Graph(spec.axes) if chain is None else chain.graph.fork(),
        dict(spec.types),
        DTYPES[spec.integer],
        {a.name: a for a in spec.inputs},
        axes=frozenset(spec.axes),
        sizes=spec.extents,
        outputs=frozenset(a.name for a in spec.outputs),
        output_axes=frozenset(axis for a in spec.outputs for axis in a.axes),
        draw_axes=spec.outputs[0].axes,
    )
    for p in spec.params:
        scope.values[p.name] = scope.graph.node("param", attr=p.name, kind=p.kind, dims=())
    if chain is not None:
        scope.values |= {s.name: s.value for s in chain.statements if s.part is None}
    return scope
