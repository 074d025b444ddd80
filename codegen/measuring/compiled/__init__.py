"""Properties of a compiled kernel: registers, spills, accesses, and the instructions of its machine code.

In reading order:
  compile  compiles a generated kernel, and reads its properties
  tasks    compiles many at once, and prints them
  sass     the instructions of machine code
  limits   the least time that they take
"""
