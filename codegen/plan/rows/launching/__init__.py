"""The launches of kernels that reduce: threads, what they hold, and where.

In reading order:
  cost     a model of an SM, which chooses the launch of a row kernel
  walking  launches of kernels that loop over rows, where blocks have all columns
  tiling   the same, where no block has all columns
  along    launches of kernels that reduce along rows
"""
