"""Measured launches: which one a call takes, the file that has them, and the candidates to try.

In reading order:
  entries     measurements as data
  file        `tuning/ARCH.yaml` in a folder of specs
  choosing    the launch that a call takes
  candidates  the launches that `codegen tune` tries
"""
