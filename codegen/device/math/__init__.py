"""Mathematical functions on per-thread vectors, each with its error bound.

The modules:
  elementary   exponentials, logarithms, hyperbolic and error functions
  circular     sine, cosine, tangent
  division     quotients
  integers     integers and bits
  scaling      powers of two
  narrow       numbers of 4 bits, and powers of two in a byte
  recurrences  partial results of scans, and how two are combined
  opaque       values of which the compiler is to know less
"""
