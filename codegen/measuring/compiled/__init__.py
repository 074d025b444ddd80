"""What a compiled kernel has: registers, spills, accesses, and the instructions of its machine code."""
