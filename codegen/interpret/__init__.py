"""Runs a compiled kernel's PTX on the CPU, without a GPU, and checks what it does.

`ptx` parses the compiler's text. `lanes` is the interface of a batch of threads to the other modules. `memory/` checks every
memory access and tracks which accesses barriers order. `decode/` has the instructions, `decode/instructions` their table.
`arithmetic` computes as PTX defines it. `kernel` has a kernel's decoded instructions, and `machine` steps all threads
together. `host` gets launches from the compiled launcher, `report` counts, and `approximations` has the error bounds of
results that PTX does not define exactly.
"""
