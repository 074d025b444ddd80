"""The kernels of `plan/rows`: one module for each template.

In reading order:
  records    the values that templates show
  access     positions, registers and loads
  row        reductions along rows
  column     reductions over rows
  finishes   the kernels that reduce the blocks' partial results
  middle     reductions along middle axes
  scan       scans
  selection  selections, sorts, and their derivatives
  steps      steps of one kernel
"""
