"""The interconnect as a graph: derived from a cluster or stated in its file, and what its paths deliver."""

from tangram_sim.topology.derive import topology_of
from tangram_sim.topology.graph import Box, Fabric, Port, Topology
from tangram_sim.topology.groups import GroupPaths, PathFinder, Rate, Reach

__all__ = [
    "Box",
    "Fabric",
    "GroupPaths",
    "PathFinder",
    "Port",
    "Rate",
    "Reach",
    "Topology",
    "topology_of",
]
