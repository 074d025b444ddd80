"""The largest elements of a row."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from codegen.device.select.bound import candidates
from codegen.device.select.pieces import by_pieces
from codegen.device.select.rows import meet, own_of
from codegen.device.select.turns import take_in_turn
from codegen.shared import SelectLaunch


@cute.jit
def top_k(
    src: cute.Tensor, row: Int32, rows: Int32, columns: Int32, how: cutlass.Constexpr[SelectLaunch],
    shared: list[cute.Tensor],
) -> Int32:  # fmt: skip
    """Find the largest elements of a row of `columns` elements, of a compact tensor (rows, columns). Write to the row's
    shared memory, in no order, the positions of the elements that may be among them. Gives the number of these. Where
    elements are taken in turn, write the largest ones in order, where the selected ones are. All lanes of a warp take
    part; past the last row they read that again."""
    row = cutlass.select_(row < rows, row, rows - 1)
    found = Int32(0)
    if cutlass.const_expr(how.in_turn):
        take_in_turn(src, row, columns, how, shared)
    else:
        found = candidates(src, row, columns, how, shared)
        if found > how.few:
            meet(how.per_row)
            by_pieces(src, row, columns, how, shared)
            found = Int32(how.count)
            for c in cutlass.range_constexpr(how.held):
                slot = own_of(how) + c * how.per_row
                if slot < how.count:
                    shared[3][slot] = shared[1][slot]
        meet(how.per_row)
    return found
