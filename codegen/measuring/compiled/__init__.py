"""Properties of a compiled kernel: registers, spills, accesses, and the instructions of its machine code."""
