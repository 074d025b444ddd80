"""Plans that select, sort, or write at selected positions, in words."""

from __future__ import annotations

from codegen.explain.phrases import along, coordinate_words, value_name
from codegen.plan.access import Access
from codegen.plan.rows.selecting import Selection
from codegen.plan.rows.steps import Steps


class SelectionWords:
    def __init__(self, plan: Selection):
        self.plan = plan

    def kind(self) -> str:
        how = self.plan.selected
        return f"selection: the largest {how.count} elements along {along(how.axes)}, in order; each warp or block has one row, and reads it a second time unless registers hold it"

    def groups(self) -> str:
        rows, into, axis = (along(g.axes) for g in self.plan.groups)
        return f"{rows or 'one row'}, from whose elements along {axis} those along {into} are selected"

    def access(self, access: Access) -> tuple[str, str, str]:
        name = value_name(self.plan, access)
        if access in self.plan.loads:
            return name, "whole vectors, in the order of memory", "whole vectors, each made from two aligned ones"
        return name, "one by one, at the place that an element has among the selected ones", "the same"

    def ragged(self) -> str:
        return f"where {along(self.plan.selected.axes)} is not a multiple of a thread's elements, vectors are each made from two aligned ones"


class StepsWords(SelectionWords):
    plan: Steps

    def kind(self) -> str:
        how = self.plan.selected
        return (
            f"selection in {len(self.plan.steps)} steps: what is computed along {along(how.axes)}, the largest {how.count} elements, what is "
            "computed of these; each warp or block has one row, and shared memory for what a step writes for a later one"
        )

    def groups(self) -> str:
        rows, into, axis = (along(a for g in some for a in g.axes) for some in self.plan.parts_of_groups)
        return f"{rows}, from whose elements along {axis} those along {into} are selected"

    def access(self, access: Access) -> tuple[str, str, str]:
        return value_name(self.plan, access), "by one of the steps", "the same"

    def ragged(self) -> str:
        return "vectors are as wide as divides a row"


class SortWords(SelectionWords):
    def kind(self) -> str:
        return f"sort: the elements along {along(self.plan.selected.axes)}, smallest first; each warp or block has one row, which is read once"

    def groups(self) -> str:
        rows, axis = (along(g.axes) for g in self.plan.groups)
        return f"{rows or 'one row'}, whose elements along {axis} are sorted"

    def access(self, access: Access) -> tuple[str, str, str]:
        if access in self.plan.loads:
            return super().access(access)
        return value_name(self.plan, access), "one by one: neighbouring elements by neighbouring threads", "the same"


class ThresholdWords(SelectionWords):
    def kind(self) -> str:
        axis = along(self.plan.selected.axes)
        return (
            f"threshold: the least of the largest elements along {axis} that sum to a mass; a warp or a block has a row, in registers or "
            "read again for every two bits of the result"
        )

    def groups(self) -> str:
        rows, axis = (along(g.axes) for g in self.plan.groups)
        return f"{rows or 'one row'}, of whose elements along {axis} one is found"

    def access(self, access: Access) -> tuple[str, str, str]:
        if access is self.plan.loads[0]:
            return super().access(access)
        return value_name(self.plan, access), "one element a row", "the same"


class PlacementWords(SelectionWords):
    def kind(self) -> str:
        how = self.plan.selected
        return f"selection's derivative: {how.count} values along {along(how.axes)}, and zeros elsewhere; each warp or block writes one row"

    def groups(self) -> str:
        rows, into, axis = (along(g.axes) for g in self.plan.groups)
        return f"{rows or 'one row'}, in which the values along {into} are written to positions along {axis}"

    def access(self, access: Access) -> tuple[str, str, str]:
        if access.array is None:
            return value_name(self.plan, access), *coordinate_words(access)
        name = value_name(self.plan, access)
        if access in self.plan.loads:
            return name, "one by one: neighbouring elements by neighbouring threads", "the same"
        return name, "zeros in whole vectors, then one by one at the positions", "zeros one by one too"

    def ragged(self) -> str:
        return f"where {along(self.plan.selected.axes)} is not a multiple of a vector, zeros are written one by one"


class PermutationWords(PlacementWords):
    def kind(self) -> str:
        return f"sort's derivative: the values along {along(self.plan.selected.axes)} at other positions; each warp or block has one row"

    def groups(self) -> str:
        rows, axis = (along(g.axes) for g in self.plan.groups)
        return f"{rows or 'one row'}, whose values along {axis} are written to other positions"

    def access(self, access: Access) -> tuple[str, str, str]:
        found = super().access(access)
        return (
            found
            if access.array is None or access in self.plan.loads
            else (found[0], "one by one at the positions", "the same")
        )

    def ragged(self) -> str:
        return "values are read and written one by one"
