"""The kernels of `plan/rows`: one module for each template."""
