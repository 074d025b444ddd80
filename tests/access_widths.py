"""The accesses, spills and barriers of compiled kernels, against their plans."""

import re

from codegen.graph.nodes import DTYPES, topological
from codegen.measuring.compiled.compile import Compiled
from codegen.measuring.compiled.variants import Variant, launch_of
from codegen.plan.access import Access
from codegen.plan.planner import overrides
from codegen.runtime.compiled.cubins import blocks_that_fit
from codegen.runtime.compiled.kernels import MOST_SPILLED
from codegen.runtime.ops.op import Op
from codegen.targets import MOST_REGISTERS, REGISTER_UNIT

# Bytes of a thread's stack where ptxas itself takes fewer registers, so that one more block fits
TO_FIT_A_BLOCK = 24
# Bytes of spills, by the kind of kernel, where a thread has all registers that its block leaves: attention holds products, sums and what
# scores need; kernels that walk down rows hold rows in flight; others hold a row that they would read again
WHERE_FULL = {"attention": 768, "row+column": 448, "column": 448, "middle": 448, "row": 256}


def unexpected(op: Op, variant: Variant, arch: str, compiled: Compiled) -> list[str]:
    """What differs from the plan: widths of accesses, spills, and barriers whose numbers are no constants."""
    planned = Planned(op, variant, arch)
    found = {operand.name: operand for operand in compiled.operands}
    problems = []
    for access in (*op.plan.loads, *op.plan.stores):
        if access.array is None or access.array.name not in found:
            continue  # a coordinate, or an array that is left out for its default
        name = access.array.name
        widths = found[name].stores if access in op.plan.stores else found[name].loads
        if not planned.has(access, widths):
            whole = planned.whole(access)
            problems.append(f"{access.mode} {name} is accessed {widths} bytes at a time; a whole vector has {whole}")
    if compiled.spills and not has_reason_to_spill(op, variant, arch, compiled):
        problems.append(f"{compiled.spills} bytes of spills, {compiled.stack} of a stack")
    # Attention may have a block for each SM
    alone = op.plan.kind == "attention" and getattr(launch_of(op, variant, arch), "processors", 0)
    if re.search(r"bar\.sync\s+%", compiled.ptx) and not alone:
        problems.append("a barrier's number is no constant: a block has all 16, and an SM fewer blocks")
    return problems


def has_reason_to_spill(op: Op, variant: Variant, arch: str, compiled: Compiled) -> bool:
    """Whether a kernel spills no more than what takes less time than fewer blocks, or than reading again. An element-wise kernel of
    whole vectors holds nothing that it could spill."""
    how, registers, stack = launch_of(op, variant, arch), compiled.registers, compiled.stack
    if op.plan.kind == "elementwise" and not variant.ragged:
        return False
    if registers >= MOST_REGISTERS or not blocks_that_fit(how.threads, registers + REGISTER_UNIT):
        return compiled.spills <= WHERE_FULL.get(op.plan.kind, 0)
    if getattr(how, "resident", 0) and not compiled.unbound:  # the runtime keeps the bound
        return stack <= MOST_SPILLED
    return stack <= TO_FIT_A_BLOCK and blocks_that_fit(how.threads, registers + REGISTER_UNIT) < blocks_that_fit(
        how.threads, registers
    )


class Planned:
    """The widths that the sizes of the dtypes and the plan call for: of the arrays from which a thread loads whole vectors, the one
    with the widest type fills 16 bytes, and the others have as many elements at a time."""

    def __init__(self, op: Op, variant: Variant, arch: str):
        self.plan, self.ragged = op.plan, variant.ragged
        self.reads_rows = not any(s.value.op.startswith("unsort") for s in op.statements)
        self.together = {array.name: count for array, count in op.plan.full}
        self.sizes = {a.name: DTYPES[variant.types.dtype(a)].bits / 8 for a in op.spec.arrays}
        columns = {id(s.node) for s in op.plan.columns}
        self.folded = {s.name for s in op.statements if any(id(n) in columns for n in topological([s.value]))}
        # The width of one instruction on the architecture; loads with a condition of their own, as of a middle axis, have 16 bytes
        self.most_stored = 32 if int(arch[3:].rstrip("a")) >= 100 else 16
        self.most_loaded = 16 if op.plan.kind == "middle" else self.most_stored
        how = launch_of(op, variant, arch)
        self.by_runs, self.vectors = getattr(how, "by_runs", False), getattr(how, "vec", 1) > 1
        own = {a.name for a, _ in op.plan.full if op.plan.kind != "row" or variant.ragged or op.plan.order[0] in a.axes}
        wide = {n: count for n, count in self.together.items() if n in own} or self.together
        # what all rows share may be wider
        counts = (max(1, int(self.sizes[n])) * count for n, count in wide.items() if n not in self.folded)
        widest = max(counts, default=4)
        # Lanes with scans of their own have 4 bytes of a row each: a warp reads 128
        bytes_of_vector = 4 if getattr(how, "apart", False) else overrides(op.spec, arch).get("vector_bytes", 16)
        self.vec = max(1, bytes_of_vector // widest)
        scans = op.plan.kind == "scan"
        if variant.ragged and op.plan.kind != "elementwise" and not op.plan.columns and (widest >= 4 or scans):
            self.vec = 1  # elements of at least 4 bytes in whole rows, and elements that are scanned: none is shifted
        # Rows in shared memory are whole vectors there; the places of a middle axis and the lanes that scan say how many are neighbours
        if (self.by_runs and self.vectors) or op.plan.kind in ("middle", "selection") or getattr(how, "apart", False):
            self.vec = how.vec
        # A kernel that computes the rows' statistics before has vectors of its own
        first = None if getattr(how, "whole", True) else op.plan.first
        self.before = {} if first is None else {a.array: how.first.vec for a in first.loads}

    def whole(self, access: Access, vec: int | None = None) -> float:
        """The bytes of an array's whole vector, in one instruction."""
        name, most = access.array.name, self.most_loaded if access in self.plan.loads else self.most_stored
        return min(most, self.sizes[name] * self.together.get(name, 1) * (vec or self.vec))

    def wholes(self, access: Access) -> tuple[float, ...]:
        """The same in each kernel that reads the array, the widest first."""
        before = self.before.get(access.array) if access in self.plan.loads else None
        return tuple(sorted({self.whole(access), self.whole(access, before)}, reverse=True))

    def has(self, access: Access, widths: tuple[int, ...]) -> bool:
        """Whether an array is accessed as planned, with these widths, the most frequent first."""
        plan, name = self.plan, access.array.name
        size, loads = self.sizes[name], access in plan.loads
        if self.by_runs and access.mode == "flat" and name not in self.folded:
            # rows of their own in whole vectors and the ends of runs; what rows share in single columns, or, where vectors begin
            # with the row, in whole vectors and the row's end
            shared = self.vectors and widths == tuple(dict.fromkeys((*self.wholes(access), size)))
            return widths[:1] == (16,) if plan.of_row(access) else widths == (size,) or shared
        if plan.columns and loads and not plan.of_row(access) and widths in ((size,), (self.whole(access), size)):
            return True  # read by the finishing kernel, one column a thread, and perhaps by the first one in vectors
        if name in self.folded:
            # written by the finishing kernel, one column a thread; parts that are neighbours may be stored together
            return widths == (size,) or access.array.parts is not None
        if access.mode == "gather":
            return True  # one element at a time, or several where the compiler finds that they are neighbours
        if plan.kind == "selection" and access.mode == "flat":
            # a row in whole vectors, and elements that are read again; what is selected one element a thread, and a row of it
            # where it has another order
            row = set(plan.groups[-1].axes) <= set(access.array.axes)
            return (row and widths[:1] == (self.whole(access),)) or (
                widths == (size,) and not (row and loads and self.reads_rows)
            )
        modes = {a.mode for a in plan.loads if a.array == access.array}
        if plan.kind != "elementwise" and len(modes) > 1 and loads:
            # along the row in vectors, or one element at its own place
            return widths == tuple(dict.fromkeys((self.whole(access), size)))
        if plan.kind == "scan" and access in plan.crossed:
            return not widths  # a kernel that adds up the blocks' parts writes them
        if plan.kind == "scan" and loads and self.vec == 1 and plan.reads_states_together(access.array):
            # elements of neighbouring states: 4 bytes where each element of the thread has its own, else a vector
            most = 4 if plan.place in access.tokens else 16
            return widths == (max(size, min(most, size * plan.states[-1][1])),)
        if self.ragged:
            return self.has_where_ragged(access, widths)
        if access.mode in ("flat", "tile", "turned"):
            return widths == self.wholes(access)
        return access.array.parts is not None or widths == (size,)

    def has_where_ragged(self, access: Access, widths: tuple[int, ...]) -> bool:
        plan, name = self.plan, access.array.name
        size, whole = self.sizes[name], self.whole(access)
        rows = plan.kind != "elementwise"
        if access.mode == "flat" and rows and access.tokens[-1:] == ("parts",) and plan.columns:
            return widths[-1:] == (size,)  # interleaved parts with rows at any offset, element by element
        if access.mode == "flat" and rows:
            return widths[:1] == ((whole if size * self.together.get(name, 1) * self.vec % 4 == 0 else size),)
        if access.mode == "flat" and access in plan.stores and plan.turned is not None:
            return widths == (size,)  # of a tile that may have rows and columns outside
        if access.mode == "flat":
            return widths[:1] == (whole,)  # in addition to whole vectors, the ends of arrays element by element
        if access.into:
            return widths[-1:] == (size,)  # at places that an index gives, element by element
        if access.mode == "tile":
            # aligned vectors are shifted into place; ends of rows (and of warps that store) element by element; words
            # are shifted
            return widths[:1] == ((whole if size * self.vec % 4 == 0 else size),)
        return access.array.parts is not None or widths == (size,)
