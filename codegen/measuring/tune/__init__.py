"""The search for the fastest launches.

In reading order:
  search  `codegen tune`
  clock   compiles and times one kernel's launches
"""
