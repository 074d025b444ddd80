"""The backward of attention for Hopper in one kernel: the order in which blocks add to the gradient of q, and the kernel."""
