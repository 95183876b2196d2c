"""Uniform layouts: one layout for all of a cluster."""
