"""The commands, one function each.

The modules:
  specs    `init`, `new`, `build`, `check`, `list`, `schema`
  kernels  `explain`, `compile`, `verify`, `bench`, `export`, `cache`
  models   `suggest`
  tuning   `tune`
"""
