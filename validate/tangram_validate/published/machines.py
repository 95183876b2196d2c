"""From the cells of a row to its cluster: GPU, links inside the node, network between nodes."""

import re

from tangram_sim.clusters import Cluster, Gpu, Link, Node, NodeGroup, domain_block
from tangram_sim.hwdb import Hwdb
from tangram_sim.units import gbps_to_bytes_per_s
from tangram_validate.published.networks import network_of

_RACK = re.compile(r"nvl(\d+)", re.IGNORECASE)
# GeForce and Titan cards have no peer access over PCIe since Turing; T4s and A10Gs, which are met in cloud
# instances, are not given it.
THROUGH_HOST = ("T4", "A10G", "RTX-20", "RTX-30", "RTX-40", "RTX-50", "Titan-RTX")


def reference_node(gpu: Gpu, gpus_per_node: int, hwdb: Hwdb) -> Node | None:
    """The on-premises node of hwdb with that GPU: as many of them if there is one, else any."""
    rows = [hwdb.row("nodes", name) for name in hwdb.node_names()]
    known = [row for row in rows if row["provider"] == "onprem" and row["gpu"] == gpu.name]
    known.sort(key=lambda row: int(row["gpus"]) != gpus_per_node)
    return hwdb.node(known[0].name) if known else None


def intra_link(text: str, gpu: Gpu, hwdb: Hwdb) -> tuple[Link, Link | None, str]:
    """(link inside the node, bridge of pairs or None, what had to be assumed)."""
    lowered = text.lower()
    row = hwdb.gpu_row(gpu.name)
    own = hwdb.link(row["link"])
    pcie = hwdb.link(f"PCIe{int(row.number('pcie_gen', 4))}x16")
    if "bridge" in lowered:
        return pcie, hwdb.bridge_of(gpu.name), ""
    if "pcie" in lowered and "nvlink" not in lowered:
        return pcie, None, ""
    if own.kind == "nvlink-bridge":
        if "nvlink" in lowered:
            return pcie, own, ""
        return pcie, None, f"intra_link={pcie.name} (the card's bus)"
    if own.kind == "none":
        return pcie, None, "" if lowered else f"intra_link={pcie.name} (the card's bus)"
    return own, None, "" if text else f"intra_link={own.name} (the GPU's own link)"


def through_host(link: Link, gpu: Gpu, hwdb: Hwdb) -> Link:
    """A PCIe link as NCCL uses it: between cards without peer access copies pass through host memory."""
    return hwdb.link("PCIe-SHM") if link.kind == "pcie" and gpu.name.startswith(THROUGH_HOST) else link


def cluster_of(
    gpu: Gpu, gpus: int, gpus_per_node: int, nodes: int, intra: str, inter: str, hwdb: Hwdb
) -> tuple[Cluster, list[str], float]:
    """The cluster of a row, what had to be assumed for it, and how doubtful its network is.

    The doubt is a log standard deviation of the rate between nodes.
    """
    link, bridge, noted = intra_link(intra, gpu, hwdb)
    assumed = [noted] if noted else []
    used = min(gpus, gpus_per_node)
    if used > 1 and bridge is None and (slower := through_host(link, gpu, hwdb)) != link:
        link = slower
        assumed.append(f"intra_link={link.name} (no peer access over PCIe: copies pass through the host)")
    reference = reference_node(gpu, gpus_per_node, hwdb)
    rack = _RACK.search(f"{intra} {inter}")
    if rack:
        domain = max(int(rack[1]) // gpus_per_node, 1)
    else:
        domain = reference.scale_up_nodes if reference is not None and link.kind == "nvlink" else 1
        if domain > 1 and nodes > 1:
            assumed.append(f"scale_up_nodes={domain} (racks of that GPU share one NVLink domain)")
    domain = domain_block(nodes, domain) if nodes > domain else domain
    latency = reference.nic_latency_s if reference is not None else 10e-6
    network = network_of(inter if nodes > 1 else "", gpu, link, gpus_per_node, latency, hwdb)
    if nodes > 1:
        assumed += network.assumed
    node = Node(
        gpu=gpu,
        gpus=used,
        intra=link,
        nic_bytes_per_s=gbps_to_bytes_per_s(network.gbps) * used / gpus_per_node,
        nic_latency_s=network.latency_s,
        scale_up_nodes=domain,
        bridges=tuple((first, first + 1) for first in range(0, used - 1, 2)) if bridge else (),
        bridge=bridge,
    )
    return Cluster("published", (NodeGroup("g0", nodes, node),)), assumed, network.sigma if nodes > 1 else 0.0
