"""Enumeration: the slices requested from parallelizers on each island, and their partial plans."""
