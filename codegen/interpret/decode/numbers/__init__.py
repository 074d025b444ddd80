"""Instructions on the registers of one thread.

The modules:
  floating     floating-point arithmetic
  integers     integer arithmetic and bits
  conversions  cvt
  logic        moves, selections, comparisons
"""
