"""The JAX function of an op: a `custom_vjp` with a batching rule, and the choice of the implementation in it.

In reading order:
  declare         the decorator in generated files
  op              an op of one kernel
  differentiable  the layers of its JAX function
  staged          an op of several kernels
  gemm_op         an op that contracts
  by_graph        attention, whose jnp form is its graph
  derived         an op that is generated with another
  backward        the backward: saved values, kernels, XLA's products
  by_index        sums by index, as a JAX function of their own
  batching        `vmap`
  aliases         outputs in the buffers of donated inputs
  export          `codegen export`
"""
