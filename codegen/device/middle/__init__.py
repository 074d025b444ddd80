"""Device functions of kernels that reduce along axes before the innermost ones: a thread's vectors lie along neighbouring rows.

`columns` has what a thread reads and writes of its rows, `meeting` how the threads that share rows reduce them.
"""

from codegen.device.middle.columns import arrive, begin, chunks, grid, rows, staging, store_parts
from codegen.device.middle.meeting import shared

__all__ = ["arrive", "begin", "chunks", "grid", "rows", "shared", "staging", "store_parts"]
