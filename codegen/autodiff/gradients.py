"""The outputs of a backward: the gradients of inputs and parameters, and of the elements that it takes from tables by index."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from codegen.autodiff.adjoints import Adjoints, Taken
from codegen.graph.names import fresh
from codegen.graph.nodes import ROWS, Node, Statement, topological
from codegen.graph.ranges import ranges
from codegen.language.chain import output_parts
from codegen.language.formula.reader import Reader
from codegen.language.statements import read_lines
from codegen.spec.spec import Array, Axis, Spec

NARROW = {"uint8": 255, "uint16": 65535}  # types of an index that stays below, with room for what rounding adds


class Result(NamedTuple):
    """An output of a backward: the gradient of an input or a parameter, or of elements that are `taken` from it."""

    of: str
    array: Array
    taken: Taken | None = None


class Gradients(Adjoints):
    """The gradients of a checked spec as arrays (`results`), and the statements that assign them (`assigned`)."""

    def __init__(
        self,
        spec: Spec,
        by_index: bool = False,
        held: Iterable[tuple[str, Node]] = (),
        constant: Collection[int] = frozenset(),
        taken: Collection[str] = (),
    ):
        super().__init__(spec, by_index, held, constant, taken)
        self.places: dict[int, Array] = {}  # the outputs that are computed indices, by the identity of their values
        self.results, self.assigned = self.outputs(self.gradients() | self.written_formulas())

    def outputs(self, found: Mapping[tuple[str, int | None], Node]) -> tuple[list[Result], list[Statement]]:
        """The outputs of the backward, and the statements that assign them. There is one for the gradient of each input and
        parameter, unless that is zero, and one for each `take` from an input. Each output has the name of the input or parameter.
        Computed indices are assigned to further outputs, `places`."""
        outputs, assigned = list[Result](), list[Statement]()
        params = [Array(p.name, self.spec.compute, ()) for p in self.spec.params if (p.name, None) in found]
        for array in (*self.spec.inputs, *params):
            taken_from = self.taken_from.get(array.name, [])
            if at := self.put_into(array.name):
                gradient = replace(array, name=fresh(self.taken, f"d{array.name}"), span=None)
                outputs.append(Result(array.name, gradient))
                assigned.append(Statement(gradient.name, None, self.graph.const(0.0), at))
            if any((array.name, part) in found for part in output_parts(array)):
                gradient = replace(array, name=fresh(self.taken, f"d{array.name}"), default=None, span=None)
                if taken_from:  # the sum of all is rounded once
                    gradient = replace(gradient, dtype=self.spec.compute)
                outputs.append(Result(array.name, gradient))
                for part in output_parts(array):
                    value = found.get((array.name, part)) or self.graph.const(0.0)
                    assigned.append(Statement(gradient.name, part, value))
            for taken in taken_from:
                taken, alike = self.of_alike(taken, array)
                every = tuple(Axis((a,), extents=(None,)) for a in taken.dims)
                dims = tuple(axis for axis in every if axis.names[0] not in alike)
                gradient = Array(fresh(self.taken, f"d{array.name}"), self.spec.compute, dims)
                outputs.append(Result(array.name, gradient, taken))
                assigned.append(Statement(gradient.name, None, taken.adjoint))
                if isinstance(taken.index, Node) and id(taken.index) not in self.places:
                    place = self.places_of(taken.index, every)
                    self.places[id(taken.index)] = place
                    assigned.append(Statement(place.name, None, taken.index))
        return outputs, assigned

    def written_formulas(self) -> dict[tuple[str, int | None], Node]:
        """The gradients that are formulas of the spec."""
        arrays = {a.name: a for a in self.spec.outputs} | {a.name: a for a in self.cotangents.values()}
        self.scope.inputs |= arrays
        found = {}
        for name, scalar in self.formulas.items():
            (line, *_), _ = read_lines(scalar)
            assert isinstance(line.tree, ast.Expr)
            array, _, part = name.partition("[")
            found[array, int(part[:-1]) if part else None] = Reader(self.scope)(line.tree.value)
        return found

    def of_alike(self, taken: Taken, table: Array) -> tuple[Taken, set[str]]:
        """The axes of an index along which all elements that it took have one gradient, which is written once; and the gradient.
        The sizes of these axes, which a mean's gradient contains, are divided out: a kernel knows the sizes of its outputs
        alone."""
        own = taken.index.dims if isinstance(taken.index, Node) else self.spec.array(taken.index).axes
        alike = {*own} - {*table.axes, *taken.adjoint.dims, ROWS}
        adjoint, divided = taken.adjoint, list[str]()
        while adjoint.op == "div" and (found := _only_sizes(adjoint.args[1], alike)):
            adjoint, divided = adjoint.args[0], [*divided, *found]
        if any(n.op == "size" and n.attr in alike for n in topological([adjoint])):
            return taken, set()
        return replace(taken, adjoint=adjoint, divided=tuple(divided)), alike

    def places_of(self, index: Node, dims: tuple[Axis, ...]) -> Array:
        """The output that has a computed index. One that depends on no array is written for each element of the `take`'s result. Its
        type has as few bytes as the bounds of the index allow, and their rounding."""
        nodes = list(topological([index]))
        low, high = ranges(nodes)[id(index)]
        narrow = (name for name, most in NARROW.items() if low >= 0 and high < most)
        read = any(n.op == "input" for n in nodes)
        dtype = next(narrow, self.spec.integer)
        return Array(fresh(self.taken, "places"), dtype, self.spec.dims(index.dims) if read else dims)

    def index_of(self, taken: Taken) -> str:
        """The name of the array that holds the index of a `take`."""
        return self.places[id(taken.index)].name if isinstance(taken.index, Node) else taken.index


def _only_sizes(value: Node, axes: Collection[str]) -> list[str]:
    """The axes, if a value is the product of their sizes. Empty if it is another value, or has sizes of other axes."""
    nodes = [n for n in topological([value]) if n.op not in ("float", "mul")]
    sizes = [str(n.attr) for n in nodes if n.op == "size" and n.attr in axes]
    return sizes if len(sizes) == len(nodes) == sum(n.op == "mul" for n in topological([value])) + 1 else []
