"""Finds the parts of a model that could be one op, ranks them by the time they save, and puts ops in their place.

In reading order:
  graph     a function's steps as a graph: which step computes a value, and which use it
  prepared  the steps rewritten, before chains are searched
  cost      the memory traffic of steps
  chains/   sets of steps that one op computes
  losses    a loss that is computed to be differentiated
  known     the library's op for a chain
  running   steps run again, one by one
  loops     loops of the same length as one loop
  program   a function with ops for its chains
  sums      a loss that a loop adds up, computed to be differentiated
  fuse      `codegen.fuse`
  suggest   `codegen suggest`
"""
