"""The language of chains: its text to the graph, and a graph to the chain or the text of another spec.

In reading order:
  statements  a chain's or a reference's lines as Python's syntax trees
  scope       the names that a formula may use
  prelude     the composite functions of `prelude.txt`
  formula/    one expression to the graph
  parted      statements of whole arrays with parts
  chain       all statements to the graph: `read_chain`
  reference   the checked `jnp` reference
  check       the rules for a whole spec
  notices     warnings about valid specs
  sizes       the sizes of axes and arrays, for a shape
  transfer    the chain of another spec, made of a graph
  unparse     a graph as text for people
"""
