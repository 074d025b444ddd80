"""An op's backward as ops of its own, made from the graph by reverse-mode differentiation.

In reading order:
  adjoints      the adjoint of each value, by the derivatives in the table of operations
  simplify      algebra on the adjoints: zeros, ones, signs, sums of products
  quotients     cheaper forms of quotients and powers
  gradients     the adjoints as outputs of a backward
  saving        the choice of what the forward saves
  reverse       the backward's spec
  backward      plans the backward and its variants: `backward_of`
  scans         derivatives of scans
  factors       derivatives of matrix products
  products      the backward of a contraction's epilogue
  attention/    the backward of attention
  composed      the backward of attention among other stages
"""
