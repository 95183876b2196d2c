"""Coarse plans as whole-cluster planners describe them, and the layer profiles they search on."""
