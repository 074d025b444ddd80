"""Matrix products on the device: two main loops, and an epilogue within their tiles.

In reading order:
  entry       the entry of generated kernels: selects a main loop
  sm80        the main loop for every architecture since Ampere
  sm90        the main loop for Hopper
  warpgroups  the parts that Hopper's kernels share
  tensorcore  PTX for tensor cores
  panels      operands in shared memory
  narrow      factors of 8 or 4 bits
  split       blocks or warps that share the contracted axis
  epilogue    from accumulators to calls of a generated epilogue
  pieces      accumulators through shared memory
  vector      an epilogue's view of its vector
  staging     an epilogue's operands, prefetched
  folds       reductions within tiles
"""

from codegen.device.gemm.entry import Together as Together
from codegen.device.gemm.entry import launch as launch
from codegen.device.gemm.entry import part as part
from codegen.device.gemm.pieces import Segments as Segments
from codegen.device.gemm.vector import Vector as Vector
from codegen.shared import Loading as Loading
