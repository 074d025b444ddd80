"""Arrays on several devices: which axes are sharded, and what each device computes.

In reading order:
  partition   a kernel on each device's shard
  shards      what a shard needs of others: statistics, positions, sizes
  tile_folds  reductions that begin within the tiles of a product
  by_index    sums by index
"""
