"""One expression of a chain to the typed graph.

In reading order:
  reader      Python's syntax tree of an expression to nodes
  operations  nodes of operations, with the kinds of their arguments checked and constants computed
  calls       the functions with named arguments, such as `sum(x, axis=N)`: a table
  products    `a @ b`
  taken       `take` of what is computed from tables
  instead     hints for what jnp, NumPy and PyTorch have and the language does not
"""
