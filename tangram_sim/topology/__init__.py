"""The interconnect as a graph, derived from a cluster or stated in its file, and rates of its paths."""

from tangram_sim.topology.derive import topology_of
from tangram_sim.topology.groups import GroupPaths, PathFinder, Rate, Reach

__all__ = [
    "GroupPaths",
    "PathFinder",
    "Rate",
    "Reach",
    "topology_of",
]
