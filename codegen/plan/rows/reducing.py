"""The planner of ops that reduce: it finds what no kernel can do, and makes the plan of one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from codegen.errors import Diagnostic, SpecError
from codegen.graph import online
from codegen.graph.names import LOCAL_NAMES, REDUCING_NAMES
from codegen.graph.nodes import Leaf, Node, Statement, dims_text, lost_axes, most_alive, topological
from codegen.graph.ops import REDUCTIONS
from codegen.plan.access import Access, Group, ModeOf, Tokens, View, tokens_of
from codegen.plan.planner import MAX_AXES, Names
from codegen.plan.rows.access import Expensive, Statistic
from codegen.plan.rows.holding import demands, held_values, is_costly, roots_of_sweeps
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.sides import Sides
from codegen.spec.spec import Array, Spec

MAX_STAGES = 16
R = TypeVar("R", bound=Reduction)


def make_plan(spec: Spec, statements: tuple[Statement, ...], only_over: bool = False) -> Reduction:
    """The plan for a checked spec with a reduction. Raises `SpecError` if no kernel can compute it."""
    planner = Reductions(spec, statements, only_over)
    problem = planner.refusal()
    if problem and planner.along:
        planner = Reductions(spec, statements, only_over=True)
    if problem and planner.refusal():
        raise SpecError([problem])
    return planner.plan()


class Reductions(Sides):
    """The planner of a kernel that reduces."""

    makes: type[Reduction] = Reduction
    holds_rows = False  # whether a block has whole rows, also where it reduces over rows

    # What no kernel can do

    def refusal(self) -> Diagnostic | None:
        checks = (
            self.refuse_picks,
            self.refuse_stages,
            self.refuse_names,
            self.refuse_axes,
            self.refuse_orders,
            self.refuse_waiting,
            self.refuse_places,
            self.refuse_late_rows,
            self.refuse_groups_of_rows,
            self.refuse_repeats,
            self.refuse_outputs,
        )
        return next(filter(None, (check() for check in checks)), None)

    def refuse_axes(self) -> Diagnostic | None:
        unfit = self.unfit(self.place)
        if unfit:
            node, message, hint = unfit
            return self.error_in_chain(node, message, hint)
        return None

    def refuse_picks(self) -> Diagnostic | None:
        for name in self.puts:
            message = f"no kernel that reduces puts {name!r} at an index's places"
            return self.error(message, "make two ops: one that reduces, one that puts", self.spec.array(name))
        for node in self.nodes:
            if node.op == "shift" and not self.reads_neighbours(node):
                message = "no kernel that reduces over rows reads neighbours along a row, and none those of pairs"
                return self.error_in_chain(node, message, "make two ops: one that shifts, one that reduces")
            if node.op == "pick":
                message = "no kernel that reduces takes at a computed index"
                return self.error_in_chain(node, message, "make two ops: one that takes, one that reduces")
        over = set(map(id, self.over))
        finished = [s.value for s in self.statements if over & {id(n) for n in topological([s.value])}]
        for node in topological(finished, lambda n: n.op in REDUCTIONS):
            if node.op == "size" and node.attr not in self.axes:  # results over rows are finished without the table
                message = f"no kernel for the size of {node.attr} yet, an axis that no value of the chain has"
                return self.error_in_chain(node, message, "pass it as a parameter")
        return None

    def reads_neighbours(self, shift: Node) -> bool:
        """Whether a shifted array is read whole, or a half of it: at another row, or along a row where none reduces over rows."""
        assert isinstance(shift.attr, tuple) and isinstance(shift.args[0].attr, Leaf)
        array, rows = self.spec.array(shift.args[0].attr.name), self.axes[: self.place]
        plain = array.parts is None or (array.dims[-1].parts is not None and array.dims[-1].parts_first)
        return plain and (not self.over or all(axis in rows for axis, _ in shift.attr))

    def refuse_orders(self) -> Diagnostic | None:
        if (arrays := self.spec.disagreeing) and not self.are_last(self.axes[self.place :]):
            words = [f"{a.name!r}, {a}" for a in arrays]
            message = f"no order of the axes fits {', '.join(words[:-1])} and {words[-1]}"
            return self.error(message, "a kernel that reduces does not transpose: give all the same order", arrays[-1])
        if len(self.axes) > MAX_AXES:
            return self.error(f"{len(self.axes)} axes; a kernel has at most {MAX_AXES}", "", self.spec.outputs[0])
        return None

    def refuse_waiting(self) -> Diagnostic | None:
        """An error for a value with which every row would wait for all others."""
        if not self.waited:
            return None
        first = self.waited[0]
        what, axes = f"a reduction ({first.op})", ", ".join(lost_axes(first))
        late = self.reached_by([first])
        if any(n.op in REDUCTIONS and id(n.args[0]) in late for n in self.nodes if id(n) in late):
            message = f"a reduction would wait for another one: this needs {what} over {axes} first"
        else:
            message = f"every row would wait for all others: this needs {what} over {axes}"
        return self.error_in_chain(first, message, "make two ops: one that reduces, one that takes its result")

    def refuse_places(self) -> Diagnostic | None:
        """Reductions over rows that meet at different places: at those of both, few rows or a single one would meet."""
        apart = self.kept_apart(self.place)
        kept = [(n, apart & set(n.dims)) for n in self.over]
        if any(own == apart for _, own in kept) or not kept:
            return None
        first, other = kept[0][0], next(n for n, own in kept if own != kept[0][1])
        what = f"over {', '.join(lost_axes(first))} and over {', '.join(lost_axes(other))}"
        return self.error_in_chain(other, f"no kernel reduces {what}", "make two ops of it")

    def refuse_late_rows(self) -> Diagnostic | None:
        """An error for a value that is computed once all rows are reduced and is itself reduced along rows."""
        late, over = self.reached_by(self.over), {id(n) for n in self.over}
        values = [s.value for s in self.written() if id(s.value) in late]
        for node in topological(values, lambda n: id(n) in over):
            if node in self.along:
                what = f"the results of all rows need another reduction ({node.op}) over {', '.join(lost_axes(node))}"
                return self.error_in_chain(node, what, "make it an op of its own")
        return None

    def refuse_groups_of_rows(self) -> Diagnostic | None:
        """An error for a value of each row that needs a reduction of one of its groups: only vectors of columns have
        groups."""
        whole = self.axes[self.place :]
        groups = {id(n) for n in self.along if lost_axes(n) != whole}
        values = [s.value for s in self.written() if not set(whole) & set(self.spec.array(s.name).axes)]
        values += [n.args[0] for n in self.over if not set(whole) & set(n.args[0].dims)]
        for node in topological(values, lambda n: n.op in REDUCTIONS):
            if id(node) in groups:
                message = f"a value of each row needs a reduction ({node.op}) over {', '.join(lost_axes(node))}, groups of the row"
                return self.error_in_chain(node, message, "make it an op of its own")
        return None

    def refuse_repeats(self) -> Diagnostic | None:
        again = self.repeated(self.along, self.axes[: self.place], self.axes[self.place :])
        message = f"each row would be reduced again for each element along {', '.join(again)}"
        return self.error_in_chain(self.along[0], message, "make it an op of its own") if again else None

    def refuse_stages(self) -> Diagnostic | None:
        """An error for statistics that need others that need others, and so on: each costs another sweep."""
        depth: dict[int, int] = {}
        for node in self.nodes:
            depth[id(node)] = max((depth[id(a)] for a in node.args), default=0) + (node.op in REDUCTIONS)
            if depth[id(node)] > MAX_STAGES:
                message = f"more than {MAX_STAGES} reductions, each of the result of the one before"
                return self.error_in_chain(node, message, "make several ops of it")
        return None

    # The plan

    def refuse_outputs(self) -> Diagnostic | None:
        known = {a for array in self.spec.inputs if array.default is None for a in array.axes} | set(self.spec.extents)
        over = {id(n): n for n in self.over}
        rows, columns = self.axes[: self.place], self.axes[self.place :]
        inner = [n for n in self.along if len(lost_axes(n)) < len(columns)]
        along = [self.in_order(a) for a in (self.axes, *(self.axes[: -len(lost_axes(n))] for n in inner), rows)]
        for statement in self.written():
            output = self.spec.array(statement.name)
            for axis in output.axes:
                if axis not in known:
                    message = f"no input without a default has the axis {axis} of {output.name!r}"
                    return self.error(message, "its size would be unknown: give such an input that axis", output)
            constant = not any(n.op == "input" for n in topological([statement.value]))
            values = [s.value for s in self.written() if s.name == statement.name] if constant else [statement.value]
            found = [over[id(n)] for n in topological(values) if id(n) in over]
            wanted = list(dict.fromkeys([n.dims for n in found] if found else along))
            texts = [dims_text(w) for w in wanted]
            if found and any(n.op == "take" for n in topological([statement.value], lambda n: id(n) in over)):
                message = f"{output.name!r} takes from a table after a reduction over rows"
                return self.error(message, "take before it, or make it an op of its own", output)
            if self.in_order(output.axes) not in wanted:
                what = f"{'column' if found else 'row'} reductions here give {' or '.join(texts)}"
                return self.error(f"{output.name!r} is {output}, but {what}", "make it an op of its own", output)
            if found and not set(wanted) <= {self.in_order(output.axes), ()}:
                message = f"{output.name!r} needs column reductions of different axes: they give {' and '.join(texts)}"
                return self.error(message, "make each an output, and join them in an op of its own", output)
        for axis in dict.fromkeys(a for n in (*self.along, *self.over) for a in lost_axes(n)):
            if axis not in known:
                message = f"no input without a default has the axis {axis} of a reduction"
                return self.error(
                    message, "its size would be unknown: give such an input that axis", self.spec.outputs[0]
                )
        return None

    def plan(self) -> Reduction:
        if self.collapsed:
            groups: tuple[Group, ...] = (Group("rows", ()), Group("cols", ()))
            leading = 1
            tokens: dict[str, Tokens] = {a.name: (0, 1) if a.axes else () for a in self.spec.arrays}
        else:
            groups = self.groups(self.placed, {self.axes[self.place]})
            leading = sum(set(g.axes) <= set(self.axes[: self.place]) for g in groups)
            tokens = {a.name: tokens_of(a, groups) for a in self.spec.arrays}

        def mode(own: Tokens) -> str:
            columns = [t for t in own if isinstance(t, int) and t >= leading]
            if not columns:
                return "row"
            tail = own[:-1] if own[-1] == "parts" else own
            return "flat" if tail[-(len(groups) - leading) :] == tuple(range(leading, len(groups))) else "gather"

        whole = self.planned(self.makes, groups, leading, tokens, mode)
        return replace(whole, first=self.first(whole)) if whole.rows and whole.columns else whole

    def planned(
        self, plan: type[R], groups: tuple[Group, ...], leading: int, tokens: dict[str, Tokens], mode: ModeOf
    ) -> R:
        """The plan of a kernel for which the first `leading` groups are a row's position."""
        names, late = Names(self.spec, self.statements), self.reached_by(self.over)
        rows, columns, inner = self.statistics(names, groups)
        along = {*self.axes[self.place :]}
        kept = self.kept_apart(self.place)
        walked = [] if self.holds_rows else [s.value for s in columns]
        sweeps = roots_of_sweeps(rows, [*(s.value for s in self.written()), *walked], self.joins(rows, columns))
        return plan(
            kind="row+column" if rows and columns else "row" if rows else "column",
            groups=groups,
            leading=leading,
            views=tuple(View(a, tokens[a.name]) for a in self.spec.arrays),
            loads=tuple(self.load(node, tokens, groups, names, mode) for node in self.leaves()),
            stores=self.stores(tokens, names, mode),
            rows=rows,
            columns=columns,
            inner=inner,
            expensive=self.expensive(sweeps, bool(walked), {axis for g in groups[leading:] for axis in g.axes}, names),
            joins=self.joins(rows, columns),
            apart=tuple(i for i, g in enumerate(groups[:leading]) if g.axes and set(g.axes) <= kept),
            late=tuple(dict.fromkeys(s.name for s in self.written() if id(s.value) in late)),
            order=self.in_order(self.axes),
            collapsed=self.collapsed,
            draws=any(n.op == "_bits" and along & set(n.dims) for n in self.nodes),
            costly=any(is_costly(n, along) and id(n) not in late for n in self.nodes),
            alive=most_alive([s.value for s in self.statements], along),
            demands=demands(sweeps, along, {*self.axes[: self.place]}, bool(walked)),
            mixes=any(len({n.dims for n in topological([s.value]) if n in self.over}) > 1 for s in self.written()),
        )

    def first(self, whole: Reduction) -> Reduction:
        """The plan of a kernel that writes the statistics of rows, for another one that reads the rows again."""
        axes = self.spec.dims(self.axes[: self.place])
        own = tuple(range(whole.leading))
        types = {"float": "float32", "int": self.spec.integer, "bool": "int32"}
        arrays = [Array(f"{s.name}_of_rows", types[s.kind], axes) for s in whole.rows]
        reached = {id(n) for n in topological(s.node for s in whole.rows)}
        return replace(
            whole,
            kind="row",
            views=(*whole.views, *(View(a, own) for a in arrays)),
            loads=tuple(load for node, load in zip(self.leaves(), whole.loads, strict=True) if id(node) in reached),
            stores=tuple(Access(a.name, a, None, "row", own) for a in arrays),
            columns=(),
            expensive=(),
            late=(),
            apart=(),
        )

    def stores(self, tokens: Mapping[str, Tokens], names: Names, mode_of: ModeOf) -> tuple[Access, ...]:
        """How the outputs are reached, in the order of the chain."""
        outputs = {o.name for o in self.spec.outputs}
        return tuple(
            Access(
                names.beside(s.name, REDUCING_NAMES | LOCAL_NAMES) if s.part is None else names.part(s.name, s.part),
                self.spec.array(s.name), s.part, mode_of(tokens[s.name]), tokens[s.name],
            )
            for s in self.statements if s.name in outputs
        )  # fmt: skip

    def joins(self, rows: tuple[Statistic, ...], columns: tuple[Statistic, ...]) -> bool:
        """Whether the last sweep over a row writes the outputs along it, too: none of them needs one of its statistics."""
        last = [s.node for s in rows if s.stage == rows[-1].stage]
        if not last or columns or self.holds_rows or any(map(online.rescaled, last)):
            return False
        along, late = {*self.axes[self.place :]}, self.reached_by(last)
        written = [s.value for s in self.written() if along & {*self.spec.array(s.name).axes}]
        return bool(written) and not any(id(value) in late for value in written)

    def expensive(self, sweeps: list[list[Node]], each: bool, axes: set[str], names: Names) -> tuple[Expensive, ...]:
        """Values of each column that need an expensive operation and that more than one sweep along these axes needs."""
        chain = {id(s.value): s.name for s in self.statements}
        return tuple(
            Expensive(names.beside(chain.get(id(n)) or names.statistic("value", id(n)), REDUCING_NAMES), n, first)
            for n, first in held_values(sweeps, axes, self.nodes, each, ordered=bool(self.spec.ordered))
        )

    def table_tokens(self, table: Tokens, axis: str, groups: tuple[Group, ...]) -> Tokens:
        del axis, groups
        return table

    def shift_mode(self, own: Tokens, moved: set[int], inner: int, mode_of: ModeOf) -> str:
        """Element by element along a row; as at the row's own place if a shift goes to another one."""
        return mode_of(own) if all(mode_of((group,)) == "row" for group in moved) else "gather"

    def take_mode(self, index: Tokens, table: Tokens, axis: str, groups: tuple[Group, ...], mode_of: ModeOf) -> str:
        """The index of a row selects that row's position in the table; an index of columns selects one for each column."""
        if mode_of(index) != "row":
            return "gather"
        return mode_of(tuple(t for t in table if not (isinstance(t, int) and axis in groups[t].axes)))

    def statistics(
        self, names: Names, groups: tuple[Group, ...]
    ) -> tuple[tuple[Statistic, ...], tuple[Statistic, ...], tuple[Statistic, ...]]:
        """The reductions along rows, over them, and within them, with the chain's names, in the order of their stages."""
        chain = {id(s.value): s.name for s in self.statements if s.name not in {o.name for o in self.spec.outputs}}
        stage: dict[int, int] = {}
        found: list[Statistic] = []
        for node in self.nodes:
            own = max((stage[id(a)] for a in node.args), default=0)
            if node.op in REDUCTIONS:
                over = self.side(node)
                name = chain.get(id(node)) or names.statistic(f"{over}_{node.op}", id(node))
                name, follows = names.beside(name, REDUCING_NAMES), self.following.get(id(node))
                if over == "row":
                    found.append(Statistic(name, node, own, over))
                    own += 1
                elif over == "column":
                    keeps = (i for i, g in enumerate(groups) if set(g.axes) <= set(node.dims))
                    found.append(Statistic(name, node, 0, over, keeps=tuple(keeps), follows=follows))
                elif over == "total":
                    once = not set(self.axes[self.place :]) & set(node.args[0].dims)
                    found.append(Statistic(name, node, 0, over, once=once, follows=follows))
                else:
                    found.append(Statistic(name, node, 0, over, width=self.group_width(lost_axes(node))))
            stage[id(node)] = own
        rows = sorted((s for s in found if s.over == "row"), key=lambda s: s.stage)
        over_rows = (s for s in found if s.over in ("column", "total"))
        return tuple(rows), tuple(over_rows), tuple(s for s in found if s.over == "group")
