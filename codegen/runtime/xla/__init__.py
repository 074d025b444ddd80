"""The jnp form: the same graph evaluated by XLA, where no kernel runs and as the epilogue of what XLA computes.

In reading order:
  by_position  the arrays of a call, shaped to broadcast
  evaluate     a chain's nodes in jnp
  products     matrix products
  loaded       factors converted from narrow elements
  scatter      writes by index, and gradients of reads by index
  scans        scans
  selections   top-k and sorts
  random       random numbers
  scales       powers of two
  slopes       derivatives that jnp lacks
"""
