"""From the cells of a row to its cluster: GPU, links inside the node, network between nodes.

`inter_link` is free text; the rules read "8x ConnectX-7 400Gb/s" as eight ports, leave out what is labelled
storage or management, and take a lone rate as the node's. A blank cell means the reference node of that GPU.
"""

import re

from tangram_sim.clusters import Cluster, Gpu, Link, Node, NodeGroup, domain_block
from tangram_sim.hwdb import Hwdb
from tangram_sim.units import gbps_to_bytes_per_s
from tangram_sim.validation.published import defaults

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*g(?:b(?:e|ps|/s|it/s|/sec)?|ig\w*)?\b", re.IGNORECASE)
_BYTES = re.compile(r"GB(?:/s|ps)\b")  # a capital B: bytes
_COUNT = re.compile(r"\b(\d+)\s*x(?=\s|\d|[a-z])", re.IGNORECASE)
_NOT_FOR_GPUS = re.compile(r"storage|management|\bns\b|pcie", re.IGNORECASE)
_FOR_GPUS = re.compile(r"comput|\bew\b|east", re.IGNORECASE)
# Fabrics known by name alone: (words, Gb/s per port, GPUs per port).
_FABRICS = (("omni-path", 100.0, 2), ("slingshot", 200.0, 1))
_RACK = re.compile(r"nvl(\d+)", re.IGNORECASE)


def network_gbps(text: str, gpus_per_node: int) -> float:
    """Gb/s that a node's compute ports move together; 0.0 where the text gives no rate."""
    found = []
    for segment in re.split(r"[,;+]|\band\b", text):
        compute = bool(_FOR_GPUS.search(segment))
        if _NOT_FOR_GPUS.search(segment) and not compute:
            continue
        if stated := _RATE.search(segment):
            count = _COUNT.search(segment[: stated.end()])
            bits = 8.0 if _BYTES.search(stated[0]) else 1.0
            found.append((compute, (int(count[1]) if count else 1) * bits * float(stated[1])))
    labelled = [rate for compute, rate in found if compute]
    if rates := labelled or [rate for _, rate in found]:
        return max(rates)
    for words, rate, sharing in _FABRICS:
        if words in text.lower():
            return rate * max(gpus_per_node // sharing, 1)
    return 0.0


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


def cluster_of(
    gpu: Gpu, gpus: int, gpus_per_node: int, nodes: int, intra: str, inter: str, hwdb: Hwdb
) -> tuple[Cluster, list[str]]:
    """The cluster of a row and what had to be assumed for it."""
    link, bridge, noted = intra_link(intra, gpu, hwdb)
    assumed = [noted] if noted else []
    used = min(gpus, gpus_per_node)
    reference = reference_node(gpu, gpus_per_node, hwdb)
    rack = _RACK.search(f"{intra} {inter}")
    if rack:
        domain = max(int(rack[1]) // gpus_per_node, 1)
    else:
        domain = reference.scale_up_nodes if reference is not None and link.kind == "nvlink" else 1
        if domain > 1 and nodes > 1:
            assumed.append(f"scale_up_nodes={domain} (racks of that GPU share one NVLink domain)")
    domain = domain_block(nodes, domain) if nodes > domain else domain
    gbps = network_gbps(inter, gpus_per_node) if nodes > 1 else 0.0
    latency = reference.nic_latency_s if reference is not None else 10e-6
    if not gbps:
        gbps = _default_gbps(gpu, link, gpus_per_node, reference)
        if nodes > 1:
            assumed.append(f"inter_link={gbps:g} Gb/s per node (usual for {gpu.architecture})")
    node = Node(
        gpu=gpu,
        gpus=used,
        intra=link,
        nic_bytes_per_s=gbps_to_bytes_per_s(gbps) * used / gpus_per_node,
        nic_latency_s=latency,
        scale_up_nodes=domain,
        bridges=tuple((first, first + 1) for first in range(0, used - 1, 2)) if bridge else (),
        bridge=bridge,
    )
    return Cluster("published", (NodeGroup("g0", nodes, node),)), assumed


def _default_gbps(gpu: Gpu, link: Link, gpus_per_node: int, reference: Node | None) -> float:
    if reference is not None:
        return reference.nic_bytes_per_s * 8e-9 * gpus_per_node / reference.gpus
    fast = link.kind in ("nvlink", "xgmi")
    per_gpu = defaults.NIC_GBPS_PER_GPU.get(gpu.architecture) if fast else None
    return (per_gpu or defaults.NIC_GBPS_OF_OTHERS) * gpus_per_node
