"""Runs a compiled kernel's PTX on the CPU, checked: what a kernel really does, with no GPU.

`ptx` parses the compiler's text. `lanes` says what a batch of threads offers to all others. `memory/` checks every access
to memory, and knows what barriers order. `decode/` has the instructions, `decode/instructions` the table of them all;
`arithmetic` computes as PTX defines it. `machine` steps all threads together. `host` gets launches from the compiled
launcher, `report` sums up, and `approximations` says what PTX leaves open.
"""
