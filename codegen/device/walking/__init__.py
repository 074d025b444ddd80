"""Kernels that walk down rows with clusters of blocks: the first block writes the results of all.

The module:
  meeting  sends the blocks' partial results to the first one
"""

from codegen.device.walking.meeting import gather, share_of, share_of_place, shared

__all__ = ["gather", "share_of", "share_of_place", "shared"]
