"""Cluster files: reading by name or path, building a Cluster, and writing a self-contained file."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tangram_sim.clusters import Cluster, Gpu, GroupLimit, Link, Network, Node, NodeGroup
from tangram_sim.datafiles import read_json_or_yaml
from tangram_sim.digests import warn_of_change
from tangram_sim.errors import BadInputError, TangramError, unknown_name
from tangram_sim.hwdb.cluster_schema import MAX_NODES, ClusterIn, GroupIn, parse_cluster
from tangram_sim.hwdb.database import GENERIC_BRIDGE, Hwdb
from tangram_sim.hwdb.efficiency import DTYPES
from tangram_sim.hwdb.file_kinds import ORDER, is_plan, misplaced
from tangram_sim.hwdb.inline_cluster import inline_cluster, is_inline, recounted, with_counts
from tangram_sim.hwdb.models import is_model_name
from tangram_sim.hwdb.usual_node import ASSUMED, UsualNode, usual_node
from tangram_sim.hwdb.wiring_section import wiring_of, wiring_to_dict
from tangram_sim.units import BITS_PER_BYTE, GIGA, MEGA, gbps_to_bytes_per_s, inverse
from tangram_sim.wiring import Wiring

_SUFFIXES = (".yaml", ".yml", ".json")
_HINT = "Or give the path of a cluster file (.yaml or .json), or nodes like DGX-H100:4+T4x4:2."
Found = TypeVar("Found")
NO_LINK = Link("none", "none", 0.0, 0.0)


def cluster_names(hwdb: Hwdb | None = None) -> tuple[str, ...]:
    """Names of the shipped clusters (and of those in `hwdb`'s overlays), sorted."""
    return tuple(sorted(_shipped(hwdb or Hwdb.load())))


def _shipped(hwdb: Hwdb) -> dict[str, Path]:
    files: Iterable[Path] = (path for folder in hwdb.folders for path in (folder / "clusters").glob("*.yaml"))
    return {path.stem: path for path in files}


def load_cluster(name_or_path: str, hwdb: Hwdb | None = None) -> Cluster:
    """The cluster of a shipped name, a cluster file's path, or nodes on one line (`DGX-H100:4+T4x4:2`).

    Raises UnknownNameError with the nearest names, or BadInputError naming file and key.
    """
    hwdb = hwdb or Hwdb.load()
    shipped = _shipped(hwdb)
    given = str(name_or_path)
    if given in shipped:
        path = shipped[given]
    elif is_inline(given) and not given.endswith(_SUFFIXES) and not _exists(given):
        return cluster_from_dict(inline_cluster(given, hwdb), hwdb, f"cluster {given}")
    elif "\0" not in given and (given.endswith(_SUFFIXES) or "/" in given or "\\" in given or _exists(given)):
        path = Path(given)
    else:
        if meant := with_counts(given, hwdb):
            raise BadInputError(
                f"cluster {given}: how many such nodes? Write NODE:COUNT, e.g. {meant} for one"
            )
        if meant := recounted(given, hwdb):
            raise BadInputError(f"cluster {given}: write {meant}")
        if is_model_name(given):
            raise BadInputError(f"`{given}` is a model, given for a cluster: {ORDER}")
        raise unknown_name("cluster", given, shipped, _HINT)
    data = read_json_or_yaml(path)
    if is_plan(data, path):
        warn_of_change(data, path)
        return cluster_from_dict(data["cluster"], hwdb, f"{path}: cluster", path.stem)
    if other := misplaced(data, "cluster"):
        raise BadInputError(f"{path} is {other}")
    return cluster_from_dict(data, hwdb, str(path), path.stem)


def _exists(given: str) -> bool:
    try:
        return bool(given) and Path(given).exists()
    except OSError:  # a name too long for a file is no path
        return False


def cluster_from_dict(data: Any, hwdb: Hwdb | None = None, where: str = "cluster", name: str = "") -> Cluster:
    """A Cluster from the mapping of a cluster file or of a plan file's cluster section.

    `where` names the source in errors, `name` is used when the mapping has none. GPUs and links under
    `hardware` take precedence over the database. Raises BadInputError or UnknownNameError naming the key.
    """
    hwdb = hwdb or Hwdb.load()
    parsed = parse_cluster(data, where)
    source = _Hardware(parsed, hwdb)
    groups = tuple(
        NodeGroup(f"g{index}", group.count, _node(group, source, f"{where}: nodes[{index}]"))
        for index, group in enumerate(parsed.nodes)
    )
    total = sum(group.count for group in groups)
    if total > MAX_NODES:
        raise BadInputError(f"{where}: nodes: {total} nodes in all; {MAX_NODES} or less are allowed")
    between = []
    for index, limit in enumerate(parsed.network.between):
        key = f"{where}: network.between[{index}].groups"
        for group_index in limit.groups:
            if not 0 <= group_index < len(groups):
                raise BadInputError(f"{key}: {group_index} given; groups are numbered 0 to {len(groups) - 1}")
        a, b = sorted(limit.groups)
        between.append(GroupLimit((a, b), gbps_to_bytes_per_s(limit.gbps), limit.latency_us / MEGA))
    network = Network(float(parsed.network.oversubscription), tuple(between))
    wiring = wiring_of(parsed.topology, source.link, where)
    return Cluster(parsed.name or name or "cluster", groups, network, wiring)


class _Hardware:
    """GPUs and links by name: those in the file's `hardware` section, else the database's."""

    def __init__(self, parsed: ClusterIn, hwdb: Hwdb) -> None:
        self.hwdb = hwdb
        self._gpus = {
            name: Gpu(
                name=name,
                vendor=given.vendor,
                architecture=given.architecture,
                peaks=tuple(
                    (dtype, float(given.peaks_flop_per_s[dtype]))
                    for dtype in DTYPES
                    if dtype in given.peaks_flop_per_s
                ),
                memory_bytes=float(given.memory_bytes),
                memory_bytes_per_s=float(given.memory_bytes_per_s),
                power_w=float(given.power_w),
                measured=given.measured,
            )
            for name, given in parsed.hardware.gpus.items()
        }
        self._links = {
            name: Link(name, given.kind, float(given.bytes_per_s), float(given.latency_s))
            for name, given in parsed.hardware.links.items()
        }

    def gpu(self, name: str, key: str) -> Gpu:
        if name in self._gpus:
            # The digest then tells whether the row of that name has changed since the file was written.
            self.hwdb.note_read("gpus", name)
            return self._gpus[name]
        return _located(key, self.hwdb.gpu, name)

    def link(self, name: str, key: str) -> Link:
        if name in self._links:
            self.hwdb.note_read("links", name)
            return self._links[name]
        return _located(key, self.hwdb.link, name)

    def bridge(self, gpu: Gpu, name: str | None, key: str) -> Link:
        if name is None:
            known = gpu.name in self.hwdb.gpu_names()
            return self.hwdb.bridge_of(gpu.name) if known else self.hwdb.link(GENERIC_BRIDGE)
        found = self.link(name, f"{key}.bridge")
        if found.kind in ("network", "none"):
            raise BadInputError(
                f"{key}.bridge: {found.name} is of kind {found.kind}; it joins no GPUs of a node"
            )
        return found


def _located(key: str, find: Callable[[str], Found], name: str) -> Found:
    try:
        return find(name)
    except TangramError as error:
        raise type(error)(f"{key}: {error}") from None


def _node(group: GroupIn, source: _Hardware, key: str) -> Node:
    if group.node is not None and group.gpu is not None:
        raise BadInputError(
            f"{key}: node ({group.node}) and gpu ({group.gpu}) are both given; keep one of them"
        )
    if group.node is None and group.gpu is None:
        raise BadInputError(f"{key}: give gpu (a row of hwdb/gpus.csv) or node (a row of hwdb/nodes.csv)")
    row = _located(f"{key}.node", source.hwdb.node, group.node) if group.node is not None else None
    if row is not None:
        gpu, gpus = row.gpu, group.gpus or row.gpus
    else:
        if group.gpus is None:
            raise BadInputError(f"{key}.gpus is missing (GPUs per node)")
        gpu, gpus = source.gpu(group.gpu or "", f"{key}.gpu"), group.gpus
    bridges = _pairs(group, row, gpus, key)
    bridge = None
    if bridges:
        kept = row.bridge if row is not None and group.bridge is None else None
        bridge = kept or source.bridge(gpu, group.bridge, key)
    elif group.bridge is not None:
        raise BadInputError(f"{key}.bridge: {group.bridge} given without links; say which GPU pairs it joins")
    usual = None
    if gpu.name in source.hwdb.gpu_names() and (row is None or not row.nic_bytes_per_s):
        usual = _usual(group, row, gpu.name, gpus, source.hwdb)
    nic = row.nic_bytes_per_s if row is not None else 0.0
    if group.nic_gbps is not None:
        nic = gbps_to_bytes_per_s(group.nic_gbps)
    elif usual is not None:
        nic = usual.nic_bytes_per_s
    if nic <= 0:
        raise BadInputError(f"{key}.nic_gbps is missing (all NICs of a node together, Gbit/s)")
    base = row or Node(gpu, gpus, NO_LINK, nic)
    if usual is not None:
        said = _said(group, row, usual)
        nics = usual.nics if group.nic_gbps is None else 1
        intra = base.intra if row is not None else source.hwdb.link(usual.intra_link)
        base = replace(base, intra=intra, nics=nics, labels=(*base.labels, *said))
    return Node(
        gpu=gpu,
        gpus=gpus,
        intra=_intra(group, base, gpus, source, key),
        nic_bytes_per_s=nic,
        nics=base.nics if group.nics is None else group.nics,
        nic_latency_s=base.nic_latency_s if group.nic_latency_us is None else group.nic_latency_us / MEGA,
        scale_up_nodes=base.scale_up_nodes if group.scale_up_nodes is None else group.scale_up_nodes,
        bridges=bridges,
        bridge=bridge,
        host=base.host if group.host is None else group.host,
        labels=base.labels if group.labels is None else (*base.labels, *group.labels),
        usd_per_hour=base.usd_per_hour if group.usd_per_hour is None else float(group.usd_per_hour),
        power_w=base.power_w if group.power_w is None else float(group.power_w),
        name=base.name if group.row is None else group.row,
        sockets=group.sockets or base.sockets,
        pcie_switches=base.pcie_switches if group.pcie_switches is None else group.pcie_switches,
    )


def _usual(group: GroupIn, row: Node | None, gpu: str, gpus: int, hwdb: Hwdb) -> UsualNode | None:
    """The usual machine of this GPU, for keys that group and row leave out; None if they state everything."""
    linked = row is not None or group.intra_link is not None or gpus == 1
    stated = group.nic_gbps is not None and linked
    return None if stated else usual_node(gpu, gpus, hwdb)


def _said(group: GroupIn, row: Node | None, usual: UsualNode) -> tuple[str, ...]:
    """A note on the link and NIC rate assumed for a node; empty if none were assumed."""
    open_keys = []
    if row is None and group.intra_link is None and usual.intra_link != "none":
        open_keys.append(f"{usual.intra_link} inside")
    if group.nic_gbps is None:
        open_keys.append(f"{usual.nic_bytes_per_s * BITS_PER_BYTE / GIGA:g} Gbit/s of NICs")
    return (f"{ASSUMED}{' and '.join(open_keys)} ({usual.like})",) if open_keys else ()


def _intra(group: GroupIn, base: Node, gpus: int, source: _Hardware, key: str) -> Link:
    """The link between the GPUs of one node: the group's own if stated, else that of its database row.

    Raises BadInputError for a link that joins nodes, and for several GPUs without a link.
    """
    found = base.intra
    if group.intra_link is not None:
        found = source.link(group.intra_link, f"{key}.intra_link")
    if found.kind == "network":
        raise BadInputError(
            f"{key}.intra_link: {found.name} joins nodes (kind network), not the GPUs of one node"
        )
    if gpus > 1 and (found.kind == "none" or found.bytes_per_s <= 0):
        raise BadInputError(f"{key}.intra_link is missing: {gpus} GPUs need a link, like NVLink3 or PCIe4x16")
    return found


def _pairs(group: GroupIn, row: Node | None, gpus: int, key: str) -> tuple[tuple[int, int], ...]:
    """GPU pairs (a, b) of a node joined by bridges, a < b, GPUs numbered from 0.

    Where the group lists none and its database row has bridges, neighbours are paired: (0, 1), (2, 3), and so
    on, up to the group's number of GPUs. Raises BadInputError for an impossible pair.
    """
    if group.links is None:
        return tuple((first, first + 1) for first in range(0, gpus - 1, 2)) if row and row.bridges else ()
    taken: set[int] = set()
    pairs = []
    for index, pair in enumerate(group.links):
        a, b = sorted(pair)
        place = f"{key}.links[{index}]"
        if a < 0 or b >= gpus:
            raise BadInputError(f"{place}: {pair} given; GPUs of this node are numbered 0 to {gpus - 1}")
        if a == b or {a, b} & taken:
            raise BadInputError(
                f"{place}: {pair} given; a bridge joins two GPUs, and each GPU has one bridge"
            )
        taken |= {a, b}
        pairs.append((a, b))
    return tuple(sorted(pairs))


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """A self-contained mapping: `cluster_from_dict(cluster_to_dict(c)) == c` under any database.

    Rates are written in the units of cluster files, properties of GPUs and links under `hardware` in SI.
    """
    gpus: dict[str, Any] = {}
    links: dict[str, Any] = {}
    nodes = []
    for group in cluster.groups:
        node = group.node
        _keep(gpus, node.gpu.name, _gpu_figures(node.gpu))
        entry: dict[str, Any] = {"count": group.count, "gpu": node.gpu.name, "gpus": node.gpus}
        for key, link in (("intra_link", node.intra), ("bridge", node.bridge)):
            if link is not None:
                figures = {"kind": link.kind, "bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}
                _keep(links, link.name, figures)
                entry[key] = link.name
        if node.bridges:
            entry["links"] = [list(pair) for pair in node.bridges]
        entry |= {
            "nic_gbps": _gbps(node.nic_bytes_per_s),
            "nics": node.nics,
            "nic_latency_us": _microseconds(node.nic_latency_s),
            "scale_up_nodes": node.scale_up_nodes,
            "host": node.host,
            "labels": list(node.labels),
            "usd_per_hour": node.usd_per_hour,
            "power_w": node.power_w,
            "row": node.name,
        }
        if node.sockets:
            entry["sockets"] = node.sockets
        if node.pcie_switches >= 0:
            entry["pcie_switches"] = node.pcie_switches
        nodes.append(entry)
    between = [
        {
            "groups": list(limit.groups),
            "gbps": _gbps(limit.bytes_per_s),
            "latency_us": _microseconds(limit.latency_s),
        }
        for limit in cluster.network.between
    ]
    written = {
        "name": cluster.name,
        "nodes": nodes,
        "network": {"oversubscription": cluster.network.oversubscription, "between": between},
        "hardware": {"gpus": gpus, "links": links},
    }
    if cluster.wiring != Wiring():
        written["topology"] = wiring_to_dict(cluster.wiring)
    return written


def _gpu_figures(gpu: Gpu) -> dict[str, Any]:
    return {
        "vendor": gpu.vendor,
        "architecture": gpu.architecture,
        "peaks_flop_per_s": dict(gpu.peaks),
        "memory_bytes": gpu.memory_bytes,
        "memory_bytes_per_s": gpu.memory_bytes_per_s,
        "power_w": gpu.power_w,
        "measured": gpu.measured,
    }


def _keep(kept: dict[str, Any], name: str, figures: dict[str, Any]) -> None:
    if kept.setdefault(name, figures) != figures:
        raise BadInputError(f"the cluster holds two different kinds of hardware named {name!r}; rename one")


def _gbps(bytes_per_s: float) -> float:
    return inverse(gbps_to_bytes_per_s, bytes_per_s, bytes_per_s * BITS_PER_BYTE / GIGA)


def _microseconds(seconds: float) -> float:
    return inverse(lambda value: value / MEGA, seconds, seconds * MEGA)
