"""Instructions that complete later: copies of tensors, products of warpgroups, and the barriers that wait for them."""
