"""Memory whose every access is checked: that it lies within an array, and that a barrier orders it after what it
reads.

In reading order:
  spaces     from an instruction's addresses to the memory they are in
  arrays     global memory
  onchip     local and shared memory
  ordering   which accesses of other threads are ordered before one
  barriers   barriers of warps, blocks and clusters
  mbarriers  barrier objects in shared memory
  bulks      bulk copies in flight
  products   wgmma's products in flight
"""
