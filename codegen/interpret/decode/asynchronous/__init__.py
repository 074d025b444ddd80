"""Instructions that complete later: copies of tensors, products of warpgroups, and the barriers that wait for them.

The modules:
  mbarriers   barrier objects in shared memory
  tensormaps  copies of boxes of tensors by TMA
  bulk        copies from shared to global memory, and sums into it
  wgmma       products of a warpgroup
"""
