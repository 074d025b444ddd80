"""Runs a compiled kernel's PTX on the CPU, checked: what a kernel really does, with no GPU.

`ptx` parses the compiler's text, `arithmetic` computes as PTX defines it, `instructions` decodes, `memory` checks every
access, `machine` steps all threads together, `host` gets launches from the compiled launcher, `report` sums up.
"""
