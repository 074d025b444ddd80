"""The definitions that plans and device code both use: launches, which plans make and kernels read; sizes of memory that both
compute with; and exponents that have a kernel function of their own. Others import them from here.

In reading order:
  numbers     sizes, exponents, samples
  elements    launches of element-wise kernels, of scans, and of sums by index
  rows        launches of kernels that reduce
  selections  launches of kernels that select
  products    the tiles of matrix products
  attention   the launches of attention
"""

from codegen.shared.attention import HELD as HELD
from codegen.shared.attention import LEAST_COLUMNS as LEAST_COLUMNS
from codegen.shared.attention import AttentionLaunch as AttentionLaunch
from codegen.shared.elements import Launch as Launch
from codegen.shared.elements import ScanLaunch as ScanLaunch
from codegen.shared.elements import SumLaunch as SumLaunch
from codegen.shared.elements import TallyLaunch as TallyLaunch
from codegen.shared.numbers import HALF_POWERS as HALF_POWERS
from codegen.shared.numbers import LEAST_SAMPLED as LEAST_SAMPLED
from codegen.shared.numbers import SPACING as SPACING
from codegen.shared.numbers import WARP as WARP
from codegen.shared.numbers import WHOLE_POWERS as WHOLE_POWERS
from codegen.shared.numbers import spacing as spacing
from codegen.shared.products import GAP as GAP
from codegen.shared.products import STAGED_ROWS as STAGED_ROWS
from codegen.shared.products import WARPS as WARPS
from codegen.shared.products import AmpereTiles as AmpereTiles
from codegen.shared.products import Contraction as Contraction
from codegen.shared.products import Loading as Loading
from codegen.shared.products import Tiles as Tiles
from codegen.shared.products import stage_bytes as stage_bytes
from codegen.shared.rows import COUNTER as COUNTER
from codegen.shared.rows import MiddleLaunch as MiddleLaunch
from codegen.shared.rows import RowLaunch as RowLaunch
from codegen.shared.rows import Walk as Walk
from codegen.shared.rows import WalkLaunch as WalkLaunch
from codegen.shared.rows import slot_bytes as slot_bytes
from codegen.shared.selections import SPARE_BITS as SPARE_BITS
from codegen.shared.selections import SelectLaunch as SelectLaunch
from codegen.shared.selections import StepsLaunch as StepsLaunch
