"""Device functions of kernels that walk down rows, where one block of a cluster writes the results of all of its blocks."""

from codegen.device.walking.meeting import gather, share_of, shared

__all__ = ["gather", "share_of", "shared"]
