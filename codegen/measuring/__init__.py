"""What kernels cost: times on a GPU, and properties of compiled code without one.

The modules:
  compiled/  what a compiled kernel reads, writes and spills
  times/     times on a GPU, tables and charts
  tune/      the search for launches
  explained  accesses counted in the interpreter, for `codegen explain --interpret`
"""
