"""Device functions of kernels that select the largest elements of a row, in order, and of the kernels of their
derivatives.

An element has a key, a number of up to 32 bits in the same order as the values, and its position in the row. The key 0 with a
position past the row stands for no element. All threads of a row come to the same decisions.

`rows` has what they share, `largest` the choice of how to select: in `turns`, by a `bound`, or by `pieces`. `placing` has what is read
and written at positions.
"""

from codegen.device.select.bound import candidate
from codegen.device.select.largest import top_k
from codegen.device.select.placing import clear, held_at, is_cleared, put, value_at, write_placed
from codegen.device.select.rows import (
    first_row,
    grid,
    keys_of,
    meet,
    memory,
    own_row,
    own_rows,
    row,
    rows_of_block,
    value_of,
)

__all__ = [
    "candidate",
    "clear",
    "first_row",
    "grid",
    "held_at",
    "is_cleared",
    "keys_of",
    "meet",
    "memory",
    "own_row",
    "own_rows",
    "put",
    "row",
    "rows_of_block",
    "top_k",
    "value_at",
    "value_of",
    "write_placed",
]
