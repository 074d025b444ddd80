"""The gradients of attention: for every architecture since Ampere, and for Hopper by two kernels or by one."""
