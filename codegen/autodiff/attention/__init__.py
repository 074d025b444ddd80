"""The backward of attention.

In reading order:
  exponentials  factors along attention's columns
  values        the gradients as values that kernels compute
  stages        the kernels: `attention_backward`
"""
