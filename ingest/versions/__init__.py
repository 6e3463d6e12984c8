"""Builds of an index under an alias: swap, roll back, prune, finish."""
