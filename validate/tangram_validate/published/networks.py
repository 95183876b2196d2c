"""What a row says of the network between its nodes: a rate, a class of fabric, how sure both are.

The rules read "8x ConnectX-7 400Gb/s" as eight ports, "400 Gb/s per GPU" as that of each, leave out what is
labelled storage or management, and take a lone rate as the node's. A blank cell means what nodes of that GPU
have: the median of those in hwdb, with their spread as its error.
"""

import re
from dataclasses import dataclass
from math import log
from statistics import median, stdev

from tangram_sim.clusters import Gpu, Link
from tangram_sim.hwdb import Hwdb
from tangram_sim.units import gbps_to_bytes_per_s
from tangram_validate.published import defaults

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*g(?:b(?:e|ps|/s|it/s|/sec)?|ig\w*)?\b", re.IGNORECASE)
_BYTES = re.compile(r"GB(?:/s|ps)\b")  # a capital B: bytes
_COUNT = re.compile(r"\b(\d+)\s*x(?=\s|\d|[a-z])", re.IGNORECASE)
_EACH_GPU = re.compile(r"(?:per|each|/)\s*(?:gpu|accelerator|card|rank)\b", re.IGNORECASE)
_NOT_FOR_GPUS = re.compile(r"storage|management|\bns\b|pcie", re.IGNORECASE)
_FOR_GPUS = re.compile(r"comput|\bew\b|east", re.IGNORECASE)
_INFINIBAND, _ETHERNET = re.compile(r"infiniband|\bib\b", re.IGNORECASE), re.compile(r"ethernet|gbe\b", re.I)
# Fabrics known by name alone: (words, Gb/s per port, GPUs per port).
_FABRICS = (("omni-path", 100.0, 2), ("slingshot", 200.0, 1))
# Words of a fabric -> class of links whose rows of hwdb/collectives say what collectives reach of it.
_CLASSES = (
    (r"tcpxo", "GPUDirect-TCPXO"),
    (r"tcpx", "GPUDirect-TCPX"),
    (r"slingshot", "Slingshot-11"),
    (r"gvnic", "gVNIC"),
    (r"\bena\b", "ENA"),
)
# Elastic Fabric Adapter by the generation of the GPUs beside it.
_EFA = {"Ampere": "EFA-v1", "Hopper": "EFA-v2", "Blackwell": "EFA-v4", "Blackwell Ultra": "EFA-v4"}

SUSPICIOUS = 0.25  # of what such nodes have: a lone rate below that may be meant per port
STATED_SIGMA, LEAST_SIGMA, UNKNOWN_SIGMA = 0.0, 0.2, 0.8  # log standard deviations of a rate
CLOUD_SIGMA = 0.3  # of what collectives reach over a class of fabric: rows of few machines
# Bytes/s at which NCCL's proxies copy through the kernel's sockets, which adds to the time on the wire: the
# median of what eight public measurements ask for (docs/models/collectives.md, "Plain TCP").
SOCKET_COPY_BYTES_PER_S, SOCKET_SIGMA = 7e9, 0.4
TCP_GBPS = 100.0  # nodes with more have remote memory access over their Ethernet, whatever it is called
_REMOTE_MEMORY = re.compile(
    r"roce|rdma|iwarp|gpudirect|\bgdr\b|infiniband|\bib\b|\befa|tcpx|slingshot|omni", re.IGNORECASE
)
_PLAIN_TCP = re.compile(r"\btcp\b|ethernet|gbe\b|\bena\b|gvnic|accelnet", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """What a node exchanges with the others, as collectives find it."""

    gbps: float
    latency_s: float
    sigma: float  # log standard deviation of the rate, beyond that of networks in general
    assumed: tuple[str, ...]


def network_of(
    text: str, gpu: Gpu, link: Link, gpus_per_node: int, latency_s: float, hwdb: Hwdb
) -> NodeNetwork:
    """The network of nodes of `gpus_per_node` GPUs that are joined by `link` inside.

    `latency_s` is that of a fabric about which nothing special is known.
    """
    usual, spread = usual_gbps(gpu, link, gpus_per_node, hwdb)
    gbps, said, sigma = network_gbps(text, gpus_per_node), [], STATED_SIGMA
    if not gbps:
        gbps, sigma = usual, spread
        said.append(f"inter_link={gbps:g} Gb/s per node (usual for {gpu.name})")
    elif gbps < SUSPICIOUS * usual and not _COUNT.search(text) and not _EACH_GPU.search(text):
        sigma = log(usual / gbps) / 2
        said.append(
            f"inter_link={gbps:g} Gb/s per node (as written, and doubtful: such nodes have {usual:g}; "
            f'write "{gpus_per_node}x ..." or "... per GPU" if it is one port\'s)'
        )
    if any(_INFINIBAND.search(part) and _ETHERNET.search(part) for part in re.split(r"[,;+/]", text)):
        said.append(f"inter_link={text!r} (doubtful: InfiniBand and Ethernet are different fabrics)")
        sigma = max(sigma, LEAST_SIGMA)
    if gbps <= TCP_GBPS and over_sockets(text):
        gbps, latency_s = gbps * socket_share(gbps), max(latency_s, hwdb.link("ENA").latency_s)
        sigma = max(sigma, SOCKET_SIGMA)
        said.append(f"inter_link={gbps:.3g} Gb/s reached (plain TCP: NCCL copies through the kernel)")
    elif name := fabric_class(text, gpu):
        fabric = hwdb.link(name)
        reached = hwdb.collective("network", fabric)
        general = hwdb.collective("network", Link("network", "network", 0.0, 0.0))
        if reached is not None and general is not None:
            gbps *= reached.rate_share / general.rate_share
            latency_s = max(latency_s, fabric.latency_s)
            sigma = max(sigma, CLOUD_SIGMA)
    return NodeNetwork(gbps, latency_s, sigma, tuple(said))


def over_sockets(text: str) -> bool:
    """Whether the words of a network mean plain TCP: Ethernet, and no remote memory access by any name."""
    return bool(_PLAIN_TCP.search(text)) and not _REMOTE_MEMORY.search(text)


def socket_share(gbps: float) -> float:
    """What NCCL reaches over the kernel's TCP of what collectives reach on such a rate by remote access.

    A byte is on the wire, and then copied: 1/rate = 1/line + 1/copy.
    """
    return 1.0 / (1.0 + gbps_to_bytes_per_s(gbps) / SOCKET_COPY_BYTES_PER_S)


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
            ports = int(count[1]) if count else gpus_per_node if _EACH_GPU.search(segment) else 1
            found.append((compute, ports * bits * float(stated[1])))
    labelled = [rate for compute, rate in found if compute]
    if rates := labelled or [rate for _, rate in found]:
        return max(rates)
    for words, rate, sharing in _FABRICS:
        if words in text.lower():
            return rate * max(gpus_per_node // sharing, 1)
    return 0.0


def fabric_class(text: str, gpu: Gpu) -> str:
    """The class of links in hwdb that words name and that is not like networks in general; "" for others."""
    for pattern, name in _CLASSES:
        if re.search(pattern, text, re.IGNORECASE):
            return name
    return _EFA.get(gpu.architecture, "") if re.search(r"\befa", text, re.IGNORECASE) else ""


def usual_gbps(gpu: Gpu, link: Link, gpus_per_node: int, hwdb: Hwdb) -> tuple[float, float]:
    """(Gb/s of a node, log standard deviation) of nodes of that GPU about whose network nothing is said.

    The median per GPU over the providers of hwdb, nodes of the same size if there are such, with remote
    memory access if any have it: who trains over several nodes takes the best network that a provider has.
    Cards for desktops are built into machines of all sorts, of which hwdb's few say nothing: one port each.
    """
    if gpu.name.startswith(defaults.DESKTOP_CARDS):
        return defaults.NIC_GBPS_OF_OTHERS, UNKNOWN_SIGMA
    rows = [hwdb.row("nodes", name) for name in hwdb.node_names()]
    named = [row for row in rows if row["gpu"] == gpu.name and row["nic_gbps"]]
    named = [row for row in named if int(row["gpus"]) == gpus_per_node] or named
    named = [row for row in named if row.number("nic_gbps") > TCP_GBPS] or named
    best: dict[str, float] = {}
    for row in named:
        rate = row.number("nic_gbps") / int(row["gpus"])
        best[row["provider"]] = max(rate, best.get(row["provider"], 0.0))
    chosen = list(best.values())
    if chosen:
        spread = stdev(map(log, chosen)) if len(chosen) > 1 else 0.0
        return median(chosen) * gpus_per_node, max(spread, LEAST_SIGMA)
    per_gpu = defaults.NIC_GBPS_PER_GPU.get(gpu.architecture) if link.kind in ("nvlink", "xgmi") else None
    return (per_gpu * gpus_per_node if per_gpu else defaults.NIC_GBPS_OF_OTHERS), UNKNOWN_SIGMA
