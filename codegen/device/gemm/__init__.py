"""The GEMM: two main loops, and an epilogue within their tiles."""

from codegen.device.gemm.entry import Together as Together
from codegen.device.gemm.entry import launch as launch
from codegen.device.gemm.entry import part as part
from codegen.device.gemm.pieces import Segments as Segments
from codegen.device.gemm.vector import Vector as Vector
from codegen.shared import Loading as Loading
