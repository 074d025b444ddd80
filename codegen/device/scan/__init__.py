"""Device functions of kernels that scan along an axis.

Threads walk along the axis tile by tile. In a tile a thread has some elements that follow each other, and combines them. Then
threads exchange their partial results: lanes by shuffles where the axis is innermost, then warps through shared memory, then
blocks of a cluster through each other's. The states after a tile are carried to the next. Every combination has a fixed order:
two runs agree to the bit.

Where an element has many states, each scan of the kernel is as many scans of a thread, one after the other.

A scan in the other direction takes two kernels. The first goes in that direction, and writes the state before each thread's elements of
a tile (`starts`). The second goes in the direction of the other scans, with the same elements in each tile, and computes the
states from there (`states_back`).

In reading order:
  elements  a thread's elements along the axis, and their loads
  exchange  the states of scans
  sums      what is reduced of them: an element's states, or values along an axis
"""

from codegen.device.scan.elements import ahead, grid, positions, walk
from codegen.device.scan.exchange import carried, carried_states, states, states_back
from codegen.device.scan.sums import across, add, finish, finishing_grid, reduced, summed, totals

__all__ = [
    "across",
    "add",
    "ahead",
    "carried",
    "carried_states",
    "finish",
    "finishing_grid",
    "grid",
    "positions",
    "reduced",
    "states",
    "states_back",
    "summed",
    "totals",
    "walk",
]
