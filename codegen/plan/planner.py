"""The plan: every decision about a kernel, as one frozen record that templates and the runtime read.

An element-wise kernel walks the outputs' elements in memory order, one vector of consecutive elements a thread. Axes
that every array treats alike are collapsed into one group, so most ops have two groups (rows and columns) or need none.
How an array is reached from an element's position is its access:

  flat       it has every group in order: the vector lies at the same place in it (times its interleaved parts)
  tile       its last axis is the innermost group: the vector is consecutive in it, at its own coordinates
  scalar     it lacks the innermost group: one value serves the whole vector
  gather     it has the innermost group but not consecutively: element by element
  index      no array at all: the coordinate itself

Where the innermost extent is no multiple of the vector width (a ragged call), accesses stay wide: a vector that lies in
one row is put together from the aligned vectors that hold it. One that runs into the next row goes element by element.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from codegen.errors import Diagnostic, Mistake, SpecError
from codegen.graph.nodes import DTYPES, ROWS, Leaf, Node, Statement, topological
from codegen.language.chain import line_with
from codegen.language.statements import Placed
from codegen.spec.spec import Array, Spec
from codegen.targets import family

INT_MAX = 2**31 - 1
THREADS = 512  # of a block: 128 to 1024 differ by 1% in bandwidth, and 512 leaves a thread 128 registers
MAX_AXES = 7


Tokens = tuple[int | str, ...]  # one a mode of an array's view: a group's place, "parts", or a table's own axis
ModeOf = Callable[[Tokens], str]  # how an array is reached
Extent = Callable[[tuple[str, ...]], int]  # some axes to the product of their extents


@dataclass(frozen=True)
class Extents:
    """What a call's shapes come to; None where it is unknown when compiling."""

    inner: int | None  # of the innermost axes that stay together, or a number that divides it
    total: int | None  # elements, or a number that divides them
    columns: int | None = None  # of a row, where rows are reduced
    rows: int | None = None  # that are folded into one
    apart: int | None = 1  # how many places have rows of their own to fold


@dataclass(frozen=True)
class Group:
    """Adjacent axes that every array has together: one coordinate in the kernel."""

    name: str  # the extent's name in the kernel
    axes: tuple[str, ...]

    @property
    def coordinate(self) -> str:
        return "row" if self.name == "rows" else f"i{self.name}"


@dataclass(frozen=True)
class View:
    """An array as the kernel sees it: one mode a group, and one for its parts. A token is a group's place, "parts", or a table's own axis."""

    array: Array
    tokens: tuple[int | str, ...]


@dataclass(frozen=True)
class Access:
    """How one input (or one part of it), or one part of an output, is reached."""

    name: str  # the value's name in the chain
    array: Array | None
    part: int | None
    mode: str  # flat, tile, row, scalar, gather, index or size
    tokens: tuple[int | str, ...] = ()
    group: int | None = None  # index: whose coordinate
    index_of: tuple[str, str] | None = None  # take: (index input, table axis)

    @property
    def interleaved(self) -> bool:
        """Whether the parts at a column are neighbours."""
        return self.mode == "flat" and self.tokens[-1:] == ("parts",)


class Plan(Protocol):
    """What plans of every kind have."""

    @property
    def kind(self) -> str: ...
    @property
    def groups(self) -> tuple[Group, ...]: ...
    @property
    def collapsed(self) -> bool: ...
    @property
    def views(self) -> tuple[View, ...]: ...
    @property
    def loads(self) -> tuple[Access, ...]: ...
    @property
    def stores(self) -> tuple[Access, ...]: ...
    @property
    def order(self) -> tuple[str, ...]:
        """Every axis, in the order of the jnp form's operands."""

    @property
    def extremes(self) -> tuple[Node, ...]:
        """The reductions that need an element: max and min."""

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        """Arrays accessed in vectors, and how many of their elements one access takes at a position."""

    def view(self, name: str) -> View: ...
    def edges(self, dtypes: Mapping[str, str], schedule: Mapping[str, int]) -> tuple[int, ...]:
        """Extents of the innermost axis at which the kernel goes about it in another way, for tests."""


@dataclass(frozen=True)
class Elementwise:
    """The plan of an element-wise kernel."""

    groups: tuple[Group, ...]
    collapsed: bool  # one group would do: the runtime splits it in two, no coordinate is ever needed
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    kind: str = "elementwise"
    rows: tuple[()] = ()  # no reductions
    columns: tuple[()] = ()
    inner: tuple[()] = ()
    apart: tuple[()] = ()
    kernels: int = 1
    extremes: tuple[()] = ()

    @property
    def coordinates(self) -> tuple[int, ...]:
        """The groups whose coordinate some access needs."""
        used: set[int] = set()
        for access in (*self.loads, *self.stores):
            if access.mode != "flat":
                used |= {t for t in access.tokens if isinstance(t, int)}
            if access.group is not None:
                used.add(access.group)
            if access.index_of is not None:  # the place of the index that a table is read at
                used |= {t for t in self.view(access.index_of[0]).tokens if isinstance(t, int)}
        # and all further in: a vector that runs into the next row carries into them
        return tuple(range(min(used), len(self.groups))) if used else ()

    @property
    def order(self) -> tuple[str, ...]:
        """The axes of the jnp form's operands: the outputs'."""
        output = self.stores[0].array
        assert output is not None
        return output.axes

    def view(self, name: str) -> View:
        return next(v for v in self.views if v.array.name == name)

    def rows_and_columns(self, extent: Extent) -> tuple[int, int]:
        """The innermost extent of the positions, and how many times they have it."""
        total = extent(self.order)
        columns = total if self.collapsed or not self.groups else extent(self.groups[-1].axes)
        return total // max(columns, 1), columns

    def edges(self, dtypes: Mapping[str, str], schedule: Mapping[str, int]) -> tuple[int, ...]:
        """Extents of the innermost axis at which the kernel goes about it in another way: a vector, a block."""
        how = self.launch(dtypes, Extents(None, None), schedule)
        return how.vec, how.vec * how.threads

    @property
    def full(self) -> tuple[tuple[Array, int], ...]:
        """Arrays with every group, and how many of their elements one access takes at a position: interleaved pairs and
        quadruples come together, other counts of parts in several accesses."""
        found = {}
        for access in (*self.loads, *self.stores):
            if access.array is not None and access.mode in ("flat", "tile"):
                groups = {t for t in access.tokens if isinstance(t, int)}
                if len(groups) == len(self.groups):
                    parts = access.array.parts or 1
                    found[access.array] = parts if access.mode == "flat" and parts & (parts - 1) == 0 else 1
        return tuple(found.items())

    def launch(
        self,
        dtypes: Mapping[str, str],
        extents: Extents,
        schedule: Mapping[str, int],
        arch: str | None = None,
    ) -> Launch:
        """The launch for arrays of these dtypes (by name); `schedule` overrides (`overrides`)."""
        del arch  # every architecture takes the same
        width = max((DTYPES[dtypes[a.name]].size * n for a, n in self.full if a.name in dtypes), default=4)
        vec = vector_width(width, schedule)
        unit = extents.total if self.collapsed or not self.coordinates else extents.inner
        ragged = vec > 1 and (unit is None or unit % vec != 0)
        return Launch(vec, ragged, schedule.get("threads", THREADS))


def vector_width(width: int, schedule: Mapping[str, int]) -> int:
    """How many elements fill a vector, the widest of them `width` bytes."""
    vec = 1
    while vec * 2 * width <= schedule.get("vector_bytes", 16):
        vec *= 2
    return vec


def access_key(plan: Plan, access: Access) -> tuple:
    """The key under which the chain's graph knows what an access reads (`emit.leaf_key`)."""
    if access.array is None:
        assert access.group is not None
        return access.mode, plan.groups[access.group].axes[0]
    leaf = Leaf(access.array.name, access.part)
    if access.index_of:
        index, axis = access.index_of
        return "take", leaf, Leaf(index), axis
    return "input", leaf


@dataclass(frozen=True)
class Launch:
    """What a call adds to the plan: the vector width, whether rows are ragged, the threads of a block."""

    vec: int
    ragged: bool
    threads: int

    @property
    def constants(self) -> dict[str, int | bool]:
        """What the launcher takes of it."""
        return {"vec": self.vec, "ragged": self.ragged, "threads": self.threads}

    def blocks(self, rows: int, columns: int) -> int:
        """One more than full ones: for the rest, or where the arrays are empty."""
        return rows * columns // (self.vec * self.threads) + 1


def overrides(spec: Spec, arch: str | None) -> dict[str, int]:
    """What a spec's `schedule` says for an architecture: its own entry over that of all its variants, and that over what stands
    for all."""
    found = {name: value for name, value in spec.schedule if isinstance(value, int)}
    apart = {name: dict(value) for name, value in spec.schedule if isinstance(value, tuple)}
    return found if arch is None else found | apart.get(family(arch), {}) | apart.get(arch, {})


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Elementwise:
    """The plan for a checked spec. Raises `SpecError` where no kernel of ours can do it."""
    planner = _Elementwise(spec, statements)
    problems = planner.refusals()
    if problems:
        raise SpecError(problems)
    return planner.elementwise()


def tile_plan(spec: Spec, statements: tuple[Statement, ...], borders: Container[str]) -> Elementwise:
    """The plan of a chain that is done tile by tile: each of `borders` begins a group, and nothing is collapsed."""
    return _Elementwise(spec, statements).elementwise(borders)


class Planner:
    """What plans of every kind begin with: the chain's nodes, and the axes it runs over."""

    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        self.spec, self.statements = spec, statements
        self.nodes = list(topological(s.value for s in statements))
        self.axes = tuple(a for a in spec.axes if any(a in o.axes for o in spec.outputs))

    def mistake(self, message: str, hint: str, array: Array) -> Diagnostic:
        return self.spec.source.diagnostic(array.span or self.spec.chain.span, message, hint)

    def mistake_in_chain(self, node: Node, message: str, hint: str) -> Diagnostic:
        """A mistake at the first statement whose value has this node."""
        line = line_with(self.spec, self.statements, node)
        assert isinstance(line.tree, ast.Assign)
        found = [n for n in ast.walk(line.tree) if _named(n) == node.op]
        if isinstance(node.attr, tuple) and len(found) > 1:  # reductions, by what they lose
            found = [n for n in found if _axes_named(n) == {*node.attr}]
        return line.diagnostic(Placed(found[0] if len(found) == 1 else line.tree.value, Mistake(message, hint)))

    def refuse_sizes(self, why: str) -> Diagnostic | None:
        """The size of an axis that the kernel does not run over, which none of its coordinates counts."""
        for node in self.nodes:
            if node.op == "size" and node.attr not in self.axes:
                message = f"no kernel for the size of {node.attr} yet, an axis that {why}"
                return self.mistake_in_chain(node, message, "pass it as a parameter")
        return None

    def leaves(self) -> Iterable[Node]:
        """What the chain reads, in the order of the inputs, indices last."""
        order = {a.name: i for i, a in enumerate(self.spec.inputs)}
        taken = {id(a) for n in self.nodes if n.op == "take" for a in n.args}
        taken -= {id(a) for n in self.nodes if n.op != "take" for a in n.args} | {id(s.value) for s in self.statements}
        found = [n for n in self.nodes if n.op == "input" and id(n) not in taken]
        found += [n for n in self.nodes if n.op == "take"]

        def place(node: Node) -> tuple[int, int, int]:
            leaf = node.attr if node.op == "input" else node.args[0].attr
            assert isinstance(leaf, Leaf)
            return order[leaf.name], leaf.part or 0, node.op == "take"

        return [*sorted(found, key=place), *(n for n in self.nodes if n.op in ("index", "size"))]

    def load(self, node: Node, tokens: dict, groups: tuple[Group, ...], names: Names, mode_of: ModeOf) -> Access:
        if node.op == "index":
            place = next(i for i, g in enumerate(groups) if node.attr in g.axes)
            return Access(names.index(str(node.attr)), None, None, "index", (), place)
        if node.op == "size":
            place = next(i for i, g in enumerate(groups) if node.attr in g.axes)
            return Access(names.size(str(node.attr)), None, None, "size", (), place)
        leaf = node.attr if node.op == "input" else node.args[0].attr
        assert isinstance(leaf, Leaf)
        array = self.spec.array(leaf.name)
        name = leaf.name if leaf.part is None else names.part(leaf.name, leaf.part)
        own = tokens[leaf.name]
        if node.op == "input":
            return Access(name, array, leaf.part, mode_of(own), own)
        index = node.args[1].attr
        assert isinstance(index, Leaf)
        axis = str(node.attr)
        own = self.table_tokens(own, axis, groups)
        mode = self.take_mode(tokens[index.name], own, axis, groups, mode_of)
        return Access(names.take(name, index.name, axis), array, leaf.part, mode, own, None, (index.name, axis))

    def table_tokens(self, table: Tokens, axis: str, groups: tuple[Group, ...]) -> Tokens:
        """A table's tokens where it is read at an index: its axis is not that of others, whose name it may have."""
        return tuple(axis if isinstance(t, int) and axis in groups[t].axes else t for t in table)

    def take_mode(self, index: Tokens, table: Tokens, axis: str, groups: tuple[Group, ...], mode_of: ModeOf) -> str:
        """How a table is reached at the places of an index, along one of its axes."""
        mode, along = mode_of(table), (len(groups) - 1) in index
        if mode == "flat" or along:
            return "gather" if along or mode == "scalar" else "tile"
        return mode

    def groups(self, apart: set, borders: Container[str] = ()) -> tuple[Group, ...]:
        """Collapse neighbouring axes that every array has together, consecutively, in order; each of `borders` begins a
        group."""
        merged: list[list[str]] = []
        for axis in self.axes:
            alone = apart & {merged[-1][-1], axis} if merged else set()
            if merged and axis not in borders and self.together(merged[-1][-1], axis) and not alone:
                merged[-1].append(axis)
            else:
                merged.append([axis])
        # What stands for `...` has the coordinate iRows in places that several groups make
        names = ["rows" if ROWS in axes else "Rows_" if axes == ["Rows"] else "".join(axes) for axes in merged]
        unique = [n if names.count(n) == 1 else "_".join(axes) for n, axes in zip(names, merged, strict=True)]
        return tuple(Group(n, tuple(axes)) for n, axes in zip(unique, merged, strict=True))

    def together(self, first: str, second: str) -> bool:
        for array in self.spec.arrays:
            if (first in array.axes) != (second in array.axes):
                return False
            if first in array.axes:
                flat: list[str | None] = []
                for dim in array.dims:
                    names: list[str | None] = list(dim.names)
                    if dim.parts is not None:
                        names = [None, *names] if dim.parts_first else [*names, None]
                    flat += names
                if flat.index(second) != flat.index(first) + 1:
                    return False
        return True


class _Elementwise(Planner):
    def refusals(self) -> list[Diagnostic]:
        """What no kernel does yet, or ever: one message for the first reason found."""
        first = self.spec.outputs[0]
        for output in self.spec.outputs[1:]:
            if output.axes != first.axes:
                message = f"{output.name!r} is {output} but {first.name!r} is {first}"
                hint = "the outputs of an element-wise op share their axes: make it an op of its own"
                return [self.mistake(message, hint, output)]
        for array in self.spec.arrays:
            if tuple(a for a in self.spec.axes if a in array.axes) != array.axes:
                message = f"{array.name!r} is {array}, but other arrays have these axes in another order"
                return [
                    self.mistake(message, "an element-wise kernel does not transpose: give all the same order", array)
                ]
        if unknown := self.refuse_sizes("no output has"):
            return [unknown]
        known = {a for array in self.spec.inputs if array.default is None for a in array.axes} | set(self.spec.extents)
        for output in self.spec.outputs:
            for axis in output.axes:
                if axis not in known:
                    message = f"the axis {axis} of {output.name!r} is on no input that is always there"
                    hint = "its extent would be unknown: give an input without a default that axis"
                    return [self.mistake(message, hint, output)]
        if len(self.axes) > MAX_AXES:
            message = f"{len(self.axes)} axes; a kernel has at most {MAX_AXES}"
            return [self.mistake(message, "join axes that every array has together", first)]
        return []

    def elementwise(self, borders: Container[str] | None = None) -> Elementwise:
        apart = {n.attr for n in self.nodes if n.op in ("index", "size", "take")}
        groups = self.groups(apart, borders or ())
        tokens = {a.name: tokens_of(a, groups) for a in self.spec.arrays}
        # `take` makes its table's own coordinates, `index` a group's: neither can be split away
        simple = borders is None and not apart and len(groups) == 1
        full = all(_covers(tokens[a.name], len(groups)) for a in self.spec.arrays if a.axes)
        trailing = all(_is_flat(tokens[a.name], len(groups)) for a in self.spec.arrays if a.axes)
        collapsed = simple and full and trailing
        if collapsed:
            groups = (Group("rows", ()), Group("cols", ()))
            tokens = {
                n: tuple(x for t in ts for x in ((0, 1) if t == 0 else (t,))) for n, ts in tokens.items()
            }  # fmt: skip
        views = tuple(View(a, tokens[a.name]) for a in self.spec.arrays)
        names = Names(self.spec, self.statements)

        def mode(own: tuple[int | str, ...]) -> str:
            return _mode(own, len(groups))

        loads = tuple(self.load(node, tokens, groups, names, mode) for node in self.leaves())
        stores = tuple(
            Access(s.name if s.part is None else names.part(s.name, s.part), self.spec.array(s.name), s.part,
                   mode(tokens[s.name]), tokens[s.name])
            for s in self.statements if any(s.name == o.name for o in self.spec.outputs)
        )  # fmt: skip
        return Elementwise(groups, collapsed, views, loads, stores)


def tokens_of(array: Array, groups: tuple[Group, ...]) -> tuple[int | str, ...]:
    """One token a mode of the array's view: a group's place, "parts", or the axis that only a table has."""
    tokens: list[int | str] = []
    for dim in array.dims:
        names: list[int | str] = []
        for axis in dim.names:
            place = next((i for i, g in enumerate(groups) if axis in g.axes), axis)
            if not names or names[-1] != place:
                names.append(place)
        if dim.parts is not None:
            names = ["parts", *names] if dim.parts_first else [*names, "parts"]
        tokens += names if not tokens or not names or tokens[-1] != names[0] else names[1:]
    return tuple(tokens)


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


def unheld_types(
    spec: Spec, statements: Iterable[Statement], in_registers: Container[str] = frozenset()
) -> tuple[str, ...]:
    """The type variables that a chain rounds to and that no tensor of its kernel has in every call: not an array that may be left
    out, nor one that is `in_registers`. The launcher takes their dtypes."""
    held = {a.dtype for a in spec.arrays if a.default is None and a.name not in in_registers}
    cast = {n.attr for n in topological(s.value for s in statements) if n.op == "cast"}
    return tuple(name for name, dtypes in spec.types if len(dtypes) > 1 and name in cast and name not in held)


def dtype_constant(name: str) -> str:
    """What a kernel calls the dtype of a type variable that it takes: no name of a spec is like it."""
    return f"dtype_of_{name}"


class Names:
    """Names for parts and coordinates that no name of the spec has, and no two of them share."""

    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        self.taken = {s.name for s in statements} | {a.name for a in spec.arrays} | {p.name for p in spec.params}
        self.given: dict[tuple[str, ...], str] = {}

    def free(self, name: str, *what: str) -> str:
        """The name for `what`: the same one each time."""
        if what not in self.given:
            while name in self.taken:
                name += "_"
            self.taken.add(name)
            self.given[what] = name
        return self.given[what]

    def part(self, name: str, part: int) -> str:
        return self.free(f"{name}{part}", "part", name, str(part))

    def index(self, axis: str) -> str:
        return self.free(f"index_{axis.lower()}", "index", axis)

    def size(self, axis: str) -> str:
        return self.free("size_rows" if axis == ROWS else f"size_{axis.lower()}", "size", axis)

    def beside(self, name: str, others: frozenset[str]) -> str:
        """A name of the chain; another one where it is among `others`."""
        return self.free(f"{name}_", "beside", name) if name in others else name

    def statistic(self, name: str, node: int) -> str:
        """row_sum, row_sum2, ..."""
        count = 1 + sum(key[:2] == ("statistic", name) for key in self.given)
        return self.free(name if count == 1 else f"{name}{count}", "statistic", name, str(node))

    def take(self, table: str, index: str, axis: str) -> str:
        return self.free(f"{table}_at_{index}", "take", table, index, axis)


def _axes_named(tree: ast.AST) -> set[str]:
    """The axes that a call's keywords name."""
    words = [n for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg == "axis" for n in ast.walk(k.value)]
    return {n.id if isinstance(n, ast.Name) else ROWS for n in words if isinstance(n, ast.Name | ast.Constant)}


def _named(tree: ast.AST) -> str:
    """The function that a call names."""
    return tree.func.id if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else ""
