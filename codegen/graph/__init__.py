"""The typed graph that everything from the chain to the kernel's text works on: nodes with named axes.

In reading order:
  nodes        dtypes, axes, nodes, and the `Graph` that makes equal nodes one object
  ops          the table of operations: one row has all that is known of an operation
  names        the names that users may choose, and those that are taken
  emit         a graph as lines of Python: CuTe DSL on vectors, or jnp
  ranges       bounds of values
  positions    whether a condition on positions can hold, and how a number rises along an axis
  shifting     an expression evaluated at a neighbouring position
  online       sums of exponentials that need not wait for the row's maximum
  shifts       values on which no result depends, such as a softmax's maximum
  precision    which values may be approximate
  contraction  which products and sums must be rounded separately, never in a fused multiply-add
"""
