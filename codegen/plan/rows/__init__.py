"""Kernels that work along rows or down columns: reductions, scans, selections."""
