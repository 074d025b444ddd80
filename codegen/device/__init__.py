"""Functions that generated kernels call, in CuTe DSL. Of this project it imports only `codegen.shared`.

In reading order:
  functions   what every kernel uses: vectors, casts, positions, masks
  vectors     loads of single vectors
  math/       mathematical functions, each with its error bound
  flat        element-wise kernels
  turned      the same, with arrays in different orders of axes
  rowwise     a thread's view of its row, for kernels that reduce
  access      how it loads and stores its pieces of the row
  places      coordinates of a row's columns, and what is read there one by one
  runs        rows that go through shared memory, if N is not a multiple of the vector width
  reduce      reductions over threads, blocks and clusters
  partials    partial results of reductions over rows, and their reduction in a second kernel
  walking/    a cluster whose first block writes the results of all
  middle/     reductions along middle axes
  scan/       scans
  select/     the largest elements of rows
  sorting     sorts
  thresholds  nucleus sampling's threshold
  by_index/   sums by index
  gemm/       matrix products
  attention/  attention
"""

from codegen.device.functions import *  # noqa: F403
from codegen.device.math.circular import *  # noqa: F403
from codegen.device.math.division import *  # noqa: F403
from codegen.device.math.elementary import *  # noqa: F403
from codegen.device.math.integers import (  # noqa: F401
    floor_divide,
    floor_divide_small,
    modulo,
    modulo_small,
    popcount,
    random_bits,
    shift_left,
    shift_right,
)
from codegen.device.math.narrow import Float4, Uint4, bytes_of, read, rounded, stored  # noqa: F401
from codegen.device.math.opaque import above  # noqa: F401
from codegen.device.math.scaling import *  # noqa: F403
