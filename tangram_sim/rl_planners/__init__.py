"""Placement of post-training roles on unequal GPUs: search, lower bound and baselines."""
