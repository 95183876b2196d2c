"""Homogeneous parallelizers behind the narrow API: layouts of one slice on one island."""
