"""Planners: cut a cluster into islands, ask a parallelizer for partial plans, compose them into one plan."""
