"""Matrix products: how an op splits into products and an epilogue, and the tiles in which one kernel computes both.

In reading order:
  contractions  splits an op into products and the op that follows them, its epilogue
  tiles         what a kernel computes within a tile
  segments      reductions of the epilogue along an axis of which a tile has whole rows, such as a head
  folds         reductions of the epilogue that begin within tiles
  loading       factors that a kernel converts from narrow elements as it loads them
  hopper_tiles  the choice of tiles for Hopper
  narrow_tiles  the choice of tiles for a factor of 8 or 4 bits
  joint         several products of one left factor in one launch
  halving       products that XLA computes in less time as a sum of two
"""
