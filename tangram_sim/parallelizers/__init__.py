"""Homogeneous parallelizers behind the parallelizer API: layouts of one slice on one island."""
