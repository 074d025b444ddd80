"""Kernels that work along rows or down columns: reductions, scans, selections.

In reading order:
  access      how a kernel that reduces reaches its arrays, and the order of its statistics
  reducing    the planner: what is reduced where, and what no kernel can do
  reductions  the plan of reductions along rows, over rows, or both, and its launches
  holding     the values that a kernel holds from one sweep over a row to the next
  cost        a model of an SM, which chooses the launch of a row kernel
  walking     launches of kernels that loop over rows, where blocks have all columns
  tiling      the same, where no block has all columns
  middle      reductions along axes before the innermost ones
  strided     reductions along the innermost axis and others that do not come before it
  single      rows that all SMs share if they are long
  scanning    scans
  selecting   top-k, sorts, and their derivatives
  steps       several of these one after the other in one kernel
"""
