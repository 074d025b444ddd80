"""The choice of an op's kernel; where no single kernel computes it, the graph is cut into stages, which run one after
the other.

In reading order:
  choose      tries the kinds of kernels, then the cuts: `planned`
  cut         cuts a graph into stages: the general case
  products    cuts around matrix products
  attending   cuts around attention
  parts       cuts sums over more axes than one kernel reduces
  steps       cuts a selection into steps of one kernel
  splitting   makes the spec of a stage
  rewriting   makes a spec that computes the same op with other nodes, for the rewrites below
  scaling     moves a scale behind a product
  moments     a mean and a variance in one pass
  neighbours  writes what neighbours would compute again
  forms       forms of a chain of which more is attention
  order       the direction in which each stage goes through large arrays
"""
