"""Properties of a compiled kernel: registers, spills, accesses, and the instructions of its machine code.

In reading order:
  variants  the kernels that calls of an op can need
  compile   compiles one of them, and reads its properties
  accesses  its loads and stores of each array
  tasks     compiles many at once, and prints them
  sass      the instructions of machine code
  limits    the least time that they take
"""
