"""The planner of ops that reduce: which kernel folds what, and what none of ours can do."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.errors import Diagnostic, SpecError
from codegen.ir import ROWS, Node, Statement, topological
from codegen.names import REDUCING_NAMES
from codegen.ops import COSTLY, REDUCTIONS
from codegen.plan import MAX_AXES, Access, Group, ModeOf, Names, Planner, Tokens, View, tokens_of
from codegen.reductions import Carried, Reduction, Statistic, axes_of
from codegen.spec import Spec

MAX_STAGES = 16


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Reduction:
    """The plan for a checked spec with a reduction. Raises `SpecError` where no kernel of ours can do it."""
    planner = _Reductions(spec, statements)
    problems = planner.refusals()
    if problems:
        raise SpecError(problems)
    return planner.plan()


class _Reductions(Planner):
    def __init__(self, spec: Spec, statements: tuple[Statement, ...]):
        super().__init__(spec, statements)
        used = {axis for node in self.nodes for axis in node.dims}
        taken = {n.attr for n in self.nodes if n.op == "take"}
        tables = {a for n in self.nodes if n.op == "take" for a in n.args[0].dims} & taken
        others = {a for n in self.nodes if n.op not in ("take", "input") for a in n.dims}
        self.axes = tuple(
            a for a in spec.axes if a in used and (a not in tables or a in others or self.reduced_over(a))
        )
        self.reduced = [n for n in self.nodes if n.op in REDUCTIONS]

    def reduced_over(self, axis: str) -> bool:
        return any(n.op in REDUCTIONS and axis in axes_of(n) for n in self.nodes)

    def refusals(self) -> list[Diagnostic]:
        """What no kernel does yet, or ever: one message for the first reason found."""
        if any(n.op == "contract" for n in self.nodes):
            return [self.mistake_in_chain({"contract"}, "no kernel for a contraction (@) yet", "")]
        checks = (
            self.refuse_stages,
            self.refuse_names,
            self.refuse_axes,
            self.refuse_orders,
            self.refuse_waiting,
            self.refuse_gathers,
            self.refuse_outputs,
            self.refuse_partial,
        )
        for check in checks:
            problem = check()
            if problem:
                return [problem]
        return []

    def split(self) -> int:
        """How many of the axes are a row's place: what stands before the axes reduced along a row, or after those reduced
        over rows."""
        along = [axes_of(n) for n in self.reduced if not self.leads(n)]
        if along:
            return min(self.axes.index(axis) for axis in along[0])
        return max(len(axes_of(n)) for n in self.reduced)

    def leads(self, node: Node) -> bool:
        """Whether a reduction is over the leading axes: the rows."""
        axes = axes_of(node)
        return axes == self.axes[: len(axes)] and (ROWS in axes or len(axes) < len(self.axes) or not self.trails_only())

    def trails_only(self) -> bool:
        """Whether everything reduced is along one set of trailing axes, so that a reduction over all axes is a row's."""
        return ROWS not in self.axes and all(axes_of(n) == self.axes[-len(axes_of(n)) :] for n in self.reduced)

    def refuse_axes(self) -> Diagnostic | None:
        sets = {axes_of(n): n for n in self.reduced}
        for axes, node in sets.items():
            if axes != self.axes[: len(axes)] and axes != self.axes[-len(axes) :]:
                names = ", ".join(axes)
                message = f"no kernel reduces over {names} and keeps axes on both sides of {'it' if len(axes) == 1 else 'them'}"
                return self.mistake_in_chain({node.op}, message, f"the axes in order: {', '.join(self.axes)}")
        rows = {axes for axes, n in sets.items() if not self.leads(n)}
        columns = {axes for axes, n in sets.items() if self.leads(n)}
        for group in (rows, columns):
            if len(group) > 1:
                a, b = sorted(group, key=len)[:2]
                message = f"no kernel reduces over {', '.join(a)} and over {', '.join(b)} in one op"
                return self.mistake_in_chain({sets[a].op}, message, "make two ops of it")
        if rows and columns and len(next(iter(rows))) + len(next(iter(columns))) != len(self.axes):
            a, b = next(iter(rows)), next(iter(columns))
            message = f"no kernel reduces over {', '.join(a)} and over {', '.join(b)} in one op"
            return self.mistake_in_chain({sets[a].op}, message, "make two ops of it")
        return None

    def refuse_orders(self) -> Diagnostic | None:
        for array in self.spec.arrays:
            if tuple(a for a in self.spec.axes if a in array.axes) != array.axes:
                message = f"{array.name!r} is {array}, but other arrays have these axes in another order"
                return self.mistake(message, "a kernel that reduces does not transpose: give all the same order", array)
        if len(self.axes) > MAX_AXES:
            return self.mistake(f"{len(self.axes)} axes; a kernel has at most {MAX_AXES}", "", self.spec.outputs[0])
        return None

    def refuse_waiting(self) -> Diagnostic | None:
        """What would need every row to wait for all others."""
        columns = {id(n): n for n in self.reduced if self.leads(n)}
        late: set[int] = set()
        for node in self.nodes:
            if id(node) in columns or any(id(a) in late for a in node.args):
                late.add(id(node))
        place = self.split()
        row_axes = set(self.axes[:place])
        for node in self.nodes:
            needs = id(node) in late and (
                row_axes & set(node.dims) or (node.op in REDUCTIONS and id(node.args[0]) in late)
            )
            if needs:
                op = next(n.op for n in columns.values())
                message = f"every row would wait for all others: this needs a reduction ({op}) over {', '.join(self.axes[:place])}"
                return self.mistake_in_chain({op}, message, "make two ops: one that reduces, one that takes its result")
        return None

    def refuse_names(self) -> Diagnostic | None:
        """Parameters keep their names in the kernel."""
        for param in self.spec.params:
            if param.name in REDUCING_NAMES:
                message = f"{param.name!r} cannot name a parameter here: a kernel that reduces uses it"
                return self.spec.source.diagnostic(self.spec.chain.span, message, "pick another name")
        return None

    def refuse_stages(self) -> Diagnostic | None:
        """Statistics that need others that need others ... each cost the row another pass."""
        depth: dict[int, int] = {}
        for node in self.nodes:
            depth[id(node)] = max((depth[id(a)] for a in node.args), default=0) + (node.op in REDUCTIONS)
            if depth[id(node)] > MAX_STAGES:
                message = f"more than {MAX_STAGES} reductions one after the other, each of the one before"
                return self.mistake_in_chain({node.op}, message, "make several ops of it")
        return None

    def refuse_gathers(self) -> Diagnostic | None:
        """Tables are read at one place a row."""
        place = self.split()
        for node in self.nodes:
            if node.op == "take" and set(node.args[1].dims) & set(self.axes[place:]):
                message = f"no kernel that reduces gathers at an index along {', '.join(self.axes[place:])}"
                return self.mistake_in_chain({"take"}, message, "an index of such an op has one value a row")
        return None

    def refuse_outputs(self) -> Diagnostic | None:
        place = self.split()
        row_axes, column_axes = self.axes[:place], self.axes[place:]
        known = {a for array in self.spec.inputs if array.default is None for a in array.axes} | set(self.spec.extents)
        values = {s.name: s.value for s in self.statements}
        columns = {id(n) for n in self.reduced if self.leads(n)}
        for output in self.spec.outputs:
            for axis in output.axes:
                if axis not in known:
                    message = f"the axis {axis} of {output.name!r} is on no input that is always there"
                    return self.mistake(message, "its extent would be unknown: give such an input that axis", output)
            over_rows = any(id(n) in columns for n in topological([values[output.name]]))
            wanted = [column_axes] if over_rows else [(*row_axes, *column_axes), row_axes]
            if output.axes not in wanted:
                what = f"{'column' if over_rows else 'row'} reductions here give {' or '.join(_brackets(w) for w in wanted)}"
                return self.mistake(f"{output.name!r} is {output}, but {what}", "make it an op of its own", output)
        return None

    def refuse_partial(self) -> Diagnostic | None:
        """A reduction over everything walks through its arrays as they lie in memory."""
        if self.split() < len(self.axes):
            return None
        for array in self.spec.arrays:
            if array.axes and (array.axes != self.axes or array.parts):
                message = f"no kernel reduces over everything where an array, {array.name!r}, is {array}"
                return self.mistake(
                    message, f"arrays of such an op are scalars, or have all of {', '.join(self.axes)}", array
                )
        if any(n.op in ("index", "size", "take") for n in self.nodes):
            return self.mistake_in_chain(
                {"index", "size", "take"}, "no kernel that reduces over everything has places", ""
            )
        return None

    def plan(self) -> Reduction:
        if self.split() == len(self.axes):
            return self.everything()
        apart = {n.attr for n in self.nodes if n.op in ("index", "size")}
        place = self.split()
        groups = self.groups(apart, self.axes[place] if place < len(self.axes) else None)
        kept = sum(set(g.axes) <= set(self.axes[:place]) for g in groups)
        tokens = {a.name: tokens_of(a, groups) for a in self.spec.arrays}
        views = tuple(View(a, tokens[a.name]) for a in self.spec.arrays)
        names = Names(self.spec, self.statements)

        def mode(own: tuple[int | str, ...]) -> str:
            columns = [t for t in own if isinstance(t, int) and t >= kept]
            if not columns:
                return "row"
            tail = own[:-1] if own[-1] == "parts" else own
            return "flat" if tail[-(len(groups) - kept) :] == tuple(range(kept, len(groups))) else "gather"

        loads = tuple(self.load(node, tokens, groups, names, mode) for node in self.leaves())
        stores = self.stores(tokens, names, mode)
        rows, columns = self.statistics(names)
        kind = "row+column" if rows and columns else "row" if rows else "column"
        return Reduction(
            kind,
            groups,
            kept,
            views,
            loads,
            stores,
            rows,
            columns,
            self.carried(rows, columns, groups[kept:], names),
            self.axes,
            False,
        )

    def everything(self) -> Reduction:
        """The plan of an op that reduces over all axes: its arrays as one long row."""
        groups = (Group("rows", ()), Group("cols", ()))
        names = Names(self.spec, self.statements)
        tokens = {a.name: (0, 1) if a.axes else () for a in self.spec.arrays}
        views = tuple(View(a, tokens[a.name]) for a in self.spec.arrays)

        def mode(own: tuple[int | str, ...]) -> str:
            return "flat" if own else "row"

        loads = tuple(self.load(node, tokens, groups, names, mode) for node in self.leaves())
        stores = self.stores(tokens, names, mode)
        return Reduction("column", groups, 1, views, loads, stores, *self.statistics(names), (), self.axes, True)

    def stores(self, tokens: Mapping[str, Tokens], names: Names, mode_of: ModeOf) -> tuple[Access, ...]:
        """How the outputs are reached, in the order of the chain."""
        outputs = {o.name for o in self.spec.outputs}
        return tuple(
            Access(
                names.beside(s.name, REDUCING_NAMES) if s.part is None else names.part(s.name, s.part),
                self.spec.array(s.name), s.part, mode_of(tokens[s.name]), tokens[s.name],
            )
            for s in self.statements if s.name in outputs
        )  # fmt: skip

    def carried(
        self,
        rows: tuple[Statistic, ...],
        columns: tuple[Statistic, ...],
        column_groups: tuple[Group, ...],
        names: Names,
    ) -> tuple[Carried, ...]:
        """Values of each column that need a costly operation and that more than one pass over a row needs: the last such
        value of a chain of them."""
        if columns:
            return ()
        along = {axis for group in column_groups for axis in group.axes}

        def of_row(node: Node) -> bool:
            return not along & set(node.dims)

        stages = 1 + max(s.stage for s in rows)
        roots = [[s.operand for s in rows if s.stage == i] for i in range(stages)]
        roots.append([s.value for s in self.statements if any(s.name == o.name for o in self.spec.outputs)])
        passes: dict[int, set[int]] = {}
        dear: set[int] = set()
        for number, values in enumerate(roots):
            for node in topological([v for v in values if not of_row(v)], of_row):
                passes.setdefault(id(node), set()).add(number)
                if not of_row(node) and (node.op in COSTLY or any(id(a) in dear for a in node.args)):
                    dear.add(id(node))
        shared = {i for i, found in passes.items() if len(found) > 1}
        below = {id(a) for n in self.nodes if id(n) in shared for a in n.args}
        chain = {id(s.value): s.name for s in self.statements}
        found = []
        for node in self.nodes:
            if id(node) in shared and id(node) in dear and id(node) not in below and node.kind == "float":
                name = names.beside(chain.get(id(node)) or names.statistic("value", id(node)), REDUCING_NAMES)
                found.append(Carried(name, node, min(passes[id(node)])))
        return tuple(found)

    def take_mode(self, index: Tokens, table: Tokens, axis: str, groups: tuple[Group, ...], mode_of: ModeOf) -> str:
        """An index of a row picks that row's own place in the table."""
        return mode_of(tuple(t for t in table if not (isinstance(t, int) and axis in groups[t].axes)))

    def statistics(self, names: Names) -> tuple[tuple[Statistic, ...], tuple[Statistic, ...]]:
        """The reductions, named as the chain names them, in the order of their stages."""
        chain = {id(s.value): s.name for s in self.statements if s.name not in {o.name for o in self.spec.outputs}}
        stage: dict[int, int] = {}
        rows, columns = [], []
        for node in self.nodes:
            own = max((stage[id(a)] for a in node.args), default=0)
            if node.op in REDUCTIONS:
                leads = self.leads(node)
                side = "column" if leads else "row"
                name = chain.get(id(node)) or names.statistic(f"{side}_{node.op}", id(node))
                name = names.beside(name, REDUCING_NAMES)
                if leads:
                    columns.append(Statistic(name, node, 0))
                else:
                    rows.append(Statistic(name, node, own))
                    own += 1
            stage[id(node)] = own
        return tuple(sorted(rows, key=lambda s: s.stage)), tuple(columns)


def _brackets(axes: tuple[str, ...]) -> str:
    return f"[{', '.join(axes)}]"
