"""Kernels compiled, cached, and launched on a GPU or interpreted on the CPU.

In reading order:
  platform       architectures, and the choice of kernel or jnp form when a call is lowered
  launcher_call  one call of a generated launcher
  kernels        compiles it, caches it, launches it
  tracing        a faster trace by CuTe DSL
  passes         the compiler's passes up to PTX
  cubins         what machine code says of registers and spills
  signs          refuses PTX in which ptxas would lose a sign
  interpreted    `implementation="interpret"`
  by_index       the kernels of sums by index
"""
