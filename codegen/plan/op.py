"""A planned op, the input of everything after planning. A contraction contains another op, its epilogue; an op of
several kernels contains one for each. At the end are the limits of kernels: dtypes that an architecture cannot convert, outputs that
cannot take an input's buffer, and sizes for which XLA's form is faster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES, Node, Statement, topological
from codegen.language.reference import Reference
from codegen.plan.access import INT_MAX, Access, BoundTypes, Group, View
from codegen.plan.elementwise import Elementwise
from codegen.plan.gemms.tiles import Product, Tile
from codegen.plan.launches import AnyLaunch, Extents, GemmLaunch, Tuned
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.selecting import Selection
from codegen.shared import RowLaunch, WalkLaunch
from codegen.spec.spec import Spec


@dataclass(frozen=True, eq=False)
class Op:
    """Everything that later stages need of an op."""

    spec: Spec
    statements: tuple[Statement, ...]
    reference: Reference
    plan: Elementwise | Reduction | Selection | Gemm | Staged
    tuning: tuple[Tuned, ...] = ()  # of its own kernel, and of the kernels of its gradients


@dataclass(frozen=True)
class Staged:
    """The plan of an op that several kernels compute, one after the other.

    A stage is an op that is one kernel: its inputs are inputs of the op, and outputs of earlier stages. `held` are the
    values of the chain, by name, that stages write for later ones and that are not outputs. `groups`, `views`, `loads`
    and `stores` say how the whole chain reaches the op's arrays, each axis by itself.
    """

    stages: tuple[Op, ...]
    held: tuple[tuple[str, Node], ...]
    groups: tuple[Group, ...]
    views: tuple[View, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    extremes: tuple[Node, ...]
    together: bool  # whether stages compare values with a result of another stage: then all stages are kernels, or none
    kind: str = "staged"
    collapsed: bool = False
    rows: tuple[()] = ()  # the stages have the reductions
    columns: tuple[()] = ()
    inner: tuple[()] = ()
    apart: tuple[()] = ()

    @property
    def kernels(self) -> int:
        return sum(stage.plan.kernels for stage in self.stages)

    @property
    def order(self) -> tuple[str, ...]:
        """Every axis, in the order of the jnp form's operands."""
        return tuple(axis for group in self.groups for axis in group.axes)

    @property
    def full(self) -> tuple[()]:
        return ()

    def view(self, name: str) -> View:
        return next(v for v in self.views if v.array.name == name)

    def edges(self, dtypes: Mapping[str, str], schedule: Mapping[str, int]) -> tuple[int, ...]:
        """The sizes of the innermost axis at which one of its kernels works in another way."""
        own = {a.name: "float32" for stage in self.stages for a in stage.spec.arrays} | dict(dtypes)
        return tuple(dict.fromkeys(n for stage in self.stages for n in stage.plan.edges(own, schedule)))


@dataclass(frozen=True)
class Gemm:
    """The plan of an op that contracts."""

    products: tuple[Product, ...]
    epilogue: Op
    tile: Tile | UserError  # why there is none
    kind: str = "gemm"

    def __getattr__(self, name: str) -> Any:
        """Attributes of arrays, axes and reductions are those of the epilogue's plan."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.epilogue.plan, name)

    @property
    def kernels(self) -> int:
        """The number of kernels: those of the epilogue, and the matmul if it is a kernel of its own."""
        return self.epilogue.plan.kernels + (isinstance(self.tile, UserError) or bool(self.tile.folds))

    @property
    def accs(self) -> tuple[str, ...]:
        return tuple(p.acc.name for p in self.products)

    def in_one_kernel(
        self,
        types: BoundTypes,
        count: Callable[[tuple[str, ...]], int],
        arch: str,
        find: Callable[[Mapping[str, int]], Tuned | None] = lambda sizes: None,
    ) -> GemmLaunch:
        """The launch of products and epilogue as one kernel, for these dtypes and so many elements along some axes;
        `find` gives the measured launch for such sizes. Raises `UserError` if there is none."""
        tile, (first, *_) = self.tile, self.products
        if isinstance(tile, UserError):
            raise tile
        spec = self.epilogue.spec
        dtypes = {a.name: types.dtype(a) for a in spec.arrays}
        dtypes |= {"a": types.dtype(first.a), "b": types.dtype(first.b)}
        axes = {"L": tile.batch, "M": tile.rows, "N": (tile.column,), "K": first.axes}
        extents = {name: count(own) for name, own in axes.items()}
        for name, extent in extents.items():
            if extent > INT_MAX:
                raise UserError(f"{extent} {' x '.join(axes[name])}: more than a kernel's coordinate holds")
        return tile.launch(dtypes, extents, spec.math == "precise", arch, find(extents))


def contracted_axes(plan: Elementwise | Reduction | Selection | Gemm | Staged) -> set[str]:
    """The axes that the products of a plan contract."""
    if isinstance(plan, Staged):
        return {axis for stage in plan.stages for axis in contracted_axes(stage.plan)}
    return {axis for p in plan.products for axis in p.axes} if isinstance(plan, Gemm) else set()


# What a kernel does not do

# Calls in which an H100 was slower than XLA are left to it (`left_to_xla`)
BUSY = 64  # blocks that share few rows: with fewer most of a GPU is idle
PIECE = 768 * 1024  # bytes of a row for each of them, above which kernels that split rows further are faster
MANY = 2**20  # columns that are reduced over few rows
FEW, SOME = 8, 64  # rows: fewer than a block has at a time; fewer if nothing is written along them


class Described(Protocol):
    """An op's spec and its chain."""

    @property
    def spec(self) -> Spec: ...
    @property
    def statements(self) -> tuple[Statement, ...]: ...


def lacks(op: Described, types: BoundTypes, arch: str) -> str | None:
    """Why an architecture, such as sm_90a, has no kernel for these dtypes; None if it has one."""
    number = re.match(r"sm_(\d+)", arch)
    nodes = topological(statement.value for statement in op.statements)
    casts = dict.fromkeys(str(node.attr) for node in nodes if node.op == "cast")
    used = [(f"{a.name!r} is", types.dtype(a)) for a in op.spec.arrays]
    used += [("the chain casts to", types.dtype(name)) for name in casts]
    for words, dtype in used:
        needed = DTYPES[dtype].min_arch
        if number and int(number[1]) < needed:
            return f"{op.spec.op}: {words} {dtype}, which {arch} cannot convert; its kernel needs sm_{needed} or newer"
    return None


def why_not_in_place(plan: Elementwise | Reduction | Selection | Gemm | Staged, output: str, source: str) -> str:
    """Why no kernel of a plan writes an output into an input's buffer; "" if one does."""
    if isinstance(plan, Gemm):
        return "tiles of a product (@) are written while others are still read"
    if isinstance(plan, Staged):
        return "it is several kernels, one after the other, which read the inputs again"
    if isinstance(plan, Selection):
        return "what a kernel selects is another array"
    if plan.columns:
        return "a kernel that reduces over rows may read a row again after it has written it"
    if any(a.into == source for a in plan.stores if a.array and a.array.name == output):
        return ""
    reads = [a for a in plan.loads if source in (a.array and a.array.name, a.index_of and a.index_of[0])]
    if any(a.index_of for a in reads):
        return f"{source!r} is read where an index says ('take'), or is that index"
    writes = [a for a in plan.stores if a.array and a.array.name == output]
    if [(a.mode, a.tokens) for a in reads] != [("flat", a.tokens) for a in writes]:
        return f"{source!r} is not read in the order in which {output!r} is written"
    return ""


def left_to_xla(
    plan: Elementwise | Reduction | Selection | Gemm | Staged,
    how: AnyLaunch,
    dtypes: Mapping[str, str],
    extents: Extents,
) -> str:
    """Why XLA's form is faster; "" if it is not. XLA splits long rows into more parts than a cluster has blocks, and
    reduces a few rows of many columns in fewer blocks."""
    if not isinstance(plan, Reduction) or not isinstance(how, RowLaunch | WalkLaunch):
        return ""
    rows, columns = extents.rows, extents.columns
    if not rows or columns is None or plan.collapsed or plan.apart:
        return ""
    words = "one row" if rows == 1 else f"{rows} rows"
    if isinstance(how, WalkLaunch):  # over rows
        written = any(a.mode == "flat" for a in plan.stores if a.name not in plan.late)
        of_columns = all(s.keeps == plan.spread for s in plan.columns)
        if how.whole or not of_columns or columns < MANY or rows >= (FEW if written else SOME):
            return ""
        return f"{words} of {columns} columns would be little for each block to do"
    size = columns * plan.column_bytes(dtypes)
    if how.kept or rows * how.cluster >= BUSY or size < how.cluster * PIECE:
        return ""
    return f"{words} of {size / 1e6:.3g} MB would leave most of a GPU idle"
