"""A call's arguments: checked, bound to types and axes, and brought into the shapes of the kernel.

In reading order:
  arguments  checks arguments, binds types and axes
  described  the call's key, and the interface of its op
  views      arrays in the kernel's shape
  typed      the element types that the launcher gets
  cast       rounding as a kernel's store rounds
  sample     a sample of elements, for the centre of a variance
"""
