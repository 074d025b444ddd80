"""The plan of a kernel that selects the largest elements of each row, in order, and of the kernel of its derivative.

A warp or a block has one row at a time, and reads it twice. First each thread finds the largest element of each of its groups. The
k-th largest of these is a bound that at least k elements reach. It is found bit by bit: threads count the numbers that are not below
another. The elements that reach the bound are then written to shared memory, and a warp sorts them.

Where too many elements reach it, the largest ones are found piece by piece. Threads hold a piece of the row, and the elements that were
selected from earlier pieces. The k-th largest element is found bit by bit. Where several elements equal it, the position of the last
one that is selected is found in the same way.

Where few elements are selected from a short row, the threads of a row, perhaps a few of a warp, hold all of it. Each sorts its own
elements. In turn the largest of the threads' first elements is taken.

The derivative's kernel also has one row at a time: each thread first writes zeros, and then the gradients at the
positions of selected elements. Of few gradients, registers hold all, and each vector is written once.

A kernel that sorts selects all elements, the smallest first. A warp or a block holds all of a row in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen.errors import Diagnostic, UserError
from codegen.graph.nodes import Leaf, Node, Selected, Statement, topological
from codegen.graph.ops import NUCLEUS, PLACED, UNSORT
from codegen.plan.access import Access, Extent, Group, Unreduced, View, tokens_of
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.planner import Names, Planner
from codegen.shared import SPARE_BITS, WARP, SelectLaunch
from codegen.spec.spec import Array, Spec

MOST = 128  # elements that are selected
THREAD_ELEMENTS = 32  # that a thread holds of a piece
LONG_THREAD = 16  # elements of a row for each thread, from which on a block has the row
BOUND_THREAD, MOST_BOUND = 128, 512  # elements of a long row for each thread, whose threads are at most so many
WARP_ROW = 1024  # elements up to which a warp has it
MOST_THREADS = 1024
BLOCK = 128  # threads of a block whose warps have a row each
BUSY = 132 * 512  # threads that keep a large GPU's memory busy
PLACED_AT_ONCE = 8  # gradients that registers hold
IN_TURN = 16  # elements that are taken in turn, at most, of a row that a warp holds
# Threads of a row that is taken in turn, of which the others are in the same instructions: few, with many elements each, compare less. A
# row of 128 numbers takes 592 instructions of a warp to select 8 with 32 threads, 454 with 8, and 344 with 4; 280, 186 and 201 to
# select one
LEAST_LANES, FEW = 4, 2
SORTED = 2**13  # elements of a row that is sorted: a block's registers and shared memory hold them
SORTED_EACH = 8  # of them that a thread holds
WIDE = {"float64", "int64", "uint32"}  # types that are computed in 64 bits
NARROW = "a selection orders 32-bit values"


@dataclass(frozen=True)
class Selection(Unreduced):
    """The plan of a kernel that selects. Its groups are the rows, the elements that are selected from a row, and the
    elements of a row."""

    groups: tuple[Group, ...]
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    selected: Selected
    values: tuple[str, ...]  # the outputs that hold elements; others hold positions
    order: tuple[str, ...]
    kind: str = "selection"
    collapsed: bool = False
    kernels: int = 1
    extremes: tuple[()] = ()

    @property
    def counted(self) -> tuple[tuple[int, ...], ...]:
        return (len(self.groups) - 1,), (0,)

    @property
    def source(self) -> Array:
        array = self.loads[0].array
        assert array is not None
        return array

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        return ((self.source, 1),)

    def view(self, name: str) -> View:
        return next(v for v in self.views if v.array.name == name)

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """The number of rows, and of their elements."""
        return extent(self.groups[0].axes), extent(self.groups[-1].axes)

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """The sizes of a row at which the kernel changes its method: a vector, a warp's row."""
        return self.launch(replace(call, extents=Extents())).vec, WARP_ROW

    def launch(self, call: PlannedCall) -> SelectLaunch:
        """The launch of a call, the same on every architecture."""
        found, size = self.by_pieces(call), call.extents.columns
        if size is None or size > WARP * THREAD_ELEMENTS or self.selected.count > IN_TURN:
            return self.by_bound(found, call.extents, call.dtypes[self.source.name])
        per_row = lanes_of_row(size, found.vec, found.count, call.extents.rows)
        vectors = _power_of_two(-(-size // (per_row * found.vec)))
        whole = size == per_row * found.vec * vectors
        return replace(found, threads=BLOCK, per_row=per_row, vectors=vectors, in_turn=True, whole=whole)

    def by_bound(self, found: SelectLaunch, extents: Extents, dtype: str) -> SelectLaunch:
        """The launch of a kernel that sorts the elements which reach a bound. A warp has a row. A block has one where
        rows are long, or too few to keep a GPU busy."""
        per_row, size, rows = WARP, extents.inner or WARP_ROW, extents.rows or BUSY
        while (per_row < MOST_THREADS and rows * per_row < BUSY and per_row * THREAD_ELEMENTS < size) or (
            per_row < MOST_BOUND and per_row * BOUND_THREAD < size
        ):
            per_row *= 2 if per_row > WARP else BLOCK // WARP
        vectors = max(1, min(THREAD_ELEMENTS // found.vec, -(-size // (per_row * found.vec))))
        places = (extents.columns - 1).bit_length() if extents.columns else 32
        bits = places if places <= SPARE_BITS.get(dtype, 0) else 32
        # Blocks of a warp: an SM has 32, whose rows are in its cache when they are read again. An H100 took 91.8 us for 16384 rows of
        # 4096, and 103.4 with four warps a block, of which more are resident
        return replace(found, threads=per_row, per_row=per_row, vectors=vectors, bits=bits)

    def by_pieces(self, call: PlannedCall) -> SelectLaunch:
        """The launch of a kernel whose rows may be longer than its threads hold."""
        vec, columns = call.vector(call.size(self.source)), call.extents.inner
        per_row, size = WARP, 4 * WARP_ROW if columns is None else columns
        while size > WARP_ROW and per_row < MOST_THREADS and per_row * LONG_THREAD < size:
            per_row *= 2
        vectors = max(1, min(THREAD_ELEMENTS // vec, -(-size // (per_row * vec))))
        ragged = vec > 1 and (columns is None or columns % vec != 0)
        return SelectLaunch(vec, ragged, max(per_row, BLOCK), per_row, vectors, self.selected.count)


def threads_of_row(columns: int, vec: int) -> int:
    """The threads of a warp that have a vector each of a short row, or the whole warp."""
    return min(WARP, _power_of_two(-(-columns // vec)))


def lanes_of_row(columns: int, vec: int, count: int, rows: int | None) -> int:
    """The threads of a warp that share a row from which so many elements are taken in turn."""
    per_row, most = LEAST_LANES, THREAD_ELEMENTS // (2 if count <= FEW else 1)
    while per_row * most < columns or (per_row * vec < columns and (rows or BUSY) * per_row < BUSY):
        per_row *= 2
    return min(per_row, threads_of_row(columns, vec))


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()


@dataclass(frozen=True)
class Sort(Selection):
    """The plan of a kernel that sorts. The groups are the rows and their elements."""

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """The sizes of a row at which the kernel changes its method: one element for each thread, a warp's row."""
        del call
        return WARP, WARP * SORTED_EACH

    def launch(self, call: PlannedCall) -> SelectLaunch:
        """The launch of a call. Raises `UserError` for rows that are too long for a block,
        and for rows of unknown size."""
        size, axis = call.extents.columns, self.selected.axes[0]
        if size is None or size > SORTED:
            words = f"{axis} is {size}" if size else f"the size of {axis} is not known"
            raise UserError(f"{words}, and a kernel sorts rows of up to {SORTED} elements")
        count = max(WARP, 1 << (size - 1).bit_length())
        per_row = max(WARP, count // SORTED_EACH)
        vec = min(call.vector(call.size(self.source)), count // per_row)
        threads = per_row if per_row > WARP else BLOCK
        return SelectLaunch(vec, size % vec != 0, threads, per_row, count // per_row // vec, count)


@dataclass(frozen=True)
class Threshold(Selection):
    """The plan of a kernel that finds the least of a row's largest elements which sum to a mass. The groups are the rows and their
    elements."""

    mass: str | float = 1.0  # a number, or the name of a parameter, or of an input with one for each row

    def launch(self, call: PlannedCall) -> SelectLaunch:
        """The launch of a call. Registers hold a row that is not longer than a piece."""
        found, size = self.by_pieces(call), call.extents.columns
        return replace(found, whole=size is not None and size <= found.per_row * found.vec * found.vectors)


@dataclass(frozen=True)
class Placement(Selection):
    """The plan of a kernel that places values at positions of otherwise zero rows."""

    places: str = ""  # the input that holds the positions

    @property
    def result(self) -> Array:
        array = self.stores[0].array
        assert array is not None
        return array

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        return ((self.result, 1),)

    def launch(self, call: PlannedCall) -> SelectLaunch:
        """The launch of a call. Rows that are not a multiple of the vector width are written
        element by element. `in_turn`: registers hold all that is placed."""
        vec, columns = call.vector(call.size(self.result)), call.extents.inner
        if columns is None or columns % vec:
            vec = 1
        per_row = WARP if columns is None or columns != call.extents.columns else threads_of_row(columns, vec)
        while columns is not None and per_row < MOST_THREADS and per_row * LONG_THREAD < columns:
            per_row *= 2
        few = self.holds_few(call.size(self.result))
        return SelectLaunch(vec, False, max(per_row, BLOCK), per_row, 1, self.selected.count, in_turn=few)

    def holds_few(self, size: int) -> bool:
        """Whether registers hold all values that are placed, in elements of so many bytes."""
        return not self.selected.sorts and self.selected.count <= PLACED_AT_ONCE and size > 1


@dataclass(frozen=True)
class Permutation(Placement):
    """The plan of a kernel that writes the values of rows to positions that are all different: the derivative of a
    sort, and the derivative of that."""


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Selection:
    """The plan for a checked spec with a selection, or with its derivative. Raises `SpecError` if no kernel can compute it."""
    ops = {n.op for n in topological(s.value for s in statements)}
    kind = _Placements if ops & {PLACED, UNSORT} else _Thresholds if NUCLEUS in ops else _Selections
    planner = kind(spec, statements)
    planner.check()
    return planner.plan()


def groups_of(array: Array, how: Selected) -> tuple[Group, ...]:
    """The axes of an array in three groups: the rows, the selected elements, the elements of a row. The array's last
    axes are those of one of the last two."""
    rows = Group("rows", tuple(a for a in array.axes if a not in (*how.axes, how.into)))
    elements = Group(how.axes[0], how.axes)
    return (rows, elements) if how.sorts else (rows, Group(how.into, (how.into,)), elements)


class _Selections(Planner):
    """The planner of kernels that select or sort."""

    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        super().__init__(spec, statements)
        self.first = next(n for n in self.nodes if isinstance(n.attr, Selected))
        assert isinstance(self.first.attr, Selected)
        self.how = self.first.attr

    def refusal(self) -> Diagnostic | None:
        """The first reason why no kernel can compute the op."""
        node, how, spec = self.first, self.how, self.spec
        source = node.args[0]
        if how.count > MOST:
            message = f"{how.into} is {how.count}; a kernel selects at most {MOST} elements"
            return self.error_in_chain(node, message, "select fewer, or in several ops")
        alone = all(self.is_alike(s.value) and s.at is None for s in self.statements)
        if not alone or not isinstance(source.attr, Leaf) or source.op != "input":
            message = "a kernel that selects computes nothing else"
            return self.error_in_chain(node, message, "make it an op of its own")
        array = spec.array(source.attr.name)
        lead, last = array.axes[: -len(how.axes)], array.axes[-len(how.axes) :]
        if array.parts is not None or last != how.axes or array.default is not None:
            message = f"a kernel selects along the last axes of an array without parts, and {array.name!r} is {array}"
            return self.error_in_chain(node, message, f"give it the axes {', '.join(how.axes)} last")
        for output in spec.outputs:
            if output.parts is not None or output.axes != (*lead, how.into):
                message = f"a kernel that selects writes an array of the axes {', '.join((*lead, how.into))}"
                return self.error(message, f"{output.name!r} is {output}", output)
        if WIDE & {d for a in (array, *spec.outputs) for d in spec.dtypes(a)}:
            return self.error(NARROW, f"{array.name!r} is {array}: leave out types of 64 bits", array)
        return None

    def is_alike(self, value: Node) -> bool:
        """Whether it is selected of the same elements."""
        return isinstance(value.attr, Selected) and value.attr == self.how and value.args[0] is self.first.args[0]

    def plan(self) -> Selection:
        spec, how = self.spec, self.how
        source = self.first.args[0].attr
        assert isinstance(source, Leaf)
        array = spec.array(source.name)
        groups = groups_of(array, how)
        tokens = {a.name: tokens_of(a, groups) for a in spec.arrays}
        stored = [s for s in self.statements if s.name in {a.name for a in spec.outputs}]
        return (Sort if how.sorts else Selection)(
            groups,
            tuple(View(a, tokens[a.name]) for a in spec.arrays),
            (Access(array.name, array, None, "flat", tokens[array.name]),),
            tuple(Access(s.name, spec.array(s.name), None, "flat", tokens[s.name]) for s in stored),
            how,
            tuple(s.name for s in stored if s.value.op in ("top_k", "sort")),
            tuple(a for a in spec.axes if a in {*array.axes, how.into}),
        )


class _Thresholds(Planner):
    """The planner of kernels that find a threshold of each row."""

    def refusal(self) -> Diagnostic | None:
        """Why no kernel can compute the op, which has a threshold for each row."""
        node = next(n for n in self.nodes if n.op == NUCLEUS)
        source, mass = node.args
        if any(s.value is not node or s.at for s in self.statements) or len(self.spec.outputs) > 1:
            message = "a kernel that finds a threshold computes nothing else"
            return self.error_in_chain(node, message, "make it an op of its own")
        leaf = source.attr
        array = self.spec.array(leaf.name) if isinstance(leaf, Leaf) and source.op == "input" else None
        rows = self.spec.outputs[0].axes
        if (
            array is None
            or array.parts is not None
            or array.default is not None
            or array.axes != (*rows, self.axis(node))
        ):
            message = f"a kernel finds the threshold of an array without parts along its last axis, {self.axis(node)}"
            return self.error_in_chain(node, message, f"give it the axis {self.axis(node)} last")
        given = [array, self.spec.outputs[0]]
        given += [self.spec.array(mass.attr.name)] if isinstance(mass.attr, Leaf) else []
        if WIDE & {d for a in given for d in self.spec.dtypes(a)}:
            return self.error(NARROW, f"{array.name!r} is {array}: leave out types of 64 bits", array)
        return None

    def axis(self, node: Node) -> str:
        assert isinstance(node.attr, Selected)
        return node.attr.axes[0]

    def plan(self) -> Threshold:
        spec, node = self.spec, next(n for n in self.nodes if n.op == NUCLEUS)
        assert isinstance(node.attr, Selected)
        source, mass = node.args
        arrays = [spec.array(a.attr.name) for a in (source, mass) if isinstance(a.attr, Leaf)]
        axis, output = node.attr.axes[0], spec.outputs[0]
        groups = (Group("rows", arrays[0].axes[:-1]), Group(axis, (axis,)))
        tokens = {a.name: tokens_of(a, groups) for a in spec.arrays}
        return Threshold(
            groups,
            tuple(View(a, tokens[a.name]) for a in spec.arrays),
            tuple(Access(a.name, a, None, "flat", tokens[a.name]) for a in arrays),
            (Access(output.name, output, None, "flat", tokens[output.name]),),
            node.attr,
            (output.name,),
            arrays[0].axes,
            mass=arrays[1].name if len(arrays) > 1 else float(mass.attr) if mass.is_const else str(mass.attr),  # type: ignore[arg-type]
        )


class _Placements(Planner):
    """The planner of the derivatives of selections and sorts."""

    def refusal(self) -> Diagnostic | None:
        """Why no kernel can compute the op, which places values."""
        node = next(n for n in self.nodes if n.op in (PLACED, UNSORT))
        value, places = node.args[:2]
        if len(self.statements) > 1 or self.placed() is not node or self.statements[0].at:
            return self.error_in_chain(
                node, "a kernel that places values computes nothing else", "make it an op of its own"
            )
        for arg in (value, places):
            leaf = arg.attr
            array = self.spec.array(leaf.name) if isinstance(leaf, Leaf) and arg.op == "input" else None
            if array is None or array.default is not None or array.axes != self.read_axes(node):
                return self.error_in_chain(node, "a kernel places values of arrays alone", "make it an op of its own")
        output = self.spec.outputs[0]
        along = self.how(node).axes
        written = (*self.read_axes(node)[:-1], *along)
        taken = {a.attr.name for a in (value, places) if isinstance(a.attr, Leaf)}  # others give sizes of axes
        for array in (a for a in self.spec.arrays if a in self.spec.outputs or a.name in taken):
            if array.parts is not None or array.axes not in (written, self.read_axes(node)):
                message = "a kernel places values along the last axes of arrays without parts"
                return self.error(message, f"{array.name!r} is {array}", array)
        read = self.spec.array(value.attr.name) if isinstance(value.attr, Leaf) else output
        if output.axes != written or WIDE & {d for a in (read, output) for d in self.spec.dtypes(a)}:
            return self.error(
                "a kernel places 32-bit values along the last axes", f"{output.name!r} is {output}", output
            )
        return None

    def placed(self) -> Node:
        """The value that the kernel writes, before it is rounded to the output's type."""
        value = self.statements[0].value
        return value.args[0] if value.op == "cast" and value.attr == self.spec.outputs[0].dtype else value

    def how(self, node: Node) -> Selected:
        assert isinstance(node.attr, Selected)
        return node.attr

    def read_axes(self, node: Node) -> tuple[str, ...]:
        """The axes of what is placed: those of the result, with another one last."""
        how = self.how(node)
        return (*(a for a in self.spec.outputs[0].axes if a not in how.axes), how.into)

    def plan(self) -> Placement:
        spec, node = self.spec, self.placed()
        how, names = self.how(node), Names(spec, self.statements)
        value, places = (spec.array(a.attr.name) for a in node.args[:2] if isinstance(a.attr, Leaf))
        groups = groups_of(value, how)
        tokens = {a.name: tokens_of(a, groups) for a in spec.arrays}
        output = spec.outputs[0]
        loads = [Access(a.name, a, None, "flat", tokens[a.name]) for a in (value, places)]
        if node.op == PLACED:
            loads += [Access(names.index(a), None, None, "index", counted=a) for a in how.axes]
            loads += [Access(names.size(a), None, None, "size", counted=a) for a in how.axes[1:]]
        return (Permutation if how.sorts else Placement)(
            groups,
            tuple(View(a, tokens[a.name]) for a in spec.arrays),
            tuple(loads),
            (Access(output.name, output, None, "flat", tokens[output.name]),),
            how,
            (),
            tuple(a for a in spec.axes if a in {*value.axes, *how.axes}),
            places=places.name,
        )
