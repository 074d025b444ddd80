"""What an op does and costs, for `codegen explain`, with nothing compiled.

In reading order:
  report      the whole report as data: graph, bytes, accesses, launches
  launching   one call's launch
  backward    the backward and the stages of an op
  traffic     the bytes that kernels move
  sums        sums by index after the stages
  phrases     what the words of all plans share
  words       a plan in words
  selections  the words of selections
  masks       the tiles that a mask leaves of attention
  work        instructions of each operation: a table that `benchmarks/work.py` wrote
  estimate    instructions of a kernel
  tables      the report as tables
  svg         the graph as a drawing
"""
