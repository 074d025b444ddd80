"""From YAML to a frozen `Spec`, whose expressions are still text. Every value knows its place in the file.

In reading order:
  spec          the result: a spec's arrays, axes, parameters and settings
  text          YAML text to a tree
  tree          the tree's mappings, sequences and scalars
  fields        the values under a tree's keys, with their errors
  notation      the notation of arrays, `T[..., (2 N)] = 0`
  declarations  type variables, arrays and parameters
  specfile      a whole file: `read_spec`
  embedding     a spec as data within a generated module
"""
