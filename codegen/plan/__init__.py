"""Plans: frozen decisions about how one kernel computes a chain, or the error that says why no kernel can.

Each kind of kernel has a plan and a planner; `stages/choose.py` tries the kinds. A plan's `launch` adds what a call
decides.

In reading order:
  access       how an element's position becomes an array's address
  planner      the part that all planners share
  launches     the records of what a call decides
  nearby       expensive values that neighbouring rows share
  elementwise  element-wise kernels, also with arrays in different orders of axes
  rows/        kernels along rows or down columns: reductions, scans, selections
  gemms/       matrix products and their epilogues
  attending    finds attention in a chain
  scales       numbers that multiply or divide its scores
  attention    attention's kernels, and those of its gradients
  chain_parts  a part of attention's chain as a spec of its own
  by_index     sums of rows by index
  limits       what kernels cannot do: dtypes, buffers of inputs, sizes
  op           `Op`: a spec with its graph, reference and plan; the input of everything after planning
"""
