"""From a JAX function to a spec.

In reading order:
  steps      a function's jaxpr as a flat list of steps
  axes       which dimensions of its arrays are one axis
  layout     the names of axes, and which are the rows `...`
  naming     the names of values
  formulas   formulas on named axes
  translate  a step as a formula: one rule for each primitive
  patterns   functions of the language recognised in formulas
  write      formulas as text
  reference  the spec's reference
  specs      the spec, read again and planned
  agreement  the spec compared with the function
  trace      `codegen.trace`
  ops        ops of specs, made while a program runs
"""
