"""Mathematical functions on per-thread vectors, each with its error bound."""
