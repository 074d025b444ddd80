"""The common part of all planners: the chain's nodes, the axes that it runs over, how it reads its inputs, and unused
names."""

from __future__ import annotations

import ast
import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.errors import Diagnostic, Later, SpecError, UserError
from codegen.graph.names import LOCAL_NAMES
from codegen.graph.nodes import DTYPES, ROWS, Leaf, Node, Statement, lost_axes, nodes_of
from codegen.graph.ops import REDUCTIONS, TAKES
from codegen.language.chain import line_with, written_axes
from codegen.language.statements import Placed
from codegen.plan.access import Access, BoundTypes, Group, ModeOf, Tokens, View, tokens_of
from codegen.plan.launches import VECTOR_BYTES, Extents, PlannedCall, vector_width
from codegen.shared import WARP
from codegen.spec.spec import Array, Spec
from codegen.targets import family

MAX_AXES = 7


def overrides(spec: Spec, arch: str | None) -> dict[str, int]:
    """A spec's `schedule` for an architecture. Its own entry takes precedence over the entry of all its variants, and
    this over the entries for all architectures."""
    found = {name: value for name, value in spec.schedule if isinstance(value, int)}
    apart = {name: dict(value) for name, value in spec.schedule if isinstance(value, tuple)}
    return found if arch is None else found | apart.get(family(arch), {}) | apart.get(arch, {})


def planned_call(spec: Spec, types: BoundTypes, extents: Extents, arch: str | None = None) -> PlannedCall:
    """The call of a spec's kernel with these dtypes and sizes, as its plan needs it."""
    return PlannedCall({a.name: types.dtype(a) for a in spec.arrays}, extents, overrides(spec, arch), arch)


class Planner:
    """The common part of all planners: the chain's nodes, and the axes that it runs over."""

    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        self.spec, self.statements = spec, statements
        self.nodes = nodes_of(statements)
        self.puts = {s.name: s.at for s in statements if s.at}
        self.written_to = {o.name: written_axes(spec, o, self.puts.get(o.name)) for o in spec.outputs}
        self.axes = tuple(a for a in spec.axes if any(a in axes for axes in self.written_to.values()))

    def used_axes(self) -> tuple[str, ...]:
        """The axes of the chain's values, without axes that only tables have."""
        used = {axis for node in self.nodes for axis in node.dims}
        takes = [n for n in self.nodes if n.op in TAKES]
        tables = {a for n in takes for a in n.args[0].dims} & {n.attr for n in takes}
        others = {a for n in self.nodes if n.op not in ("take", "input") for a in n.dims}
        others |= {a for n in self.nodes if n.op in REDUCTIONS for a in lost_axes(n)}
        return tuple(a for a in self.spec.axes if a in used and (a not in tables or a in others))

    def in_order(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Axes in the spec's order."""
        return tuple(axis for axis in self.spec.axes if axis in set(axes))

    def are_last(self, columns: Iterable[str]) -> bool:
        """Whether these axes are the last ones of every array, in one order, as a row's columns must be. A row's position is found
        by the coordinates of the other axes, which are in any order."""
        own = {a: self.in_order({*columns} & {*a.axes}) for a in self.spec.arrays}
        return all(a.axes[len(a.axes) - len(axes) :] == axes for a, axes in own.items())

    @property
    def shifted_axes(self) -> set[str]:
        """The axes along which neighbours are read."""
        return {axis for n in self.nodes if n.op == "shift" for axis, _ in n.attr}  # type: ignore[attr-defined]

    def error(self, message: str, hint: str, array: Array) -> Diagnostic:
        source, chain = self.spec.source, self.spec.chain
        return Later(message, hint, lambda: source.diagnostic(array.span or chain.span, message, hint))

    def error_in_chain(self, node: Node, message: str, hint: str) -> Diagnostic:
        """An error at the first statement that computes this node."""

        def find() -> Diagnostic:
            line = line_with(self.spec, self.statements, node)
            assert isinstance(line.tree, ast.Assign)
            found = [n for n in ast.walk(line.tree) if _named(n) == node.op]
            if isinstance(node.attr, tuple) and len(found) > 1:  # reductions, by the axes that they reduce
                found = [n for n in found if _axes_named(n) == {*node.attr}]
            return line.diagnostic(Placed(found[0] if len(found) == 1 else line.tree.value, UserError(message, hint)))

        return Later(message, hint, find)

    def check(self) -> None:
        """Raises `SpecError` if no such kernel can compute the op."""
        if (problem := self.refusal()) is not None:
            raise SpecError([problem])

    def refusal(self) -> Diagnostic | None:
        """The first reason why no such kernel can compute the op."""
        return None

    def refuse_names(self) -> Diagnostic | None:
        """An error for two parameters that would have one name in the kernel."""
        for param in self.spec.params:
            if param.constant != param.name and param.constant in {p.name for p in self.spec.params}:
                message = (
                    f"{param.constant!r} cannot name a parameter here: the kernel gives this name to {param.name!r}"
                )
                return self.spec.source.diagnostic(self.spec.chain.span, message, "pick another name")
        return None

    def leaves(self) -> Iterable[Node]:
        """The values that the chain reads, in the order of the inputs, indices last."""
        order = {a.name: i for i, a in enumerate(self.spec.inputs)}
        taken = {id(a) for n in self.nodes if n.op in (*TAKES, "shift") for a in n.args}
        read = [
            *(n.args for n in self.nodes if n.op not in (*TAKES, "shift")),
            *(n.args[1:] for n in self.nodes if n.op == "pick"),
        ]
        taken -= {id(a) for args in read for a in args} | {id(s.value) for s in self.statements}
        found = [n for n in self.nodes if n.op == "input" and id(n) not in taken]
        found += [n for n in self.nodes if n.op == "take" or (n.op == "shift" and n.args[0].op == "input")]

        def place(node: Node) -> tuple[int, int, int]:
            leaf = node.attr if node.op == "input" else node.args[0].attr
            assert isinstance(leaf, Leaf)
            return order[leaf.name], leaf.part or 0, node.op != "input"

        tables = {id(n.args[0]): n for n in self.nodes if n.op == "pick"}
        return [
            *sorted(found, key=place),
            *(n for n in self.nodes if n.op in ("index", "size")),
            *tables.values(),
        ]

    def load(
        self, node: Node, tokens: dict[str, Any], groups: tuple[Group, ...], names: Names, mode_of: ModeOf
    ) -> Access:
        if node.op == "index":
            place = next(i for i, g in enumerate(groups) if node.attr in g.axes)
            return Access(names.index(str(node.attr)), None, None, "index", (), place)
        if node.op == "size" and not any(node.attr in g.axes for g in groups):
            axis = str(node.attr)
            return Access(names.size(axis), None, None, "size", (), counted=axis)
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
        if node.op == "shift":
            assert isinstance(node.attr, tuple)
            moved = {i for i, g in enumerate(groups) for axis, _ in node.attr if axis in g.axes}
            mode = self.shift_mode(own, moved, len(groups) - 1, mode_of)
            return Access(names.shifted(name, node.attr), array, leaf.part, mode, own, back=node.attr)
        if node.op == "pick":
            return Access(names.free(f"{name}_table", "table", name), array, leaf.part, "table", own)
        index = node.args[1].attr
        assert isinstance(index, Leaf)
        axis = str(node.attr)
        own = self.table_tokens(own, axis, groups)
        mode = self.take_mode(tokens[index.name], own, axis, groups, mode_of)
        return Access(names.take(name, index.name, axis), array, leaf.part, mode, own, None, (index.name, axis))

    def store(
        self, statement: Statement, tokens: dict[str, Any], groups: tuple[Group, ...], names: Names, mode_of: ModeOf
    ) -> Access:
        """How the value of a statement is written to its output."""
        array, at = self.spec.array(statement.name), statement.at
        part = statement.part
        name = names.beside(array.name, LOCAL_NAMES) if part is None else names.part(array.name, part)
        own = tokens[array.name]
        if at is None:
            return Access(name, array, statement.part, mode_of(own), own)
        own = self.table_tokens(own, at.axis, groups)
        mode = self.take_mode(tokens[at.index], own, at.axis, groups, mode_of)
        where = (at.index, at.axis)
        return Access(name, array, None, mode, own, None, where, at.table, self.written_to[array.name], at.how)

    def table_tokens(self, table: Tokens, axis: str, groups: tuple[Group, ...]) -> Tokens:
        """The tokens of a table that is read at an index. Its axis may have the name of other arrays' axis, but is not
        the same."""
        return tuple(axis if isinstance(t, int) and axis in groups[t].axes else t for t in table)

    def shift_mode(self, own: Tokens, moved: set[int], inner: int, mode_of: ModeOf) -> str:
        """How an array is reached at another place along the `moved` groups; `inner` is the innermost group."""
        del mode_of
        wide = own[-1] == inner and inner not in moved
        return "scalar" if inner not in own else "tile" if wide else "gather"

    def take_mode(self, index: Tokens, table: Tokens, axis: str, groups: tuple[Group, ...], mode_of: ModeOf) -> str:
        """How a table is reached at the positions of an index, along one of its axes."""
        mode, along = mode_of(table), (len(groups) - 1) in index
        if mode == "flat" or along:
            return "gather" if along or mode == "scalar" else "tile"
        return mode

    def groups(self, apart: set[Any], borders: Container[str] = ()) -> tuple[Group, ...]:
        """Collapses neighbouring axes that every array has together, consecutively and in order. Each of `borders`
        begins a group."""
        merged: list[list[str]] = []
        for axis in self.axes:
            alone = apart & {merged[-1][-1], axis} if merged else set()
            if merged and axis not in borders and self.together(merged[-1][-1], axis) and not alone:
                merged[-1].append(axis)
            else:
                merged.append([axis])
        # `...` has the coordinate iRows if several groups make a row's position
        names = ["rows" if ROWS in axes else "Rows_" if axes == ["Rows"] else "".join(axes) for axes in merged]
        unique = [n if names.count(n) == 1 else "_".join(axes) for n, axes in zip(names, merged, strict=True)]
        return tuple(Group(n, tuple(axes)) for n, axes in zip(unique, merged, strict=True))

    def least_vector(self, columns: tuple[str, ...]) -> int:
        """The columns of a vector of the widest arrays; of float32 where no array has these columns."""
        arrays = [a for a in self.spec.arrays if columns[-1] in a.axes]
        sizes = (DTYPES[d].size * (a.parts or 1) for a in arrays for d in self.spec.dtypes(a))
        widest = max(sizes, default=DTYPES["float32"].size)
        return vector_width(widest, overrides(self.spec, None).get("vector_bytes", VECTOR_BYTES))

    def repeated(self, reductions: Sequence[Node], rows: tuple[str, ...], columns: tuple[str, ...]) -> tuple[str, ...]:
        """The axes of rows that a reduction lacks, where all reductions along long rows would be computed again for each element of
        some axis. Where elements of rows are written, they are computed along such an axis anyway."""
        short = math.prod(self.spec.extents.get(a, WARP + 1) for a in columns) <= WARP
        lacking = [tuple(axis for axis in rows if axis not in n.args[0].dims) for n in reductions]
        if short or not lacking or not all(lacking) or any({*columns} & {*a.axes} for a in self.spec.outputs):
            return ()
        return lacking[0]

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


@dataclass(frozen=True)
class Arrays:
    """How a whole chain reaches its op's arrays, each axis by itself: no kernel runs over all of the axes."""

    groups: tuple[Group, ...]
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]


class Whole(Planner):
    """The arrays and axes of an op whose kernels have some of them each."""

    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        super().__init__(spec, statements)
        used = {*self.used_axes(), *self.axes} | {a for n in self.nodes if n.op == "contract" for a in lost_axes(n)}
        self.axes = tuple(a for a in spec.axes if a in used)

    def arrays(self) -> Arrays:
        groups = tuple(Group("rows" if axis == ROWS else axis, (axis,)) for axis in self.axes)
        tokens = {a.name: tokens_of(a, groups) for a in self.spec.arrays}
        names, outputs = Names(self.spec, self.statements), {a.name for a in self.spec.outputs}

        def mode(_: object) -> str:
            return "gather"

        return Arrays(
            groups,
            tuple(View(a, tokens[a.name]) for a in self.spec.arrays),
            tuple(self.load(node, tokens, groups, names, mode) for node in self.leaves()),
            tuple(self.store(s, tokens, groups, names, mode) for s in self.statements if s.name in outputs),
        )


def unheld_types(
    spec: Spec, statements: tuple[Statement, ...], in_registers: Container[str] = frozenset()
) -> tuple[str, ...]:
    """The type variables that a chain rounds to and that no tensor of its kernel has in every call. Arrays that may be
    left out do not count, nor arrays that are `in_registers`. The launcher takes the dtypes of these types."""
    held = {a.dtype for a in spec.arrays if a.default is None and a.name not in in_registers}
    cast = {n.attr for n in nodes_of(statements) if n.op == "cast"}
    return tuple(name for name, dtypes in spec.types if len(dtypes) > 1 and name in cast and name not in held)


def dtype_constant(name: str) -> str:
    """The kernel's name for the dtype of a type variable that it takes. No name of a spec can be equal."""
    return f"dtype_of_{name}"


class Names:
    """Names for parts and coordinates that differ from each other and from all names of the spec."""

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
        return self.free("index_rows" if axis == ROWS else f"index_{axis.lower()}", "index", axis)

    def size(self, axis: str) -> str:
        return self.free("size_rows" if axis == ROWS else f"size_{axis.lower()}", "size", axis)

    def beside(self, name: str, others: frozenset[str]) -> str:
        """A name of the chain, or another one if it is among `others`."""
        return self.free(f"{name}_", "beside", name) if name in others else name

    def statistic(self, name: str, node: int) -> str:
        """row_sum, row_sum2, ..."""
        count = 1 + sum(key[:2] == ("statistic", name) for key in self.given)
        return self.free(name if count == 1 else f"{name}{count}", "statistic", name, str(node))

    def shifted(self, array: str, back: tuple[tuple[str, int], ...]) -> str:
        words = [f"{'after' if n < 0 else 'before'}{abs(n)}_{axis.lower()}" for axis, n in back]
        return self.free("_".join([array, *words]), "shift", array, *words)

    def take(self, table: str, index: str, axis: str) -> str:
        return self.free(f"{table}_at_{index}", "take", table, index, axis)


def _axes_named(tree: ast.AST) -> set[str]:
    """The axes that a call's keywords name."""
    words = [n for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg == "axis" for n in ast.walk(k.value)]
    return {n.id if isinstance(n, ast.Name) else ROWS for n in words if isinstance(n, ast.Name | ast.Constant)}


def _named(tree: ast.AST) -> str:
    """The function that a call names."""
    return tree.func.id if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else ""
