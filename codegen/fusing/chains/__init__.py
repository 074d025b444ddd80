"""Chains: sets of steps that one op computes.

In reading order:
  expressing  the specs of chains
  kernels     how an op runs for a chain's sizes: whether it has a kernel, and what it reads again
  parts       the part of a group of steps that is worth an op
  groups      steps joined to groups
  search      the chains of a function
"""
