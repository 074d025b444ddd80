"""Matrix products, and the tiles in which a kernel computes them."""
