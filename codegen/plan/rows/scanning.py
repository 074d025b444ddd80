"""The plan of ops that scan: h = a h + b, running sums, products and maxima along one axis.

A scan's kernel loops along that axis and holds the states. It also computes the element-wise values before and after
its scans, and accesses arrays as an element-wise kernel does (`elementwise.py`). Where the axis is the innermost one,
neighbouring lanes have neighbouring vectors along it; else each lane has its own columns. Several warps may share an
axis: each has some of its elements, and all exchange their results before the next ones.

States may have small axes that no output has, as `h[B, S, D, N]` with `y[B, S, D] = sum(h * c, axis=N)`. A thread then
has all states of an element, one after the other, and reduces them in registers, so that they are never in memory.

Gradients of such states have scans in both directions. Where the axis is not the innermost one, a kernel goes along it in one of them,
and computes the states of the others from those before each of a thread's tiles, which a first kernel writes. So states are in memory
for one element of several. Without states, two kernels that write what the other needs take less time: a scan has few threads, and an
H200 took 1640 us for the gradients of a gated recurrence in one, and 1360 in several.

Where the axis is not the innermost one, values that are computed from the states may also be summed along it. A thread
adds up the values of its columns. In the end the warps and blocks that share an axis add up their sums. So gradients of
what sequences share read nothing again. Values may be summed along the innermost axis, too: the lanes of a warp add up
theirs, and a second kernel adds up what the warps have. All of these may be values of states.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from codegen.errors import Diagnostic, SpecError
from codegen.graph.contraction import is_definite
from codegen.graph.nodes import Along, Node, Statement, along_of, lost_axes, topological
from codegen.graph.ops import REDUCTIONS, SCANS, TAKES
from codegen.plan.access import Access, Extent
from codegen.plan.elementwise import Elementwise, PlannedElements
from codegen.plan.launches import PlannedCall, vector_width
from codegen.plan.rows.launching.walking import registers
from codegen.shared import WARP, Launch, ScanLaunch
from codegen.spec.spec import Array, Spec
from codegen.targets import MOST_REGISTERS

THREADS = 128  # of a block, at least
# By whether the axis is innermost: warps of a block that share an axis at most, and threads that keep a large GPU busy: as long as
# there are fewer, more warps share an axis. An H200 took 43 us for 256 rows of 131072 with 16 warps, and 54 with 8, but 79 us for 22369
# rows of 3000 with one or two, and 92 with 8. For sequences of which each lane has its own it took 475 us with 8 warps, and 780 with 16
MOST_ALONG = {True: 16, False: 8}
BUSY = {True: 128 * 1024, False: 132 * 288}
LEAST_IN_ROW = 4  # neighbouring elements that a thread has at once, at least, where the axis is innermost
LEAST_APART = 2  # warps that share an axis that is not innermost, at least
UNKNOWN = 32 * 1024  # threads, where it is not known how many scans there are
MOST_BLOCKS = 8  # of a cluster
STEPS = 8  # vectors of a thread at once, along an axis that is not innermost, at most
RESIDENT = 512  # threads of an SM whose registers a thread leaves room for, where lanes have scans of their own
STEPS_OF_STATES = 16  # where elements have states
STEP_REGISTERS = 8  # of each, besides the values that it holds: where it is, and whether it is inside
# Of a vector across an axis that is not innermost: a warp reads 128 bytes. Where elements have states, a thread has one element. An
# H100 took 878 us for 8 sequences of 2048 x 1536 with 16 states, and 1119 us with two elements a thread. For one sequence it took
# 387 and 921 us
COLUMN_BYTES = 4
# Where there are many scans, a vector has as many elements as fill it in the narrowest array, if its elements have at
# least so many bytes: an element then takes fewer instructions. A gradient with states in float32 took an H200 0.85 of
# the time
LEAST_WIDTH = 2
# Where neighbours share elements of an array, such as the states of a gradient that memory holds, a vector has so many of them, and a
# thread so many elements at once: each of Mamba's 16 states then takes 43 instructions of PTX, 90 with one in a vector
SHARING, SHARED = 4, 16
MOST_STATES = 64  # of an element, in a thread
UNROLLED = 128  # states of a thread's elements at once: the compiled kernel has instructions for each
MOST_ALONG_STATES = 4  # warps that share an axis, where a thread has many states: it needs many registers
# Threads that keep a large GPU busy where each has many states, which do not wait for each other
BUSY_STATES = 132 * 128
CARRIED = {"cumlogsumexp": 2}  # numbers of a state that the elements after it need, unless one
PAIRS = ("scan", "cumlogsumexp")  # scans whose partial results are two numbers
REDUCED = ("sum", "mean", "max", "min", "prod")  # how a thread may reduce an element's states

NO_AXIS = Along("")


@dataclass(frozen=True)
class Scan(Elementwise):
    """The plan of a kernel that scans along the axis of the group `place`."""

    uniform: ClassVar[bool] = False
    place: int = 0
    along: Along = NO_AXIS
    scans: tuple[Node, ...] = ()  # in the order in which they are computed
    states: tuple[tuple[str, int], ...] = ()  # the axes that states have and outputs lack, and their sizes
    reductions: tuple[Node, ...] = ()  # over all of these
    held: int = 1  # the values of an element that a thread holds while states are exchanged
    ordered: tuple[str, ...] = ()
    sums: tuple[Node, ...] = ()  # along the axis: outputs without it
    across: tuple[Node, ...] = ()  # sums along the innermost axis: outputs without it
    back: tuple[Node, ...] = ()  # those of the scans that go in the other direction
    back_loads: tuple[Access, ...] = ()  # what these are computed from

    @property
    def summed(self) -> tuple[Access, ...]:
        """The stores of what is summed along the axis."""
        return tuple(a for a in self.stores if self.sums and self.place not in a.tokens)

    @property
    def crossed(self) -> tuple[Access, ...]:
        """The stores of what is summed along the innermost axis."""
        last = len(self.groups) - 1
        return tuple(a for a in self.stores if self.across and self.place in a.tokens and last not in a.tokens)

    @property
    def counted(self) -> tuple[tuple[int, ...], ...]:
        return (self.place,), tuple(i for i in range(len(self.groups)) if i != self.place)

    @property
    def order(self) -> tuple[str, ...]:
        """The axes of the jnp form's operands, in the spec's order: the axes of outputs, and the axes of states."""
        return self.ordered

    @property
    def innermost(self) -> bool:
        return self.place == len(self.groups) - 1

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """The number of scans, and the number of elements of each."""
        columns = extent(self.groups[self.place].axes)
        return extent(tuple(axis for group in self.groups for axis in group.axes)) // max(columns, 1), columns

    @property
    def count(self) -> int:
        """The number of states of an element."""
        return math.prod(size for _, size in self.states)

    def has_states(self, node: Node) -> bool:
        """Whether a value differs between the states of an element."""
        return any(axis in node.dims for axis, _ in self.states)

    def is_of_states(self, access: Access) -> bool:
        """Whether an array has an element for each state."""
        return any(axis in access.tokens for axis, _ in self.states)

    def reads_states_together(self, array: Array) -> bool:
        """Whether a thread loads the elements of neighbouring states at once."""
        axis, size = self.states[-1] if self.states else ("", 1)
        return size > 1 and size & (size - 1) == 0 and array.axes[-1:] == (axis,) and array.parts is None

    def is_ahead(self, access: Access) -> bool:
        """Whether a thread loads an array's elements for the next tile while it computes one."""
        return access.array is not None and self.place in access.tokens and not self.is_of_states(access)

    @property
    def shares(self) -> bool:
        """Whether neighbours along the innermost axes share elements of an array along the scanned one, as states do."""
        return any(self.is_ahead(a) and len(self.groups) - 1 not in a.tokens for a in self.loads)

    def written(self, extent: Extent, how: ScanLaunch) -> list[tuple[int, int]]:
        """The shapes of the arrays that one of its kernels writes for another: for each scan in the other direction, one with the states
        before each of a thread's tiles, and one with the parts of what is summed along the innermost axis."""
        own = [extent(group.axes) for group in self.groups]
        rows, last = math.prod(own[:-1]), own[-1]
        size, scans = own.pop(self.place), math.prod(own)
        starts = [(-(-size // how.steps) * self.count * CARRIED.get(n.op, 1), scans) for n in self.back]
        parts = (-(-last // (WARP * how.vec)), len(self.across) * rows * self.count)
        return [*starts, parts] if self.across else starts

    @property
    def between(self) -> tuple[str, ...]:
        return *(f"starts{i}" for i, _ in enumerate(self.back, 1)), *(["parts"] if self.across else [])

    def launch(self, call: PlannedCall) -> Launch:
        """The launch of a call."""
        extents = call.extents
        widths = [call.size(a) * n for a, n in self.full if a.name in call.dtypes] or [4]
        size, scans = extents.columns, extents.rows

        def vector(width: int) -> int:
            found = call.vector(width) if self.innermost else vector_width(width, COLUMN_BYTES)
            return math.gcd(found, extents.inner) if extents.inner else 1 if extents.inner is None else found

        vec = 1 if self.states and not self.innermost else vector(max(widths))
        most = STEPS
        if not (self.innermost or self.states):
            wider, elements = vector(max(min(widths), LEAST_WIDTH)), STEPS * vec
            if self.shares:
                alike = min(vector_width(max(widths)), SHARING)
                wider, elements = max(wider, math.gcd(alike, extents.inner or 1)), max(elements, SHARED)
            if (scans or 0) // wider * MOST_ALONG[False] >= BUSY[False]:
                vec, most = wider, elements // wider
        if self.states:
            along, steps = self._for_states(vec, size, scans)
        else:
            steps = max(LEAST_IN_ROW // vec, 1) if self.innermost else self._steps(call, vec, most)
            along = self._warps(vec, steps, size, scans)
        threads = max(THREADS, along * WARP)
        resident = 0 if self.innermost or self.states else RESIDENT // threads
        how = ScanLaunch(vec, False, threads, along=along, steps=steps, apart=not self.innermost, resident=resident)
        how = replace(how, uneven=bool(self.back) and (size is None or size % steps != 0))
        shared = call.clusters and along == MOST_ALONG[self.innermost] and not self.states
        return replace(how, cluster=self._blocks(how, size, scans)) if shared and size and scans else how

    def _for_states(self, vec: int, size: int | None, scans: int | None) -> tuple[int, int]:
        """The warps that share an axis, and the vectors of a thread at once, where an element has states."""
        along, steps = 1, min(STEPS_OF_STATES, max(UNROLLED // self.count // vec, 1))
        steps = 1 if self.innermost else steps
        tile = WARP * vec if self.innermost else steps
        while (
            along < MOST_ALONG_STATES
            and (size is None or along * tile < size)
            and (self.innermost or scans is None or scans // vec * along < BUSY_STATES)
        ):
            along *= 2
        return along, steps

    def _warps(self, vec: int, steps: int, size: int | None, scans: int | None) -> int:
        """The warps that share an axis: as few as keep a GPU busy, which wait for each other less."""
        along, tile = (1, WARP * vec * steps) if self.innermost else (LEAST_APART, steps)
        threads = UNKNOWN if scans is None else scans * WARP if self.innermost else scans // vec
        while (
            along < MOST_ALONG[self.innermost]
            and threads * along < BUSY[self.innermost]
            and (size is None or along * tile < size)
        ):
            along *= 2
        return along

    def _steps(self, call: PlannedCall, vec: int, most: int) -> int:
        """The vectors of a thread at once, along an axis that is not innermost: fewer than `most` where these need many registers."""
        loaded = {a.array for a in self.loads if a.array is not None and self.is_ahead(a)}
        ahead = sum(call.size(array) for array in loaded if array.name in call.dtypes)
        each, steps = STEP_REGISTERS + self.held * vec + ahead * vec // 4, most
        while steps > 1 and registers(steps * each, 0) > MOST_REGISTERS:
            steps //= 2
        return steps

    def _blocks(self, how: ScanLaunch, size: int, scans: int) -> int:
        """The blocks of a cluster that share an axis of this size: as many as have elements, and as keep a GPU busy."""
        tile = how.along * how.steps * (WARP * how.vec if self.innermost else 1)
        threads, blocks = -(-scans // how.each) * how.threads, 1
        while blocks < MOST_BLOCKS and blocks * tile < size and blocks * threads < BUSY[self.innermost]:
            blocks *= 2
        return blocks


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Scan:
    """The plan for a checked spec. Raises `SpecError` if no kernel can compute it."""
    planner = _Scanned(spec, statements)
    scans, sums, back, across = planner.scans, planner.sums, planner.back, planner.across
    along = next(along_of(n) for n in scans if n not in back)
    outputs = {axis for axes in planner.written_to.values() for axis in axes}
    states = tuple(a for a in spec.axes if a not in outputs and any(a in n.dims for n in scans))
    if problem := _refused(planner, scans, states):
        raise SpecError([problem])
    for other in scans:
        if (along_of(other).axis, along_of(other).reverse) != (along.axis, along.reverse) and other not in back:
            message = (
                "a kernel scans along one axis, and in the other direction only what the other scans do not change"
            )
            raise SpecError([planner.error_in_chain(other, message, "give each scan an op of its own")])
    for output in spec.outputs:
        if along.axis not in planner.written_to[output.name]:
            message = f"{output.name!r} lacks the axis {along.axis}, along which the kernel scans"
            raise SpecError([planner.error(message, "give it an op of its own", output)])
    for statement in statements:
        if statement.at is not None:
            message = f"{statement.name!r} is put where an index says, and the kernel scans"
            raise SpecError([planner.error(message, "put it in an op of its own", spec.array(statement.name))])
    planner.check()
    plan = planner.elementwise()
    place = next(i for i, g in enumerate(plan.groups) if along.axis in g.axes)
    if back and not states:
        message = "a kernel scans in one direction, unless a thread has all states of an element"
        raise SpecError([planner.error_in_chain(back[0], message, "give each scan an op of its own")])
    if (sums or back or across) and place == len(plan.groups) - 1:
        message = "a kernel that scans the innermost axis goes along it once, and does not sum"
        raise SpecError([planner.error_in_chain((*sums, *across, *back)[0], message, "")])
    if apart := [n for n in across if {*lost_axes(n)} != {*plan.groups[-1].axes}]:
        message = "a kernel that scans sums along the axis that it scans, or along the innermost axes of its arrays"
        raise SpecError([planner.error_in_chain(apart[0], message, "")])
    values = {f.name: getattr(plan, f.name) for f in fields(Elementwise)} | {
        "kind": "scan",
        "kernels": 1 + bool(back) + len(across),
    }
    return Scan(
        **values,
        place=place,
        along=along,
        scans=scans,
        states=tuple((axis, spec.extents[axis]) for axis in states),
        reductions=planner.of_states,
        sums=sums,
        across=across,
        back=back,
        back_loads=planner.loaded_for(plan, back),
        held=_held(planner.nodes, along.axis),
        ordered=tuple(a for a in spec.axes if a in states or any(a in g.axes for g in plan.groups)),
    )


class _Scanned(PlannedElements):
    """The planner of a kernel that scans. The outputs that sum along its axis have all elements of the others, summed."""

    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        super().__init__(spec, statements)
        self.scans = tuple(n for n in self.nodes if n.op in SCANS)
        self.back = self.in_other_direction()
        axis, reduced = along_of(self.scans[0]).axis, [n for n in self.nodes if n.op in REDUCTIONS]
        written = {id(s.value): s.name for s in statements if s.at is None and s.part is None}
        taken = {id(a) for n in self.nodes for a in n.args}
        # The sums that are outputs, of as many axes: a thread has no positions along others
        last = [
            n for n in reduced
            if n.op == "sum" and n.kind == "float" and id(n) not in taken
            and {*n.dims} == {*self.written_to.get(written.get(id(n), ""), ())}
        ]  # fmt: skip
        elements = [
            a for a in self.written_to if axis in self.written_to[a] and a not in {written[id(n)] for n in last}
        ]
        elements = elements or [written[id(n)] for n in last if axis in n.dims and self._may_be_states(lost_axes(n))]
        own = {a for name in elements for a in self.written_to[name]} or self._summed_axes(axis)
        whole = tuple(a for a in spec.axes if a in own)
        states = {a for n in self.scans for a in n.dims} - own
        self.sums = tuple(n for n in last if lost_axes(n) == (axis,) and {*n.dims} - states == own - {axis})
        self.across = tuple(
            n for n in last if elements and axis in n.dims and lost_axes(n)[-1] == whole[-1]
            and {*n.dims} == (own | states) - {*lost_axes(n)}
        )  # fmt: skip
        self.of_states = tuple(n for n in reduced if n not in self.sums and n not in self.across)
        if self.sums or self.across:
            self.written_to |= {written[id(n)]: whole for n in (*self.sums, *self.across)}
            self.axes = whole

    def _may_be_states(self, axes: tuple[str, ...]) -> bool:
        """Whether a thread could have all elements along some axes."""
        return math.prod(self.spec.extents.get(axis, MOST_STATES + 1) for axis in axes) <= MOST_STATES

    def _summed_axes(self, axis: str) -> set[str]:
        """The axes of all outputs, and the one along which the kernel scans."""
        return {axis, *(a for axes in self.written_to.values() for a in axes)}

    def in_other_direction(self) -> tuple[Node, ...]:
        """The scans that go in another direction than the rest. They do not depend on the rest. None where all go in one."""
        if len({along_of(n).axis for n in self.scans}) > 1:
            return ()
        for reverse in (False, True):
            own = tuple(n for n in self.scans if along_of(n).reverse == reverse)
            before = topological(a for n in own for a in n.args)
            if not 0 < len(own) < len(self.scans) or any(n in self.scans and n not in own for n in before):
                continue
            if all(n.op != "cummax" or is_definite(n.args[0]) for n in own):  # both kernels compute the same bits
                return own
        return ()

    def loaded_for(self, plan: Elementwise, values: Iterable[Node]) -> tuple[Access, ...]:
        """The plan's loads of what some values are computed from."""
        needed = {id(n) for n in topological(values)}
        return tuple(a for node, a in zip(self.leaves(), plan.loads, strict=False) if id(node) in needed)


def _held(nodes: Iterable[Node], axis: str) -> int:
    """How many values of an element are held while threads exchange the states: what is computed or loaded before, and
    needed after, and the partial results."""
    after: set[int] = set()
    held: set[int] = set()
    partial = 0
    for node in nodes:
        if node.op in SCANS:
            partial += 2 if node.op in PAIRS else 1
        elif any(id(a) in after for a in node.args):
            held |= {id(a) for a in node.args if id(a) not in after and axis in a.dims}
        else:
            continue
        after.add(id(node))
    return len(held) + partial


def _refused(planner: _Scanned, scans: tuple[Node, ...], states: tuple[str, ...]) -> Diagnostic | None:
    """Why a kernel that scans cannot do the reductions of its chain, if so."""
    hint = "give each an op of its own"
    reduced = planner.of_states
    if not states:
        return planner.error_in_chain(reduced[0], "a kernel that scans does not reduce", hint) if reduced else None
    sizes = planner.spec.extents
    if unknown := [a for a in states if a not in sizes]:
        message = f"no output has the axis {unknown[0]} of the states, and its size is not fixed"
        return planner.error_in_chain(scans[0], message, f"give it a size: {unknown[0]}=16")
    if math.prod(sizes[a] for a in states) > MOST_STATES:
        message = f"more than {MOST_STATES} states of an element, along {', '.join(states)}"
        return planner.error_in_chain(scans[0], message, "give the reduction an op of its own")
    for node in reduced:
        if lost_axes(node) != states or node.op not in REDUCED or node.kind != "float":
            message = f"a kernel that scans states along {', '.join(states)} reduces no other axes, and only floats"
            return planner.error_in_chain(node, message, hint)
    for scan in scans:
        if not {*states} <= {*scan.dims}:
            return planner.error_in_chain(scan, f"another scan has states along {', '.join(states)}", hint)
    before = {id(n) for n in topological(n for n in planner.nodes if {*states} & {*n.dims})}
    if behind := [n for n in reduced if id(n) in before]:
        return planner.error_in_chain(behind[0], "the states are needed again after they are reduced", hint)
    if placed := [n for n in planner.nodes if _places(n) & {*states}]:
        return planner.error_in_chain(placed[0], "a kernel that reduces states has no positions along them", hint)
    return None


def _places(node: Node) -> set[object]:
    """The axes along which a value depends on positions, but for those it scans and reduces."""
    if node.op == "shift":
        return {axis for axis, _ in node.attr}  # type: ignore[attr-defined]
    return (
        {node.attr, *node.args[0].dims} if node.op in TAKES else {node.attr} if node.op in ("index", "size") else set()
    )
