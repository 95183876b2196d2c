"""Default graph of a node whose row states only its GPUs, its link class and its NICs.

Every rule here is a default for one kind of node, with its source; a cluster file may state the graph instead
(docs/models/topology.md lists the rules).
"""

from itertools import pairwise

from tangram_sim.clusters import Link, Node
from tangram_sim.topology.graph import Box, GraphParts, Port
from tangram_sim.units import GIGA
from tangram_sim.wiring import Wire

# Peer traffic that one host bridge turns around among GPUs on its own root ports, one direction: four
# RTX PRO 6000 on a socket reach 26.4 GB/s of bus bandwidth each, two 38.6 (NCCL 2.29.2, aiconfigurator-core).
HOST_BRIDGE_BYTES_PER_S = 4 * 26.4 * GIGA
# Between the two sockets, one direction: an all-to-all of eight of them moves 2 S over it in S x 0.875 / 18.4
# GB/s (same source). NCCL's tuner counts 40 GB/s on the newest Intel hosts (src/graph/topo.h).
SOCKET_BYTES_PER_S = 42 * GIGA
NIC_SLOT = "slots of a NIC"  # as many as it takes: no bottleneck before the NIC itself
HOST_HOP_S = 0.5e-6  # one more bridge on the way: assumed; the link's own latency contains the first

# Slot of a GPU by its architecture (datasheets of the modules); what is not listed has the fourth generation.
_PCIE_BYTES_PER_S = {
    "PCIe3x16": 15.754 * GIGA,
    "PCIe4x16": 31.508 * GIGA,
    "PCIe5x16": 63.015 * GIGA,
    "PCIe6x16": 121 * GIGA,
}
_SLOT = {
    **dict.fromkeys(("pascal", "volta", "turing"), "PCIe3x16"),
    **dict.fromkeys(("hopper", "blackwell", "cdna3", "cdna4"), "PCIe5x16"),
    "blackwell ultra": "PCIe6x16",
}
MESHED = ("NVLink1", "NVLink2")  # DGX-1 and its kin: direct links, no switch, at eight GPUs or fewer
# Hybrid cube mesh of 8 V100 (NVIDIA DGX-1 white paper WP-08437): links between GPUs, six per GPU.
_CUBE = {
    **dict.fromkeys(((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)), 2),
    **dict.fromkeys(((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)), 1),
}
_MESH_PEERS = {"xGMI-MI100": 3, "xGMI-MI210": 3}  # other GPUs that one is joined to; else 7


def cube_mesh(link: Link, gpus: int) -> dict[tuple[int, int], float]:
    """Bytes/s of the hybrid cube mesh by pair of GPUs; empty for other links or numbers of GPUs.

    P100 has four links: every pair of the cube once. Half a cube keeps the links of its half.
    """
    if link.name not in MESHED or gpus not in (4, 8):
        return {}
    per_link, doubled = (20 * GIGA, False) if link.name == "NVLink1" else (25 * GIGA, True)
    scale = link.bytes_per_s / ((6 if doubled else 4) * per_link)
    return {
        pair: per_link * scale * (links if doubled else 1)
        for pair, links in _CUBE.items()
        if max(pair) < gpus
    }


def box_of(node: Node, nodes: int) -> Box:
    """The graph of `nodes` equal nodes that share one scale-up domain (1 for most)."""
    build = _Build(node, nodes)
    build.scale_up()
    build.hosts()
    return build.box()


class _Build(GraphParts):
    def __init__(self, node: Node, nodes: int) -> None:
        super().__init__()
        self.node, self.nodes = node, nodes
        self.ports: list[Port] = []
        self.limits: list[tuple[int, float]] = []
        self.gpus = [self.vertex(f"gpu{index}", "gpu") for index in range(nodes * node.gpus)]

    def box(self) -> Box:
        return Box(
            tuple(self.names),
            tuple(self.kinds),
            tuple(self.edges),
            tuple(self.gpus),
            tuple(self.ports),
            tuple(self.limits),
        )

    def _edge(self, a: int, b: int, link: str, kind: str, rate: float, latency_s: float) -> None:
        self.edges.append(Wire(link, kind, rate, rate, latency_s).between(a, b))

    def scale_up(self) -> None:
        """Add the scale-up links: a switch, direct links, or none (PCIe alone)."""
        link, count = self.node.intra, len(self.gpus)
        if self.node.bridge is not None:
            bridge = self.node.bridge
            for start in range(0, count, self.node.gpus):
                for a, b in self.node.bridges:
                    gpus = self.gpus[start + a], self.gpus[start + b]
                    self._edge(*gpus, bridge.name, "nvlink-bridge", bridge.bytes_per_s, bridge.latency_s)
        if link.kind in ("pcie", "none", "network") or count < 2:
            return
        direct = self._direct()
        if direct:
            for (a, b), rate in direct.items():
                self._edge(self.gpus[a], self.gpus[b], link.name, link.kind, rate, link.latency_s)
            return
        switch = self.vertex("nvswitch", "nvswitch")
        for gpu in self.gpus:
            self._edge(gpu, switch, link.name, link.kind, link.bytes_per_s, link.latency_s / 2)

    def _direct(self) -> dict[tuple[int, int], float]:
        """Bytes/s of direct links by pair of GPUs, for GPUs joined without a switch."""
        link, count = self.node.intra, len(self.gpus)
        pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
        if mesh := cube_mesh(link, count):
            return mesh
        if link.name == "xGMI-MI250X":  # four links to the twin on the package, three to the others
            twin, others = link.bytes_per_s * 4 / 7, link.bytes_per_s * 3 / 7
            share = others / max(count - 2, 1)
            return {(a, b): twin if a // 2 == b // 2 else share for a, b in pairs}
        if link.kind == "xgmi":
            return dict.fromkeys(pairs, link.bytes_per_s / max(_MESH_PEERS.get(link.name, 7), count - 1))
        alone = self.nodes == 1 and count <= 4
        if link.name.startswith("RoCE-Gaudi") or link.kind == "nvlink-bridge" or alone:
            return dict.fromkeys(pairs, link.bytes_per_s / (count - 1))
        return {}

    def hosts(self) -> None:
        """Add the host bridges, PCIe switches and NICs of every node."""
        node = self.node
        boxed = node.intra.kind not in ("pcie", "none", "network")
        sockets = node.sockets or (2 if node.gpus >= 8 else 1)
        if node.intra.kind == "pcie":
            slot, rate, latency_s = node.intra.name, node.intra.bytes_per_s, node.intra.latency_s / 2
        else:
            slot = _SLOT.get(node.gpu.architecture.lower(), "PCIe4x16")
            rate, latency_s = _PCIE_BYTES_PER_S[slot], HOST_HOP_S
        switches = node.pcie_switches
        if switches < 0:
            # On NVLink and xGMI boards a NIC sits beside its GPUs; PCIe boxes hang GPUs on root ports.
            switches = max(
                (many for many in range(1, node.gpus + 1) if node.gpus % many == 0 and many <= node.nics),
                default=0,
            )
            switches = switches if boxed and node.nics > 1 else 0
        port = node.nic_bytes_per_s / node.nics
        for number in range(self.nodes):
            prefix = "" if self.nodes == 1 else f"tray{number}/"
            hosts = [self.vertex(f"{prefix}host{index}", "host") for index in range(sockets)]
            self.limits += [(host, HOST_BRIDGE_BYTES_PER_S) for host in hosts]
            for a, b in pairwise(hosts):
                self._edge(a, b, "between sockets", "host", SOCKET_BYTES_PER_S, HOST_HOP_S)
            above = hosts
            if switches:
                above = [self.vertex(f"{prefix}pcie{index}", "pcie-switch") for index in range(switches)]
                for index, switch in enumerate(above):
                    host = hosts[index * sockets // switches]
                    self._edge(switch, host, slot, "pcie", rate, HOST_HOP_S)
            for index in range(node.gpus):
                gpu = self.gpus[number * node.gpus + index]
                self._edge(gpu, above[index * len(above) // node.gpus], slot, "pcie", rate, latency_s)
            for index in range(node.nics):
                nic = self.vertex(f"{prefix}nic{index}", "nic")
                # Files that lump ports together invent no bottleneck: such a slot is no link class.
                place, lumped = above[index * len(above) // node.nics], 2 * port > rate
                name, most = (NIC_SLOT, 2 * port) if lumped else (slot, rate)
                self._edge(place, nic, name, "pcie", most, 0.0)
                self.ports.append(Port("network", "network", port, port, node.nic_latency_s / 2, nic))
