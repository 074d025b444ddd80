"""The plan of element-wise ops.

An element-wise kernel walks the outputs' elements in memory order; a thread has one vector of consecutive elements. An
access says how an array is reached from an element's position:

  flat       it has every group in order: the vector is at the same position in it (times its interleaved parts)
  tile       its last axis is the innermost group: the vector is consecutive in it, at its own coordinates
  turned     its last axis is another group, the turned one: the vector is consecutive along that
  scalar     it lacks the innermost group: the whole vector uses one value
  gather     it has the innermost group, but not consecutively: element by element
  index      no array: the coordinate itself

If the innermost size is not a multiple of the vector width (a ragged call), accesses stay wide. A vector that is in one row is put
together from the aligned vectors that contain it. A vector that crosses into the next row is accessed element by element.

Where arrays with every group end with the turned one, a thread has several rows along it: a tile (`device/turned.py`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from codegen.errors import Diagnostic
from codegen.graph.nodes import Along, Leaf, Node, Statement, topological
from codegen.graph.ops import COSTLY, TAKES
from codegen.plan.access import Access, Extent, Group, Unreduced, View, tokens_of
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.nearby import Nearby, found_nearby
from codegen.plan.planner import MAX_AXES, Names, Planner
from codegen.shared import Launch
from codegen.spec.spec import Array, Spec

# Threads of a block: 128 to 1024 differ by 1 % in bandwidth where little is computed; where more is, fewer are faster
THREADS = 256
BUSY = 132 * 2048  # threads that keep a large GPU busy, whatever they wait for
# A call has about one block for each SM. Where it has fewer elements than that takes, vectors are a quarter as wide
BLOCKS, NARROW = 128, 4
FEW_READ, WIDEST = 8, 8  # bytes that a thread reads, if results are wider; elements of its vector then, at most
# Elements of a call, from which on it should have blocks for all SMs; a symbolic total, a divisor, is smaller
SMALL = 2**11

# Tiles, where arrays have their axes in different orders
TILE_THREADS, TILE, ACROSS = 256, 8, 16  # of a block; rows of a tile at most; threads along the last axis
FEW_BLOCKS, FEW_THREADS = 256, 64  # a call of fewer blocks has smaller tiles, in blocks of so many threads
TILE_REGISTERS = 96  # of a thread, for what it loads: tiles of more have fewer rows, of narrower vectors
# An axis that vectors do not fill is read one by one
STRETCH, SHORT_LANES = 64, 8  # threads of a block along it: at most, and a divisor of their number
LANES = 4  # threads along the other axis, at least: neighbouring ones, which fill whole sectors
BOTH_LANES = 2  # such neighbours where outputs lie along both axes; one where they lie along the other axis only
FEW = 8  # elements of an axis: arrays are not turned along one with fewer

# Rows
LONG = 1024  # elements of a row that is read in whole vectors, though they do not fill it
SEVERAL = 3  # a block has several rows if each of them reads so many others
ROWS_AT_ONCE, ROWS_OF_THREAD = 8, 4  # the rows of such a block, and of each of its threads
# If it computes an expensive value once for all rows that need it: differences of two log-sigmoids took an H200 144 us, 170 with four rows,
# and 316 with one
ROWS_NEARBY = 8
MANY_ROWS = 128  # so that few threads of blocks of several rows are past the last one
OF_POWER = 4  # other expensive operations that a power takes as long as
LINE = 128  # bytes of a cache line
# Tables that a block copies to shared memory: their lines, times how often an element reads them; bytes
LINES_READ, MOST_HELD = 4, 16 * 1024


@dataclass(frozen=True)
class Elementwise(Unreduced):
    """The plan of an element-wise kernel."""

    groups: tuple[Group, ...]
    collapsed: bool  # one group is enough: the runtime splits it in two, and no coordinate is needed
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    kind: str = "elementwise"
    kernels: int = 1
    extremes: tuple[()] = ()
    uniform: ClassVar[bool] = True  # whether the main loop has the same instructions for each element
    turned: int | None = None  # the group along which arrays in another order lie
    # Whether it begins with the last elements, which an earlier stage read last: a cache has these
    backwards: bool = False
    # "rows", or "outer" positions, whose elements have expensive values in common: a thread computes them once
    repeats: str = ""
    nearby: tuple[Nearby, ...] = ()  # expensive values that a row takes of several rows: a thread computes them once
    picks: int = 0  # how often an element reads tables at computed indices
    costly: bool = False  # whether an expensive value is computed of elements

    @property
    def sized(self) -> list[str]:
        """The axes whose sizes the chain uses."""
        loads = [a for a in self.loads if a.mode == "size"]
        return [a.counted or self.groups[a.group or 0].axes[0] for a in loads]

    @property
    def coordinates(self) -> tuple[int, ...]:
        """The groups with a coordinate that some access needs."""
        if self.turned is not None:
            return tuple(range(len(self.groups)))
        used: set[int] = set()
        for access in (*self.loads, *self.stores):
            if access.mode not in ("flat", "table"):
                used |= {t for t in access.tokens if isinstance(t, int)}
            if access.group is not None:
                used.add(access.group)
            if access.index_of is not None:  # the position of the index that a table is read at
                used |= {t for t in self.view(access.index_of[0]).tokens if isinstance(t, int)}
        # and all groups further in: a vector that crosses into the next row increments their coordinates
        return tuple(range(min(used), len(self.groups))) if used else ()

    @property
    def order(self) -> tuple[str, ...]:
        """The axes of the jnp form's operands, which are the outputs' axes."""
        output = self.stores[0].array
        assert output is not None
        return output.axes if self.collapsed else tuple(axis for group in self.groups for axis in group.axes)

    def view(self, name: str) -> View:
        return next(v for v in self.views if v.array.name == name)

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """The number of rows, and the size of the innermost group of axes."""
        total = extent(self.order)
        columns = total if self.collapsed or not self.groups else extent(self.groups[-1].axes)
        return total // max(columns, 1), columns

    def edges(self, call: PlannedCall) -> tuple[int, ...]:
        """The sizes of the innermost axis at which the kernel changes its method: a vector, a block."""
        vec = self.width(call)
        return vec, vec * call.schedule.get("threads", THREADS)

    def width(self, call: PlannedCall) -> int:
        """The number of elements of a vector, where the sizes of axes are multiples of it."""
        vec = call.vector(max((call.size(a) * n for a, n in self.full if a.name in call.dtypes), default=4))
        if self.turned is not None:
            vec, loaded = min(vec, TILE), self.loaded_bytes(call)
            while vec * vec * loaded > 4 * TILE_REGISTERS and not call.fixes("vector_bytes"):
                vec //= 2
        return vec

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        """The arrays with every group, and how many of their elements one access takes at a position. One access takes interleaved
        pairs and quadruples; other counts of parts need several."""
        found = {}
        for access in (*self.loads, *self.stores):
            if access.array is not None and access.mode in ("flat", "tile", "turned"):
                groups = {t for t in access.tokens if isinstance(t, int)}
                if len(groups) == len(self.groups):
                    parts = access.array.parts or 1
                    found[access.array] = parts if access.mode == "flat" and parts & (parts - 1) == 0 else 1
        return tuple(found.items())

    def loaded_bytes(self, call: PlannedCall) -> int:
        """The bytes that a kernel with tiles loads for each element, of arrays with every group."""
        full = {a for a, _ in self.full if a.name in call.dtypes}
        return sum(call.size(a.array) for a in self.loads if a.array in full)

    def launch(self, call: PlannedCall) -> Launch:
        """The launch of a call, the same on every architecture."""
        vec, extents = self.width(call), call.extents
        if self.turned is not None:
            written = [any(a.mode in modes for a in self.stores) for modes in (("flat", "tile"), ("turned",))]
            return _tile_launch(vec, call, written)
        threads = call.schedule.get("threads", THREADS)
        if not self.groups:  # a single number
            return Launch(1, False, threads)
        whole = self.collapsed or not self.coordinates
        unit = extents.total if whole else extents.inner
        if not call.fixes("vector_bytes"):
            vec = _narrower(vec, extents.total or 0, BLOCKS * threads * vec)
            vec = vec if whole or unit is None else self._filling(vec, unit)
            vec = self._of_narrow(vec, threads, call)
        vec = call.whole_pairs(vec, unit)
        ragged = vec > 1 and (unit is None or unit % vec != 0)
        how = Launch(vec, ragged, threads, backwards=self.backwards)
        if self.repeats == "outer":
            how = replace(how, down=1 if ragged else _rows_of_thread(extents, extents.outer or 0, 1, vec))
        elif self.reads_rows and not (self.repeats and (extents.total or 0) < MANY_ROWS * (extents.inner or 1)):
            how = _with_rows(how, extents, bool(self.nearby))
        return replace(how, tables=self.held_tables(how, call))

    def _filling(self, vec: int, inner: int) -> int:
        """The vector width, or half of it where only that fills the rows. Then no vector is put together from two. That
        takes many instructions if a row has few vectors, if several arrays lack an axis, or if one lacks the innermost
        axis: an H200 took 127 us for rows of 100 that were scaled by rows and columns, and 81 so. For a bias of rows of
        1028 it took 66, and 77 so: fewer bytes are in flight."""
        fitting = math.gcd(vec, inner)
        others = [a.mode for a in self.loads if a.mode in ("tile", "scalar") and a.tokens]
        whole = inner >= LONG and others in ([], ["tile"])
        return vec if whole or 2 * fitting < vec else fitting

    def _of_narrow(self, vec: int, threads: int, call: PlannedCall) -> int:
        """The vector width, or twice that where a thread would read few bytes because results are much wider than
        inputs, and the call has enough elements. An H200 took 151 us for float32 arctangents of scaled channels in
        bfloat16, and 106 so. Of cheap values, 8 bytes are enough: it took 103 us for scaled columns, and 101 with half the vectors."""
        read, inner, total = vec * self.loaded_bytes(call), call.extents.inner or 1, call.extents.total
        many = total is not None and total >= BLOCKS * threads * vec and vec == self.width(replace(call, schedule={}))
        fits = 2 * vec <= WIDEST and inner % (2 * vec) == 0
        few = read <= FEW_READ if self.costly else read < FEW_READ
        return 2 * vec if read > 0 and few and fits and many else vec

    @property
    def tables(self) -> tuple[Array, ...]:
        """The tables that are read at computed indices."""
        return tuple(dict.fromkeys(a.array for a in self.loads if a.mode == "table" and a.array is not None))

    def held_tables(self, how: Launch, call: PlannedCall) -> tuple[int, ...]:
        """The sizes of the tables, if a block should copy them to its shared memory: a cache reads a line at a time, shared memory an
        element for each lane. The tables have several lines, or two that are read twice: an H100 took 115 us and not 127 to interpolate
        between 33 elements. They have half the elements of the block's outputs at most: with as many, an H200 took 94 us for codes
        of 256 vectors, and 78 without the copies."""
        sizes = tuple(n for n in call.extents.tables if n is not None)
        if not sizes or len(sizes) < len(self.tables) or 2 * sum(sizes) > how.vec * how.threads:
            return ()
        bytes_of = sum(call.size(a) * n for a, n in zip(self.tables, sizes, strict=True))
        lines, often = -(-bytes_of // LINE), self.picks / len(self.tables)
        return sizes if lines > 1 and lines * often >= LINES_READ and bytes_of <= MOST_HELD else ()

    @property
    def reads_rows(self) -> bool:
        """Whether a row of the innermost group reads elements of several rows before it or after it. For a convolution of four taps,
        vectors of neighbouring rows in a block took an H200 134 us, and vectors of one row 143; with one neighbour 77 and 71."""
        moved = {axis for a in self.loads for axis, _ in a.back}
        several = sum(bool(a.back) for a in self.loads) >= SEVERAL
        written = all(a.mode == "flat" and not a.into for a in self.stores)
        before = len(self.groups) > 1 and self.groups[-2].axes[-1:] == tuple(moved)
        return written and (((several or bool(self.nearby)) and before) or (bool(self.repeats) and not moved))


def _narrower(vec: int, total: int, enough: int) -> int:
    """The vector width, or a narrow one in a small call: each thread then has less to compute, and more SMs compute. It is the same for
    all small calls, so that another number of rows needs one other kernel at most."""
    return max(1, vec // NARROW) if SMALL <= total < enough else vec


def _with_rows(how: Launch, extents: Extents, nearby: bool) -> Launch:
    """A launch whose blocks have vectors of neighbouring rows, so that a row finds elements in a cache that another one
    has read. A thread has several rows, where there are enough for all SMs. `nearby`: it computes values once for all of them, and a
    block may have more of short rows."""
    inner, total, rows = extents.inner or 0, extents.total or 0, ROWS_AT_ONCE
    block = how.vec * how.threads
    if nearby and inner and block > rows * inner and block % inner == 0:
        rows = block // inner
    fits = how.threads >= rows and inner % (block // rows) == 0
    if not inner or not fits or how.ragged:
        return how
    most = ROWS_NEARBY if nearby else ROWS_OF_THREAD
    return replace(how, rows=rows, down=_rows_of_thread(extents, total, inner, how.vec, most))


def _rows_of_thread(extents: Extents, size: int, each: int, vec: int, most: int = ROWS_OF_THREAD) -> int:
    """The rows of a thread, of `each` of `size` elements: no more than leave enough threads for all SMs."""
    down = 1
    while down < most and size % (2 * down * each) == 0 and (extents.total or 0) >= BUSY * 2 * down * vec:
        down *= 2
    return down


def _tile_launch(vec: int, call: PlannedCall, written: Sequence[bool]) -> Launch:
    """The launch of a kernel with tiles. A tile is not longer than the axis. It is half as long if only that divides
    the axis, and small if there are few tiles. The threads of a block lie along the axes as long as these are.
    `written` says whether outputs lie along the innermost axis and along the turned one."""
    inner, turned, total = call.extents.inner, call.extents.turned, call.extents.total or 0
    threads = TILE_THREADS
    if SMALL <= total < FEW_BLOCKS * threads * vec * vec:
        threads = FEW_THREADS
        while vec > 2 and total < FEW_BLOCKS * threads * vec * vec and not call.fixes("vector_bytes"):
            vec //= 2
    threads = call.schedule.get("threads", threads)
    if inner is None or turned is None:
        return Launch(vec, vec > 1, threads, min(ACROSS, threads // 2), vec)
    # A short axis is read whole, where it is only read
    few = [0 < n < vec and not own for n, own in zip((inner, turned), written, strict=True)]
    sizes = [n if whole else min(vec, _power_of_two(n)) for n, whole in zip((inner, turned), few, strict=True)]
    fitting = [math.gcd(n, size) for n, size in zip((inner, turned), sizes, strict=True)]
    short = [2 * n < size for n, size in zip(fitting, sizes, strict=True)]
    if short[0] != short[1]:
        place = short.index(True)
        if (inner, turned)[1 - place] % (2 * fitting[1 - place]) == 0:
            fitting[1 - place] *= 2  # two vectors: what is computed for a thread is computed for more elements
        found = _threads_beside(inner // fitting[0], turned // fitting[1], place, threads)
        if found is not None:
            lanes = BOTH_LANES if all(written) else 1 if written[place] else LANES
            return Launch(fitting[0], False, math.prod(found), found[0], fitting[1], lanes=lanes)
    ragged = any(short)
    own, down = sizes if ragged else fitting
    along, lines = (_power_of_two(-(-n // size)) for n, size in ((inner, own), (turned, down)))
    across = min(ACROSS, threads // 2, along)
    return Launch(own, ragged, threads, min(along, max(across, threads // lines, 1), threads), down)


def _threads_beside(inner: int, turned: int, place: int, threads: int) -> tuple[int, int] | None:
    """The threads of a block along the innermost axis and along the turned one, for so many vectors. One of the two
    axes (`place`) has few elements for each thread. They are read one by one, by threads that together read a stretch
    of the axis. A few threads along the other axis fill whole sectors. None where an axis has too few vectors for
    that."""
    short, other = (inner, turned)[place], (inner, turned)[1 - place]
    if short < SHORT_LANES or other < LANES or threads < STRETCH * LANES:
        return None
    own = min(STRETCH, -(-short // SHORT_LANES) * SHORT_LANES)
    others = max(LANES, 1 << (min(other, threads // own).bit_length() - 1))
    return (own, others) if place == 0 else (others, own)


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Elementwise:
    """The plan for a checked spec. Raises `SpecError` if no kernel can compute it."""
    planner = PlannedElements(spec, statements)
    planner.check()
    return planner.elementwise()


def tile_plan(spec: Spec, statements: tuple[Statement, ...], borders: Container[str]) -> Elementwise:
    """The plan of a chain that is computed tile by tile: each of `borders` begins a group, and nothing is collapsed."""
    return PlannedElements(spec, statements).elementwise(borders)


class PlannedElements(Planner):
    """How a kernel that has every element of its outputs reaches its arrays."""

    def refusal(self) -> Diagnostic | None:
        first = self.spec.outputs[0]
        for output in self.spec.outputs[1:]:
            if {*self.written_to[output.name]} != {*self.written_to[first.name]}:
                message = f"{output.name!r} is {output} but {first.name!r} is {first}"
                hint = "the outputs of an element-wise op share their axes: make it an op of its own"
                return self.error(message, hint, output)
        read = {n.attr.name for n in self.nodes if isinstance(n.attr, Leaf)}
        for name, at in self.puts.items():
            if at.table in read:
                message = f"'put' writes into {at.table!r}, which the kernel of a gradient reads"
                return self.error(message, "", self.spec.array(name))
        known = {a for array in self.spec.inputs if array.default is None for a in array.axes} | set(self.spec.extents)
        for output in self.spec.outputs:
            for axis in self.written_to[output.name]:
                if axis not in known:
                    message = f"no input without a default has the axis {axis} of {output.name!r}"
                    hint = "its size would be unknown: give an input without a default that axis"
                    return self.error(message, hint, output)
        if len(self.axes) > MAX_AXES:
            message = f"{len(self.axes)} axes; a kernel has at most {MAX_AXES}"
            return self.error(message, "join axes that every array has together", first)
        return None

    def elementwise(self, borders: Container[str] | None = None) -> Elementwise:
        apart = {n.attr for n in self.nodes if n.op in ("index", "size", *TAKES)} | self.shifted_axes
        apart |= {at.axis for at in self.puts.values()}
        scanned = {n.attr.axis for n in self.nodes if isinstance(n.attr, Along)}
        apart |= scanned
        groups = self.groups(apart, borders or ())
        tokens = {a.name: tokens_of(a, groups) for a in self.spec.arrays}
        # `take` computes its table's own coordinates, `index` a group's: neither can be split away
        simple = borders is None and not apart and len(groups) == 1
        full = all(_covers(tokens[a.name], len(groups)) for a in self.spec.arrays if a.axes)
        trailing = all(_is_flat(tokens[a.name], len(groups)) for a in self.spec.arrays if a.axes)
        collapsed = simple and full and trailing
        if collapsed:
            groups = (Group("rows", ()), Group("cols", ()))
            tokens = {n: tuple(x for t in ts for x in ((0, 1) if t == 0 else (t,))) for n, ts in tokens.items()}
        views = tuple(View(a, tokens[a.name]) for a in self.spec.arrays)
        names = Names(self.spec, self.statements)

        turned = self.turned(tokens, groups) if borders is None and not self.puts and not scanned else None

        def mode(own: tuple[int | str, ...]) -> str:
            found = _mode(own, len(groups))
            return "turned" if found == "gather" and turned is not None and own[-1] == turned else found

        loads = tuple(self.load(node, tokens, groups, names, mode) for node in self.leaves())
        if not loads and self.puts:  # constants are written: vectors of as many elements as positions
            loads = (Access(names.index(groups[-1].axes[0]), None, None, "index", (), len(groups) - 1),)
        outputs = {o.name for o in self.spec.outputs}
        stores = tuple(self.store(s, tokens, groups, names, mode) for s in self.statements if s.name in outputs)
        plain = not (collapsed or turned is not None or borders or scanned or self.puts) and len(groups) > 1
        repeats = self.repeats(groups) if plain else ""
        nearby = self.nearby(groups, tokens, names) if plain else ()
        picks = sum(n.op == "pick" for n in self.nodes)
        costly = any(n.op in COSTLY and n.dims and not (n.op == "div" and not n.args[1].dims) for n in self.nodes)
        return Elementwise(
            groups, collapsed, views, loads, stores,
            turned=turned, repeats=repeats, nearby=nearby, picks=picks, costly=costly,
        )  # fmt: skip

    def nearby(
        self, groups: tuple[Group, ...], tokens: dict[str, tuple[int | str, ...]], names: Names
    ) -> tuple[Nearby, ...]:
        """The expensive values that an element takes of several neighbouring rows."""
        axes = self.shifted_axes
        if tuple(axes) != groups[-2].axes:
            return ()
        (axis,) = axes
        found: list[Nearby] = []
        written = {o.name for o in self.spec.outputs}
        for alike in found_nearby([s.value for s in self.statements if s.name in written], axis):
            value = min(alike, key=lambda use: abs(use[1]))[0]
            leaves = [n for n in topological([value], lambda n: n.op == "shift") if n.op in ("shift", "input")]
            operands = tuple((n, self.unmoved(n, groups, tokens, names)) for n in leaves)
            name = next((s.name for s in self.statements if any(s.value is n for n, _ in alike)), "value")
            name = names.free(f"near_{name}", "near", str(len(found)))
            uses = ((n, back, names.shifted(name, ((axis, back),)) if back else name) for n, back in alike)
            found.append(Nearby(name, value, tuple(uses), operands))
        return tuple(found)

    def unmoved(
        self, node: Node, groups: tuple[Group, ...], tokens: dict[str, tuple[int | str, ...]], names: Names
    ) -> Access:
        """How the array of a leaf is read at an element's own place."""
        own = node.args[0] if node.op == "shift" else node
        return self.load(own, tokens, groups, names, lambda own: _mode(own, len(groups)))

    def repeats(self, groups: tuple[Group, ...]) -> str:
        """The positions that share values which take as many operations as a power (`Elementwise.repeats`)."""

        def shared(apart: Sequence[Group]) -> int:
            axes = {axis for group in apart for axis in group.axes}
            own = [n.op for n in self.nodes if n.op in COSTLY and n.dims and not axes & {*n.dims}]
            return sum(OF_POWER if op == "pow" else 1 for op in own)

        rows, outer = shared(groups[:-1]), shared(groups[:1])
        return "" if outer < OF_POWER else "outer" if outer > rows else "rows"

    def turned(self, tokens: Mapping[str, tuple[int | str, ...]], groups: tuple[Group, ...]) -> int | None:
        """The last group of an array with every group that does not end with the innermost one; outputs decide first. None where one
        of the two has few elements, as those of a pixel shuffle: tiles would be smaller than vectors."""
        for array in (*self.spec.outputs, *self.spec.inputs):
            own = tokens[array.name]
            if _covers(own, len(groups)) and own and isinstance(own[-1], int) and own[-1] != len(groups) - 1:
                return None if self.is_few(groups[own[-1]]) or self.is_few(groups[-1]) else own[-1]
        return None

    def is_few(self, group: Group) -> bool:
        """Whether a group of axes has a fixed size smaller than a vector."""
        return math.prod(self.spec.extents.get(axis, FEW) for axis in group.axes) < FEW


def _covers(tokens: tuple[int | str, ...], groups: int) -> bool:
    return {t for t in tokens if isinstance(t, int)} == set(range(groups))


def _is_flat(tokens: tuple[int | str, ...], groups: int) -> bool:
    return tokens in (tuple(range(groups)), (*range(groups), "parts"))


def _mode(tokens: tuple[int | str, ...], groups: int) -> str:
    if groups == 0 or (groups - 1) not in tokens:
        return "scalar"
    if _is_flat(tokens, groups):
        return "flat"
    return "tile" if tokens[-1] == groups - 1 else "gather"
