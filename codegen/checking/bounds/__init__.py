"""Running error analysis of a chain: the allowed error of its float32 result, element by element.

In reading order:
  analysis    a chain's values and the bounds of their errors
  records     a value's bound; how numbers are computed, and the errors that this allows
  intervals   how far a function moves within an interval
  reductions  errors of reductions
  products    errors of matrix products
  scans       errors of scans
  selections  errors of values that are chosen by position
  twins       the operations in NumPy
"""
