"""Property tests of ops: random calls, each output compared with the reference within an allowed error that the
formulas give.

In reading order:
  draw       random calls
  testing    the tests that a build writes: values, gradients
  expected   the reference's result of a call, and its allowed error
  bounds/    running error analysis of a chain, element by element
  rounding   random rounding errors, for gradients
  gradients  gradients compared with those of the reference
  agreement  the comparison, and its report
  verify     `codegen verify`
"""
