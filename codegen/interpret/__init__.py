"""Runs a compiled kernel's PTX on the CPU, checked: what a kernel really does, with no GPU.

`host` gets launches from the compiled launcher, `ptx` parses the compiler's text, `instructions` is the table of what
decodes it (`floating`, `integers`, `logic`, `conversions`, `accesses`, `warps`; `arithmetic` computes as PTX defines it).
`machine` steps all threads together; `barriers` holds them back and `ordering` knows what that orders; `spaces` finds
their memory, and `memory` and `onchip` check every access. `report` sums up; `approximations` says what PTX leaves open.
"""
