"""The plan of ops that scan: h = a h + b, running sums, products and maxima along one axis.

A scan's kernel walks along that axis and keeps the states. It holds everything that is computed element by element before and
after its scans, as an element-wise kernel does, and reaches arrays in the same ways (`elementwise.py`). Where the axis is the
innermost one, neighbouring lanes have neighbouring vectors along it; else each lane has its own columns. Several warps may share
an axis: each has some of its elements, and all exchange their results before the next ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from codegen.errors import SpecError
from codegen.graph.nodes import DTYPES, Along, Node, Statement, along_of
from codegen.graph.ops import REDUCTIONS, SCANS
from codegen.plan.access import Extent, vector_width
from codegen.plan.elementwise import Elementwise, PlannedElements
from codegen.plan.launches import Extents
from codegen.shared import WARP, Launch, ScanLaunch
from codegen.spec.spec import Spec

THREADS = 128  # of a block, at least
MOST_ALONG = {True: 8, False: 16}  # warps that share an axis that is innermost, and one that is not
STEPS = 16  # vectors of a thread in flight, along an axis that is not innermost
BUSY = 132 * 1024  # threads that keep a large GPU's memory busy
COLUMN_BYTES = 4  # of a vector across an axis that is not innermost: a warp reads 128 bytes

NO_AXIS = Along("")


@dataclass(frozen=True)
class Scan(Elementwise):
    """The plan of a kernel that scans along the axis of the group `place`."""

    place: int = 0
    along: Along = NO_AXIS
    scans: tuple[Node, ...] = ()  # in the order in which they are computed

    @property
    def innermost(self) -> bool:
        return self.place == len(self.groups) - 1

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """The number of scans, and of elements of each."""
        columns = extent(self.groups[self.place].axes)
        return extent(self.order) // max(columns, 1), columns

    def launch(
        self,
        dtypes: Mapping[str, str],
        extents: Extents,
        schedule: Mapping[str, int],
        arch: str | None = None,
    ) -> Launch:
        """The launch for arrays of these dtypes (by name)."""
        del arch
        width = max((DTYPES[dtypes[a.name]].size * n for a, n in self.full if a.name in dtypes), default=4)
        vec = vector_width(width, schedule if self.innermost else {"vector_bytes": COLUMN_BYTES})
        vec = math.gcd(vec, extents.inner) if extents.inner else 1 if extents.inner is None else vec
        size, scans, most = extents.columns, extents.rows, MOST_ALONG[self.innermost]
        along, steps = 1, 1 if self.innermost else STEPS
        if self.innermost:
            while along < most and (size is None or along * WARP * vec < size):
                along *= 2
        else:
            while (
                along < most
                and (size is None or along * steps < size)
                and (scans is None or scans // vec * along < BUSY)
            ):
                along *= 2
        threads = max(THREADS, along * WARP)
        return ScanLaunch(vec, False, threads, along=along, steps=steps, apart=not self.innermost)


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Scan:
    """The plan for a checked spec. Raises `SpecError` if no kernel can compute it."""
    planner = PlannedElements(spec, statements)
    scans = tuple(n for n in planner.nodes if n.op in SCANS)
    along = along_of(scans[0])
    if reduced := [n for n in planner.nodes if n.op in REDUCTIONS]:
        hint = "give each an op of its own"
        raise SpecError([planner.error_in_chain(reduced[0], "a kernel that scans does not reduce", hint)])
    for other in scans:
        if (along_of(other).axis, along_of(other).reverse) != (along.axis, along.reverse):
            message = "a kernel scans along one axis, in one direction"
            raise SpecError([planner.error_in_chain(other, message, "give each scan an op of its own")])
    for output in spec.outputs:
        if along.axis not in output.axes:
            message = f"{output.name!r} lacks the axis {along.axis}, along which the kernel scans"
            raise SpecError([planner.error(message, "give it an op of its own", output)])
    for statement in statements:
        if statement.at is not None:
            message = f"{statement.name!r} is put where an index says, and the kernel scans"
            raise SpecError([planner.error(message, "put it in an op of its own", spec.array(statement.name))])
    if problems := planner.refusals():
        raise SpecError(problems)
    plan = planner.elementwise()
    place = next(i for i, g in enumerate(plan.groups) if along.axis in g.axes)
    values = {f.name: getattr(plan, f.name) for f in fields(Elementwise)} | {"kind": "scan"}
    return Scan(**values, place=place, along=along, scans=scans)
