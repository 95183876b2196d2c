"""Clusters, models and jobs that nobody chose: a generator from a seed, and what planners answer there."""
