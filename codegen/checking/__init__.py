"""Property tests of ops: random calls, each output compared with the reference within an allowed error that the
formulas give.

In reading order:
  draw          random calls
  testing       the tests that a build writes: values, gradients
  expected      the reference's result of a call, and its allowed error
  errorbound    running error analysis of a chain, element by element
  bounds        its records and constants
  intervals     how far a function moves within an interval
  productbound  errors of matrix products
  scanbound     errors of scans
  twins         the operations in NumPy
  rounding      random rounding errors, for gradients
  gradients     gradients compared with those of the reference
  agreement     the comparison, and its report
  verify        `codegen verify`
"""
