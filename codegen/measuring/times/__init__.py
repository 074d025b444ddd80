"""Times on a GPU: what is timed, how, and how the results are shown.

In reading order:
  calls        the calls that are timed
  device_time  the device's own clock
  measurement  the result of one op at one shape
  bench        `codegen bench`: kernels, XLA and a copy in turns
  results      JSON, tables and pages
  plot         charts
"""
