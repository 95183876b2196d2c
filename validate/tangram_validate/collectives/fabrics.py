"""What a measured point ran on: links and NIC rates from the words of a table of points."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tangram_sim.clusters import Link
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.units import GIGA, gbps_to_bytes_per_s

_FULL_NODE = 8  # GPUs of a node with a switch or a mesh, where the words do not say
_DGX2 = 16
# What a name says of the port behind it, Gbit/s; a rate that is written out wins.
_PORTS = (
    ("XDR", 800),
    ("NDR", 400),
    ("HDR", 200),
    ("EDR", 100),
    ("CONNECTX-8", 800),
    ("CX8", 800),
    ("CONNECTX-7", 400),
    ("CX7", 400),
    ("BLUEFIELD-3", 400),
    ("BF3", 400),
    ("CONNECTX-6", 200),
    ("CX6", 200),
)
_WORDS = (
    ("TCPXO", "GPUDirect-TCPXO"),
    ("TCPX", "GPUDirect-TCPX"),
    ("SLINGSHOT", "Slingshot-11"),
    ("GVNIC", "gVNIC"),
    ("ACCELNET", "AccelNet"),
    ("OMNI-PATH", "Omni-Path-100"),
)
_INFINIBAND = re.compile(r"INFINIBAND|\bIB\b|NDR|HDR|EDR|XDR")
_RATE = re.compile(r"(\d{2,4})\s*(?:GBE|GBPS|GBIT|GB/S|GB|GIG|G\b)")


class UnknownFabricError(TangramError):
    """The words name no hardware that has a datasheet."""


@dataclass(frozen=True, slots=True)
class MeasuredFabric:
    """The links of a point; rates in bytes/s, one direction."""

    gpu: str  # row of gpus.csv, or "*"
    architectures: frozenset[str]
    intra: Link
    nic: Link | None  # class of the NICs; None within one node
    node_bytes_per_s: float  # NICs that the ranks of one node use
    notes: tuple[str, ...] = ()


def fabric_of(gpu: str, intra: str, inter: str, nodes: int, per_node: int, hwdb: Hwdb) -> MeasuredFabric:
    """The fabric that the cells `gpu`, `intra_link` and `inter_link` of a point describe.

    Raises UnknownFabricError where no rate follows from them.
    """
    name = _gpu_name(gpu, hwdb)
    notes: tuple[str, ...] = ()
    link, heard = _intra(gpu, name, intra, per_node, hwdb)
    notes += heard
    nic, rate = None, 0.0
    rack = "NVL" in f"{intra} {inter}".upper() and inter.lower() in ("", "none", intra.lower())
    if nodes > 1 and not rack:  # the trays of an NVL72 rack are one scale-up domain
        nic, rate, heard = _inter(inter, intra, link, per_node, hwdb)
        notes += heard
    architectures = hwdb.architectures(hwdb.gpu(name)) if name != "*" else frozenset({"unknown"})
    return MeasuredFabric(name, architectures, link, nic, rate, notes)


def _gpu_name(given: str, hwdb: Hwdb) -> str:
    """The GPU that the words mean, as a whole or by their first word that is a GPU; "*" for none."""
    words = [given, given.partition("(")[0].strip(), *re.split(r"[\s()/,+]+", given)]
    for word in words:
        if len(word) > 2:
            try:
                return hwdb.gpu(word).name
            except TangramError:
                continue
    return "*"


def _own(name: str, hwdb: Hwdb) -> Link | None:
    return None if name == "*" else hwdb.link(hwdb.gpu_row(name)["link"])


def _intra(given: str, name: str, words: str, per_node: int, hwdb: Hwdb) -> tuple[Link, tuple[str, ...]]:
    text, own = words.upper(), _own(name, hwdb)
    pcie = re.search(r"PCIE\s*(\d)(?:\D*?X\s*(\d+))?", text)
    if "SHM" in text or "NO P2P" in text:
        return hwdb.link("PCIe-SHM"), (
            "copies pass through host memory: rates of such boxes differ fivefold",
        )
    if pcie and "NVLINK" not in text:
        return hwdb.link(f"PCIe{pcie[1]}x{pcie[2] or 16}"), ()
    generation = re.search(r"NVLINK[\s-]*(?:BRIDGE[\s-]*)?(\d)", text)
    if generation and "BRIDGE" not in text:
        return _switched(generation[1], text, own, hwdb), ()
    if own is not None and own.kind == "xgmi":
        return own, ()
    if "XGMI" in text or "INFINITY" in text:
        return hwdb.link("xGMI-MI300X"), (f"{given!r}: taken for MI300X",)
    if own is not None and own.kind not in ("none", "other") and "NONE" not in text:
        return own, ()
    if "BRIDGE" in text:
        found = f"NVLink{generation[1]}-bridge" if generation else "NVLink-bridge"
        return hwdb.link(found), ()
    if per_node == 1:
        return own or hwdb.link("PCIe4x16"), ()
    try:
        return hwdb.link(words), ()
    except TangramError:
        raise UnknownFabricError(
            f"gpu {given!r} with intra_link {words!r}: neither names a row of gpus.csv or links.csv"
        ) from None


def _switched(generation: str, text: str, own: Link | None, hwdb: Hwdb) -> Link:
    """NVLink of a generation: the GPU's own row if it is a capped variant; fewer links where stated."""
    link = hwdb.link(f"NVLink{generation}")
    if own is not None and own.kind == "nvlink" and own.name.partition("-")[0] == link.name:
        link = own
    few = re.search(r"(\d+) LINKS?/PAIR", text)
    if few:
        item = {"1": 20.0, "2": 25.0, "3": 25.0, "4": 25.0}.get(generation, 50.0) * GIGA
        link = replace(link, bytes_per_s=int(few[1]) * item)
    return link


def _inter(
    words: str, intra_words: str, link: Link, per_node: int, hwdb: Hwdb
) -> tuple[Link, float, tuple[str, ...]]:
    """(class of NICs, bytes/s that the ranks of one node share, notes)."""
    text = words.upper()
    port, notes = _port_gbps(text, words)
    count = _count(text)
    full = _node_gpus(intra_words.upper(), link, per_node)
    efa = re.search(r"EFA[\s-]*V(\d)", text)
    nic = _nic(text, efa[1] if efa else "", port, hwdb)
    item = gbps_to_bytes_per_s(port)
    if "PER GPU" in text:
        return nic, count * item * per_node, notes
    if count == 0:
        notes += ("number of NICs not stated: one per GPU taken",)
        return nic, item * per_node, notes
    return nic, max(item, count * item * min(1.0, per_node / full)), notes


def _port_gbps(text: str, words: str) -> tuple[float, tuple[str, ...]]:
    stated = _RATE.search(re.sub(r"\d+\s*[X×]\s*(?=\d{2,4}\s*G)", "", text))
    if stated:
        return float(stated[1]), ()
    glued = re.search(r"(?:NDR|HDR|EDR|XDR)\s*(\d{3})", text)
    if glued:
        return float(glued[1]), ()
    named = [(rate, word) for word, rate in _PORTS if word in text]
    if named:
        rate, word = min(named)  # "EDR/HDR": the slower
        return float(rate), (f"rate not stated: {rate} Gbit/s taken for {word}",)
    raise UnknownFabricError(f"inter_link {words!r} states no rate and names no known generation of NICs")


def _count(text: str) -> float:
    """NICs of a node as the words say; 0 where they do not."""
    for pattern in (
        r"(\d+)\s*[X×]\s*\d{2,4}\s*G",
        r"\b(\d+)\s*X\b",
        r"(\d+)\s+PER (?:NODE|GPU)",
        r"[X×](\d+)\b",
    ):
        found = re.search(pattern, text)
        if found:
            return float(found[1])
    return 0.0


def _node_gpus(intra: str, link: Link, per_node: int) -> int:
    """GPUs of the whole node: a run on some of them gets their share of the NICs."""
    stated = re.search(r"\((\d+) GPUS?\b(?! PER)", intra)
    if stated:
        return max(int(stated[1]), per_node)
    if "DGX-2" in intra or (link.name == "NVLink2" and "NVSWITCH" in intra):
        return _DGX2
    return max(per_node, _FULL_NODE) if link.kind in ("nvlink", "xgmi") else per_node


def _nic(text: str, efa: str, port: float, hwdb: Hwdb) -> Link:
    for candidate in _candidates(text, efa, port):
        try:
            return hwdb.link(candidate)
        except TangramError:
            continue
    return Link("network", "network", gbps_to_bytes_per_s(port), 0.0)


def _candidates(text: str, efa: str, port: float) -> Iterator[str]:
    if efa:
        yield f"EFA-v{efa}"
    if "EFA" in text:
        yield "EFA-v2"
    for word, name in _WORDS:
        if word in text:
            yield name
    if _INFINIBAND.search(text) and "ROCE" not in text:
        yield {100.0: "IB-EDR", 200.0: "IB-HDR", 400.0: "IB-NDR", 800.0: "IB-XDR"}.get(port, "")
    yield f"RoCE-{port:.0f}G"
