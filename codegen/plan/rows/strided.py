"""The plan of ops that reduce along axes which are not the last ones, though the innermost axis is among them, and then use the
results for each element. One kernel computes such an op: a group norm of channels-last arrays, or a scale for each block of 128 x
128.

It is the plan of a row kernel with the axes in another order: the axes that are kept make a row's position, and the reduced ones its
columns. A row's columns are neighbours in memory only along the innermost axis, so no vector crosses into the next stretch of them, and
each vector's place is found by its coordinates. Such a row is read once: a block, or a cluster, holds it in registers. Calls with
longer rows, or with short stretches, run the op's stages.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from codegen.errors import Diagnostic, UserError
from codegen.graph.nodes import DTYPES, ROWS, Statement, lost_axes
from codegen.graph.ops import ALONE, SCANS, TAKES
from codegen.plan.launches import PlannedCall
from codegen.plan.rows.reducing import Reductions
from codegen.plan.rows.reductions import InVectors
from codegen.shared import RowLaunch
from codegen.spec.spec import Array, Spec

# Of a row whose stretches are whole vectors: blocks that share pages of memory read them at different times. Microseconds on an
# H200 in one kernel and in stages: 170 and 123 for a group norm of [16, 4096, 32, 32] in bfloat16, 94 and 89 for [32, 1024, 32,
# 40]. But 47 and 50 for [64, 256, 32, 40], and 86 and 99 for blocks of 128 x 128 with a scale each
MOST_BYTES = 48 * 1024
IN_CACHE = 16 * 2**20  # bytes of all rows, up to which the launches of stages take longer than what they read again
LEAST_STRETCH = 16  # bytes of neighbouring elements: with fewer, blocks share sectors of 32 bytes with too many others


@dataclass(frozen=True)
class Strided(InVectors):
    """The plan of an op that reduces along rows whose columns are stretches of memory."""

    @property
    def own_arrays(self) -> int:
        return len({a.array for a in self.loads if a.array is not None and self.of_row(a)})

    @functools.cached_property
    def full(self) -> tuple[tuple[Array, int], ...]:
        """The arrays that are read or written in vectors; each access takes one of their elements at a position."""
        innermost = len(self.groups) - 1
        own = (a.array for a in (*self.loads, *self.stores) if a.array is not None and a.tokens[-1:] == (innermost,))
        return tuple(dict.fromkeys((array, 1) for array in own))

    def launch(self, call: PlannedCall) -> RowLaunch:
        """The launch of a call. Raises `UserError` where no block holds a row, where stretches are too
        short, or where sizes are not known."""
        extents = call.extents
        if extents.inner is None or extents.columns is None:
            raise UserError("the sizes are not known")
        vec = math.gcd(self.width(call), extents.inner) if extents.inner else 1
        narrowest = min(call.size(array) for array, _ in self.full)
        if extents.inner * narrowest < LEAST_STRETCH:
            raise UserError(f"{extents.inner} neighbouring elements are too few")
        width = extents.columns * self.column_bytes(call)
        few = extents.rows is not None and extents.rows * width <= IN_CACHE
        if width > MOST_BYTES and vec == self.width(call) and not few:
            raise UserError(f"a row of {width} bytes in stretches is read as fast by stages")
        found = self.launch_along(vec, False, call)
        if not found.holds_row:
            raise UserError(f"no block can hold a row of {extents.columns} elements")
        return found


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Strided:
    """The plan for a checked spec whose reductions are along the same axes, the innermost among them. Raises `SpecError` if no such
    kernel can compute it."""
    planner = _Strided(spec, statements)
    planner.check()
    return planner.plan()


class _Strided(Reductions):
    """The planner of a kernel that reduces along rows, for which the axes along a row are the last ones."""

    makes = Strided

    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        super().__init__(spec, statements)
        self.memory = self.axes
        some = {axis for n in self.reduced for axis in lost_axes(n)}
        self.kept = tuple(a for a in self.axes if a not in some)
        self.axes = (*self.kept, *(a for a in self.axes if a in some))

    def refusal(self) -> Diagnostic | None:
        last, columns = self.spec.outputs[-1], self.axes[len(self.kept) :]
        alike = all(lost_axes(n) == columns for n in self.reduced)
        if not alike or ROWS in columns or self.axes == self.memory or self.axes[-1] != self.memory[-1]:
            return self.error("its reductions are not along the innermost axis and others before it", "", last)
        if any(n.op in (*TAKES, *ALONE, *SCANS, "contract", "shift") for n in self.nodes) or self.puts:
            return self.error(
                "a kernel of strided rows computes only element-wise operations besides its reductions", "", last
            )
        for array in self.spec.arrays:
            packed = any(DTYPES[d].packed for d in self.spec.dtypes(array))
            if packed or array.parts or self.axes[-1] in array.axes[:-1]:
                return self.error(f"{array.name!r} has no stretches of neighbouring elements", "", array)
        return super().refusal()

    def are_last(self, columns: Iterable[str]) -> bool:
        """Whether these axes are in one order in every array; they need not be its last ones."""
        own = {a: self.in_order({*columns} & {*a.axes}) for a in self.spec.arrays}
        return all(tuple(axis for axis in a.axes if axis in axes) == axes for a, axes in own.items())

    def plan(self) -> Strided:
        found = super().plan()
        assert isinstance(found, Strided)
        return replace(found, order=self.in_order(self.axes))
