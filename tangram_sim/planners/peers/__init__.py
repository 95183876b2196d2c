"""Planners of other systems, run on this simulator."""
