"""What paths of a cluster's graph deliver, with the shares of link rates that the hardware database holds."""

from tangram_sim.clusters import Cluster, Link
from tangram_sim.hwdb import Hwdb
from tangram_sim.topology import PathFinder, Reach, topology_of

# Of a PCIe slot, between a GPU and a NIC: nvbandwidth host to device moves 55.4 of 63.0 GB/s on H200 nodes
# (stas00/ml-engineering network/README.md). Kernels reach less between peers: rows of kind:pcie.
PCIE_DMA_SHARE = 0.88


def path_finder(cluster: Cluster, hwdb: Hwdb) -> PathFinder:
    """Answers on groups of the cluster's ranks: bus bandwidth by algorithm, hops, and what limits them.

    Raises BadInputError where the cluster states a graph that contradicts it.
    """

    def peer(link: str, kind: str) -> float:
        # Figures of host bridges and sockets are measured ones already.
        return 1.0 if kind == "host" else hwdb.link_efficiency(Link(link, kind, 0.0, 0.0)).value

    return PathFinder(topology_of(cluster), Reach(peer, PCIE_DMA_SHARE, hwdb.network_efficiency.value))
