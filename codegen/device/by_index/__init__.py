"""Sums by index: rows added up that have the same key.

In reading order:
  sums     rows in the order of their keys
  rows     the rows that one thread adds up
  tallies  rows of few columns by few keys, without an order
"""
