"""Kernels that work along rows or down columns: reductions, scans, selections.

In reading order:
  access      how a kernel that reduces reaches its arrays, and the order of its statistics
  sides       what is reduced along a row, and what over rows
  reducing    the planner: what no kernel can do, and the plan
  launching/  the launches of kernels that reduce
  reductions  the plan of reductions along rows, over rows, or both, and its launches
  holding     the values that a kernel holds from one sweep over a row to the next
  middle      reductions along axes before the innermost ones
  strided     reductions along the innermost axis and others that do not come before it
  single      rows that all SMs share if they are long
  scanning    scans
  selecting   top-k, sorts, and their derivatives
  steps       several of these one after the other in one kernel
"""
