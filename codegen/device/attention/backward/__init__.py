"""The gradients of attention: for every architecture since Ampere, and for Hopper by two kernels or by one.

In reading order:
  sm80   two kernels, for every architecture since Ampere
  sm90   two kernels for Hopper
  joint  one kernel for Hopper
  keys   the gradients of k and v, for both
  pairs  gradients of values of scores, such as a bias
  turns  sums to which blocks add in turns
"""
