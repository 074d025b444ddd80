"""What an op reduces along a row and what over rows: the axes of a row's position, and those of its columns."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from codegen.graph import online
from codegen.graph.nodes import ROWS, Node, Statement, lost_axes, topological
from codegen.graph.ops import REDUCTIONS
from codegen.plan.planner import Planner
from codegen.shared import WARP
from codegen.spec.spec import Spec


class Sides(Planner):
    """A planner that knows which reductions are `along` a row and which are `over` rows. With `only_over`, reductions over trailing axes,
    too, are of partial results of blocks, as those over rows are."""

    def __init__(self, spec: Spec, statements: tuple[Statement, ...], only_over: bool = False):
        super().__init__(spec, statements)
        self.only_over = only_over
        self.axes = self.used_axes()
        self.reduced = [n for n in self.nodes if n.op in REDUCTIONS]
        self.following = online.following(self.reduced)

    @functools.cached_property
    def along(self) -> list[Node]:
        """The reductions of single rows, over trailing axes. They include one over all axes if there is no `...` and a
        value with axes needs it."""
        if self.only_over:
            return []
        trailing = [n for n in self.reduced if lost_axes(n) == self.axes[-len(lost_axes(n)) :]]
        full = [n for n in trailing if lost_axes(n) == self.axes]
        reached = self.reached_by(full)
        values = [n.dims for n in self.nodes if id(n) in reached]
        values += [self.spec.array(s.name).axes for s in self.written() if id(s.value) in reached]
        return trailing if ROWS not in self.axes and any(values) else [n for n in trailing if n not in full]

    def written(self) -> list[Statement]:
        """The statements that assign outputs."""
        names = {o.name for o in self.spec.outputs}
        return [s for s in self.statements if s.name in names]

    def reached_by(self, found: Iterable[Node]) -> set[int]:
        """The identities of these nodes and of all that need one of them."""
        late = {id(n) for n in found}
        for node in self.nodes:
            if any(id(a) in late for a in node.args):
                late.add(id(node))
        return late

    @functools.cached_property
    def over(self) -> list[Node]:
        """The reductions over rows, including those over all axes."""
        along = set(map(id, self.along))
        return [n for n in self.reduced if id(n) not in along]

    def side(self, reduction: Node) -> str:
        """The axes that a reduction reduces: `Statistic.over`."""
        if reduction in self.along:
            return "row" if lost_axes(reduction) == self.axes[self.place :] else "group"
        return "column" if reduction.dims else "total"

    def kept_apart(self, place: int) -> set[str]:
        """The axes of a row's position that reductions over rows keep."""
        return {a for n in self.over for a in n.dims if a in self.axes[:place]}

    @functools.cached_property
    def waited(self) -> list[Node]:
        """The reductions over rows whose results rows need, or other reductions."""
        row_axes = set(self.axes[: self.place]) - self.kept_apart(self.place)
        needed: set[int] = set()  # by rows, or by a reduction
        roots = [*(s.value for s in self.statements), *(way.maximum for way in self.following.values())]
        for node in reversed([*topological(roots, lambda n: id(n) in self.following)]):
            if id(node) in needed or row_axes & set(node.dims):
                needed |= {id(node), *map(id, node.args)}
            if node.op in REDUCTIONS and id(node) not in self.following:
                needed.add(id(node.args[0]))
        return [over for over in self.over if id(over) in needed]

    @functools.cached_property
    def place(self) -> int:
        """The number of axes of a row's position: those before the longest run that is reduced along a row. If runs are groups of
        columns, the common first axes of all reductions over rows, or the first axes up to the last that one of them reaches."""
        found = self.places()
        fit = [p for p in found if not self.unfit(p)]
        return min(fit, key=lambda p: (self.scattered(p), self.folded(p), len(self.kept_apart(p)))) if fit else found[0]

    def scattered(self, place: int) -> bool:
        """Whether columns would not be neighbours in memory, since an array has parts among them."""
        dims = [d for a in self.spec.arrays for d in a.dims if d.parts is not None and d.parts_first]
        return any(self.axes.index(d.names[0]) > place for d in dims if d.names and d.names[0] in self.axes)

    def folded(self, place: int) -> int:
        """The axes of columns along which results are added up once all rows are."""
        return max(
            (len({*lost_axes(n)} & {*self.axes[place:]}) for n in self.over if lost_axes(n) != self.axes), default=0
        )

    def places(self) -> list[int]:
        """The possible values of `place`, the preferred one first."""
        found = [len(self.axes) - max(len(lost_axes(n)) for n in self.along)] if self.along else []
        sets = [lost_axes(n) for n in self.over if lost_axes(n) != self.axes]
        if sets:
            least = min(map(len, sets))
            begin = next((i for i in range(least) if any(s[i] != self.axes[i] for s in sets)), least)
            found += [p for p in (begin or max(map(self.first_run, sets)),) if p < len(self.axes)]
            found.append(len(self.axes) - 1)
        elif not found:
            found.append(self.axes.index(self.groups(self.placed)[-1].axes[0]) or min(1, len(self.axes) - 1))
        return found

    def first_run(self, axes: tuple[str, ...]) -> int:
        """The position after the first of these axes and the ones that follow it directly."""
        place = self.axes.index(axes[0])
        while place < len(self.axes) and self.axes[place] in axes:
            place += 1
        return place

    @property
    def placed(self) -> set[object]:
        """The axes whose positions or sizes the chain uses, or along which it takes."""
        return {n.attr for n in self.nodes if n.op in ("index", "size", "take")}

    def unfit(self, place: int) -> tuple[Node, str, str] | None:
        """A reduction that no kernel can do if rows are at so many axes: the node, the reason, and a hint."""
        rows, columns = self.axes[:place], self.axes[place:]

        def clash(node: Node, hint: str) -> tuple[Node, str, str]:
            others = [lost_axes(n) for n in self.reduced if lost_axes(n) not in (lost_axes(node), self.axes)]
            names = ", ".join(lost_axes(node)), ", ".join(others[0] if others else self.axes)
            return node, f"no kernel reduces over {names[0]} and over {names[1]} in one op", hint

        for node in self.over:
            axes, own = lost_axes(node), node.args[0].dims
            if axes != self.axes and not set(axes) & set(rows):
                return clash(node, "make two ops of it")
            lacks = [a for a in (*rows, *columns) if a not in own]
            once = lacks == list(columns) and not node.dims  # a total of one value for each row
            if lacks and not once:
                what = f"over {', '.join(axes)} a value that varies along {', '.join(own)} and not along {', '.join(lacks)}"
                alone = "this reduction" if set(lacks) & set(rows) else f"what varies along {', '.join(lacks)}"
                hint = f"make {alone} an op of its own, and take its result as an input"
                return node, f"no kernel reduces {what}", hint
        most = WARP * self.least_vector(columns)
        for node in self.along:
            axes = lost_axes(node)
            if len(axes) > len(columns):
                return clash(node, "make two ops of it")
            if len(axes) < len(columns) and not 0 < self.group_width(axes) <= most:
                return clash(
                    node, f"groups of columns have a fixed size, a power of two up to {most}: (B G={min(most, 32)})"
                )
        return None

    def group_width(self, axes: tuple[str, ...]) -> int:
        """The number of columns of a group; 0 if it is not fixed, or not a power of two."""
        width = math.prod(self.spec.extents.get(a, 0) for a in axes)
        return 0 if width & (width - 1) else width

    @property
    def collapsed(self) -> bool:
        """Whether all arrays are one long row, and no position in it is needed."""
        alike = all(a.axes in ((), self.axes) and not a.parts for a in self.spec.arrays)
        placed = any(n.op in ("index", "size", "take") for n in self.nodes)
        return alike and not placed and all(lost_axes(n) == self.axes for n in self.over) and not self.along
