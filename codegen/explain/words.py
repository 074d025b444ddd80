"""A kernel's plan in words, for `explain`: one class for each kind of plan."""

from __future__ import annotations

from typing import Any

from codegen.errors import UserError
from codegen.explain.phrases import Words, along, axis_word, coordinate_words, listed, value_name
from codegen.explain.selections import (
    PermutationWords,
    PlacementWords,
    SelectionWords,
    SortWords,
    StepsWords,
    ThresholdWords,
)
from codegen.graph.nodes import lost_axes
from codegen.plan.access import Access
from codegen.plan.attention import Attention, AttentionBackward, AttentionPlan
from codegen.plan.elementwise import Elementwise
from codegen.plan.gemms.loading import Loaded
from codegen.plan.op import AnyPlan, Gemm, Staged
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.scanning import Scan
from codegen.plan.rows.selecting import Permutation, Placement, Selection, Sort, Threshold
from codegen.plan.rows.steps import Steps


def words(plan: AnyPlan) -> Words:
    """The words of a plan."""
    if isinstance(plan, Staged):
        return StagedWords(plan)
    if isinstance(plan, Gemm):
        return GemmWords(plan)
    if isinstance(plan, AttentionPlan):
        return AttentionWords(plan)
    if isinstance(plan, Placement):
        return PermutationWords(plan) if isinstance(plan, Permutation) else PlacementWords(plan)
    if isinstance(plan, Threshold):
        return ThresholdWords(plan)
    if isinstance(plan, Steps):
        return StepsWords(plan)
    if isinstance(plan, Selection):
        return SortWords(plan) if isinstance(plan, Sort) else SelectionWords(plan)
    return ReductionWords(plan) if isinstance(plan, Reduction) else ElementwiseWords(plan)


def statistics_words(statistics: list[dict[str, Any]]) -> str:
    """The reductions of a report, stage by stage; empty without reductions."""
    stages: dict[Any, list[str]] = {}
    for s in statistics:
        ending = " in the same pass" if s["same_pass"] else ""
        stages.setdefault((s["over"], s["stage"]), []).append(f"{s['name']} = {s['value']}{ending}")
    named = {"row": "of a row", "group": "of groups in a row", "column": "of columns", "total": "of everything"}
    texts = []
    for kind, name in named.items():
        found = [listed(names) for (over, _), names in stages.items() if over == kind]
        texts += [f"{name}: {', then '.join(found)}"] if found else []
    return "; ".join(texts)


def scaled_words(scaled: dict[str, Any]) -> str:
    """Where the scales of a product's factor are multiplied, from an entry of the report, and why there."""
    scales = listed(scaled["scales"])
    if scaled["why"]:
        return f"a kernel before the product multiplies {scaled['factor']} by {scales}: {scaled['why']}"
    return (
        f"the epilogue multiplies the product of {scaled['factor']} by {scales}: no scaled copy of a factor is written"
    )


def loaded_words(how: Loaded) -> str:
    """How a kernel reads a factor in narrow elements."""
    words = ["numbers of 4 bits"] if how.how.bits == 4 else []
    words += [f"times {how.scale.name}, one for each {how.how.group}"] if how.scale is not None else []
    return f"({', '.join(words)}) " if words else ""


def whole_of_rows(plan: AnyPlan) -> tuple[str, ...]:
    """The axes along which a block has all elements of some rows."""
    if isinstance(plan, Steps):
        return plan.selected.axes
    (axes,) = {lost_axes(s.node) for s in plan.rows}
    return axes


class ElementwiseWords:
    def __init__(self, plan: Elementwise):
        self.plan = plan

    def kind(self) -> str:
        if isinstance(self.plan, Scan):
            way = f"{'from the end ' if self.plan.along.reverse else ''}along {self.plan.along.axis}"
            text = f"scan: {listed(dict.fromkeys(n.op for n in self.plan.scans))} {way}, with the element-wise formulas"
            if self.plan.states:
                sizes = listed(f"{axis} = {size}" for axis, size in self.plan.states)
                text += f"; a thread has all states of an element ({sizes}), and reduces them in registers"
            if self.plan.back:
                text += "; a first kernel goes the other way, and writes the states before each of a thread's tiles"
            if self.plan.across:
                axes = listed(map(axis_word, self.plan.groups[-1].axes))
                text += f"; warps sum along {axes}, and a kernel for each of these outputs adds up their sums"
            return text
        what = "no reduction and no contraction, so an output element needs one element of each input or part"
        return f"{self.plan.kind}: {what}"

    def groups(self) -> str:
        plan = self.plan
        if plan.collapsed:
            return "every array has the same axes in the same order, or none: the kernel sees one long vector"
        if not plan.groups:
            return "every array is a scalar: one element"
        groups = [along(g.axes) for g in plan.groups]
        if not plan.coordinates:
            return f"{' and '.join(groups)}; no access needs a coordinate"
        used = listed(groups[i] for i in plan.coordinates)
        return (
            f"{listed(groups)} (axes that all arrays have together are one); a thread computes its position in {used}"
        )

    def access(self, access: Access) -> tuple[str, str, str]:
        name, array = value_name(self.plan, access), access.array
        if array is None:
            return name, *coordinate_words(access)
        if access.mode == "table":
            return name, "one by one, at the computed index: small tables stay in the L1 cache", "the same"
        if access.index_of:
            index, axis = access.index_of
            inner = {"tile": "whole vectors", "scalar": "one value for the whole vector"}.get(access.mode, "one by one")
            return name, f"{inner}, where {index} points along {axis}", "element by element"
        if access.mode == "flat":
            one = f", {array.parts} neighbouring parts together" if array.parts else ""
            ragged = "whole vectors, except the last of the array"
            if self.plan.turned is not None and access in self.plan.stores:
                ragged = "whole vectors at any alignment, except a row's first and last"
            return name, f"whole vectors, in the order of memory{one}", ragged
        if access.mode == "tile":
            last = self.plan.groups[-1].axes[-1]
            where = f"part {access.part}" if access.part is not None else f"its own place along {last}"
            return name, f"whole vectors, from {where}", "element by element"
        if access.mode == "turned":
            last = self.plan.groups[access.tokens[-1]].axes[-1]  # type: ignore[index]
            how = f"whole vectors along {last}: a thread's tile of several rows is transposed in registers"
            return name, how, "whole vectors at any alignment, except a row's first and last"
        if access.mode == "scalar":
            return name, "one value for the whole vector", "one value per element"
        return name, "element by element: its neighbours are not neighbours in memory", "the same"

    def ragged(self) -> str:
        plan = self.plan
        if plan.collapsed or not plan.coordinates:
            return (
                "where the element count is not a multiple of a thread's elements, the last ones are handled one by one"
            )
        found = [(self.access(a), a.mode) for a in (*plan.loads, *plan.stores)]
        slow = list(dict.fromkeys(name for (name, _, ragged), _ in found if ragged == "element by element"))
        fast = list(dict.fromkeys(name for (name, _, _), mode in found if mode == "flat"))
        inner = along(plan.groups[-1].axes)
        text = f"where {inner} is not a multiple of a thread's elements, so that a vector may cross the end of a row, "
        text += f"{listed(fast)} keep{'s' * (len(fast) == 1)} wide accesses" if fast else "no array keeps wide accesses"
        return text + (f"; {listed(slow)} go{'es' * (len(slow) == 1)} element by element" if slow else "")


class ReductionWords:
    def __init__(self, plan: Reduction):
        self.plan = plan

    def kind(self) -> str:
        plan = self.plan
        sets: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for word, found in (("along", plan.rows), ("within a row along", plan.inner), ("over", plan.columns)):
            for s in found:
                sets.setdefault((word, lost_axes(s.node)), []).append(s.op)
        both = [f"{listed(dict.fromkeys(ops))} {word} {along(axes)}" for (word, axes), ops in sets.items()]
        how = ["the threads that share a row reduce it together"] if plan.rows else []
        if plan.columns:
            second = "a second kernel" if plan.kernels == 2 else "further kernels"
            when = "where it has all rows of a place" if plan.apart else "in a small call"
            second += f", or {when} the first block of a cluster," if plan.meets else ""
            how.append(f"each block reduces its rows, and {second} the blocks' partial results, in a fixed order")
        if plan.by_place:
            how.append("few rows at each of many places take one kernel, whose threads reduce all rows of a place")
        if plan.first is not None:
            how.append("rows too long for a block or a cluster are read twice: a first kernel reduces along them")
        return f"{plan.kind}: {listed(both)}; {'; '.join(how)}"

    def groups(self) -> str:
        plan = self.plan
        kept, columns = (
            listed(along(g.axes) for g in groups) or "nothing" for groups in (plan.row_groups, plan.column_groups)
        )
        return f"row index: {kept}; column index: {columns}"

    def access(self, access: Access) -> tuple[str, str, str]:
        plan, name = self.plan, value_name(self.plan, access)
        if access.array is None:
            return name, *coordinate_words(access)
        taken = "" if access.index_of is None else f", where {access.index_of[0]} points along {access.index_of[1]}"
        if access.mode == "row":
            return name, f"one value per row{taken}", "the same"
        if access.mode == "gather" and access in plan.stores:
            return name, "element by element, one value for columns that share it", "the same"
        if access.mode == "gather":
            return name, f"element by element{taken}: its neighbours are not neighbours in memory", "the same"
        rows = any(isinstance(t, int) and t < plan.leading for t in access.tokens) or plan.leading == 0
        of = " of each row" if rows else ", the same for every row"
        end = "except at the ends of a row"
        if plan.shifts and plan.aligned(access):
            return name, f"whole vectors{of}{taken}", f"whole vectors where memory is aligned, {end}"
        return name, f"whole vectors{of}{taken}", f"each vector from the two in memory that contain it, {end}"

    def ragged(self) -> str:
        if not self.plan.column_groups:
            return "nothing is read in vectors: all sizes are equally fast"
        columns = " or ".join(along(g.axes) for g in self.plan.column_groups)
        text = (
            f"where {columns} is not a multiple of the vector width, accesses stay wide; elements of a vector outside the "
            "row are neither read nor written, and do not count in a reduction"
        )
        runs = "; short rows, and rows whose vectors would be shifted, are loaded and stored through shared memory"
        return text + (runs if self.plan.by_runs else "")


class AttentionWords:
    """The words of attention."""

    def __init__(self, plan: AttentionPlan):
        self.plan = plan

    def kind(self) -> str:
        plan = self.plan
        if isinstance(plan, AttentionBackward):
            return self.gradients(plan)
        assert isinstance(plan, Attention)
        first, second = plan.products
        what = f"{first.a.name} @ {first.b.name} over {plan.contracted}, then {second.b.name} over {self.columns}"
        how = f"each block has rows along {plan.row}, and loops over tiles along {self.columns}; no array of {plan.row} x {self.columns} is written"
        if plan.pages:
            found = [f"{p.table.name} where {p.index.name} points along {p.axis}" for p in plan.pages]
            how += f"; it reads the rows of {' and of '.join(found)}, page by page"
        if plan.rows_part is not None:
            exponential = "; a row's maximum and sum are updated tile by tile (online softmax)"
            how += exponential if plan.exponential else "; a row's weights are added up tile by tile"
        if plan.condition is not None:
            how += "; a tile in which the mask holds nowhere is skipped, and one in which it holds everywhere is computed without it"
        return f"{plan.kind}: {what}: {how}"

    @property
    def columns(self) -> str:
        return " x ".join(self.plan.keys)

    def gradients(self, plan: AttentionBackward) -> str:
        dq, dk, dv = (a.name for a in plan.gradients)
        how = (
            f"a first kernel, whose blocks have rows along {self.columns}, gives {dk} and {dv}; a second one, whose blocks have rows "
            f"along {plan.row}, {dq}; both compute the scores again, and no array of {plan.row} x {self.columns} is written"
        )
        if not plan.along_rows:
            how += (
                f"; on Hopper, one kernel gives all three where heads have at most 128 elements: blocks have rows along "
                f"{self.columns}, and add to {dq} in turns"
            )
        if plan.condition is not None:
            how += "; a tile in which the mask holds nowhere is skipped, and one in which it holds everywhere is computed without it"
        return f"{plan.kind}: the gradients of its products: {how}"

    def groups(self) -> str:
        return f"a batch of {along(self.plan.batch) or 'one'}, each with rows along {self.plan.row} and columns along {self.columns}"

    def access(self, access: Access) -> tuple[str, str, str]:
        name = value_name(self.plan, access)
        if access.array is None:
            return name, *coordinate_words(access)
        if access.array in self.plan.vectors:
            return name, "whole rows, in vectors of 16 bytes, through shared memory", "the same"
        return name, "element by element, where a score or a row needs it", "the same"

    def ragged(self) -> str:
        plan = self.plan
        heads = " or ".join(dict.fromkeys((plan.contracted, plan.value)))
        return f"rows and columns past the last in a tile are neither read nor written; where {heads} is not a multiple of 8 up to 256, the jnp form runs"


class GemmWords:
    """The words of a contraction: its own for the products, its epilogue's for everything else."""

    def __init__(self, plan: Gemm):
        self.plan, self.epilogue = plan, words(plan.epilogue.plan)

    def kind(self) -> str:
        products = listed(
            f"{p.acc.name} = {p.a.name} @ {p.b.name} over {listed(map(axis_word, p.axes))}"
            + ("" if p.loaded is None else f", {p.b.name} {loaded_words(p.loaded)}converted to {p.a.dtype}")
            for p in self.plan.products
        )
        tile = self.plan.tile
        how = "on sm_90a its epilogue in the same kernel, where a row's bytes are a multiple of 16 and that is faster; else after XLA's matmul"
        if isinstance(tile, UserError):
            how = f"its epilogue in a kernel after XLA's matmul: {tile.message}"
        elif tile.segments is not None:
            how += f"; registers reduce {listed(dict.fromkeys(tile.segments.ops))} along {tile.column} before it, where a tile has whole ones: 64, 128 or 256 columns of {self.plan.products[0].b.name}"
        elif tile.folds:
            how += f"; its tiles write partial results of {listed(dict.fromkeys(f.name for f in tile.folds))}, which are reduced after it"
        return f"{self.plan.kind}: {products}; {how}"

    def groups(self) -> str:
        return self.epilogue.groups()

    def access(self, access: Access) -> tuple[str, str, str]:
        return self.epilogue.access(access)

    def ragged(self) -> str:
        return self.epilogue.ragged()


class StagedWords:
    """The words of an op of several kernels: each stage has its own."""

    def __init__(self, plan: Staged):
        self.plan = plan

    def kind(self) -> str:
        made = {a.name for stage in self.plan.stages for a in stage.spec.outputs}
        waits = dict.fromkeys(a.name for stage in self.plan.stages for a in stage.spec.inputs if a.name in made)
        sums = "".join(
            f"; then {s.values.name}{f' * {s.factors.name}' if s.factors else ''} is summed by {s.at.index} into {s.output}, in a fixed order"
            if s.at.how == "add"
            else f"; then XLA's scatter writes the {s.at.how} of {s.values.name} by {s.at.index} into {s.output}"
            for s in self.plan.summed
        )
        why = (
            f"later kernels need {listed(waits)} from all blocks of earlier ones"
            if waits
            else "the outputs have different axes"
        )
        many = f"{len(self.plan.stages)} stages, one after the other, since {why}"
        found = f"{self.plan.kind}: {'one stage' if len(self.plan.stages) == 1 else many}{sums}"
        if (whole := self.plan.whole) is None:
            return found
        first, many = (
            (whole, "one kernel") if not isinstance(whole.plan, Staged) else (whole.plan.stages[0], "two kernels")
        )
        axes = whole_of_rows(first.plan)
        return f"{found}; or {many}, where a block has room for all elements along {along(axes)} of some rows"

    def groups(self) -> str:
        return "each stage has its own"

    def access(self, access: Access) -> tuple[str, str, str]:
        return value_name(self.plan, access), "in one of the stages", ""

    def ragged(self) -> str:
        return words(self.plan.stages[-1].plan).ragged()
