"""From the cluster cell of a row (JSON) to a cluster: nodes by instance name, else by GPU and link texts."""

import re
from dataclasses import replace
from typing import Any

from tangram_sim.clusters import Cluster, Gpu, Node, NodeGroup
from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.units import gbps_to_bytes_per_s
from tangram_validate.published.cells import MOST, CellError, Cells
from tangram_validate.published.machines import intra_link, reference_node, through_host
from tangram_validate.published.networks import network_gbps

NIC_GBPS = 100.0  # of a node about which nothing is said: one port, what keeps mixed machines together
MOST_GPUS = 65_536
# Nodes, GPUs (each, or in all), the name, GPUs written behind it.
_GROUP = re.compile(
    r"\s*(?:(\d{1,6})\s*(?:nodes?\s+(?:of|with)|[x*×](?=\s*\d))\s*)?(?:(\d{1,6})\s*[x*×]?\s*)?"
    r"([A-Za-z][\w .-]*?)(?:(?:\s*:|\s+[x*×])\s*(\d{1,6}))?\s*"
)
USUAL_NODE = 8  # GPUs

# Machines that a source's runs were made on, by the stack of its software: their networks are measured in
# its own files, and a row that is silent about links means them.
MACHINES = {
    "sailor": {
        "RTX-3090": "sailor-rtx-3090",
        "RTX-2080Ti": "sailor-rtx-2080",
        "Titan-RTX": "sailor-titan-rtx",
    }
}


def cluster_of(cells: Cells, hwdb: Hwdb, stack: str = "") -> Cluster:
    """The cluster of a row, groups in the order of its list. Raises CellError where it cannot be built."""
    groups = entries(cells.text("cluster"))
    found = []
    for number, group in enumerate(groups):
        count, per_node = _shape(group, hwdb)
        kinds = [str(entry.get("gpu", "")) for entry in groups]
        node = _node({**group, "gpus_per_node": per_node}, kinds, cells, hwdb, stack)
        found.append(NodeGroup(f"g{number}", count, node))
    cluster = Cluster("published", tuple(found))
    if cluster.gpus > MOST_GPUS:
        raise CellError(f"cluster: {cluster.gpus} GPUs are more than the {MOST_GPUS} that are played")
    stated = cells.count("gpus")
    if stated is not None and stated != cluster.gpus:
        raise CellError(f"cluster holds {cluster.gpus} GPUs, the row has {stated}")
    return cluster


def entries(text: str) -> list[dict[str, Any]]:
    """The entries of a cluster cell: a JSON list of objects, a JSON map of GPUs to counts, or words.

    Words: `16x RTX-3090 + 8x Titan RTX`, `RTX-3090:16, Titan-RTX:8`, `2 nodes of 8 RTX-3090; 8 V100 x 1`.
    """
    if not text.lstrip().startswith(("[", "{")):
        return [_entry(part) for part in re.split(r"[+,;|]|\band\b", text) if part.strip()]
    try:
        groups = parse_json(text, "cluster")
    except BadInputError as error:
        raise CellError(str(error)) from None
    if isinstance(groups, dict) and "gpu" not in groups:
        return [{"gpu": name, "gpus": count} for name, count in groups.items()]
    groups = [groups] if isinstance(groups, dict) else groups
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
        raise CellError("cluster: a list of objects with gpu, nodes and gpus_per_node is wanted")
    return groups


def _entry(words: str) -> dict[str, Any]:
    match = _GROUP.fullmatch(words)
    if match is None:
        raise CellError(
            f"cluster: {words.strip()!r} is no group of GPUs; write 16x RTX-3090, RTX-3090:16 or "
            "2 nodes of 8 RTX-3090"
        )
    nodes, ahead, name, behind = match.groups()
    count = int(ahead or behind or 1)
    return {"gpu": name, **({"nodes": int(nodes), "gpus_per_node": count} if nodes else {"gpus": count})}


def _shape(group: dict[str, Any], hwdb: Hwdb) -> tuple[int, int]:
    """(nodes, GPUs per node) of an entry that gives both, or `gpus` in all and perhaps one of them.

    With neither, nodes are as large as hwdb's of that GPU, eight at most, or the next size that divides.
    """
    if "gpus" not in group:
        return _count(group, "nodes", 1), _count(group, "gpus_per_node")
    gpus = _count(group, "gpus")
    if "gpus_per_node" in group:
        per_node = _count(group, "gpus_per_node")
    elif "nodes" in group:
        per_node = max(gpus // _count(group, "nodes"), 1)
    else:
        most = _largest_node(hwdb.gpu(str(group.get("gpu", ""))), hwdb)
        per_node = gpus if gpus <= most else next(size for size in range(most, 0, -1) if gpus % size == 0)
    nodes = _count(group, "nodes", gpus // per_node or 1)
    if nodes * per_node != gpus:
        raise CellError(f"cluster: {nodes} nodes of {per_node} {group.get('gpu')} are not its {gpus} gpus")
    return nodes, per_node


def _largest_node(gpu: Gpu, hwdb: Hwdb) -> int:
    """GPUs of the largest node of that GPU in hwdb, up to the usual size, which it is where there is none."""
    rows = [hwdb.row("nodes", name) for name in hwdb.node_names()]
    sizes = [int(row["gpus"]) for row in rows if row["gpu"] == gpu.name]
    return max((size for size in sizes if size <= USUAL_NODE), default=USUAL_NODE)


def _count(group: dict[str, Any], key: str, default: int | None = None) -> int:
    value = group.get(key, default)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise CellError(f"cluster: {key} is {value!r}; a whole number is wanted")
    return value


def _node(group: dict[str, Any], kinds: list[str], cells: Cells, hwdb: Hwdb, stack: str) -> Node:
    name = group.get("gpu")
    if not isinstance(name, str) or not name:
        raise CellError("cluster: an entry names no gpu")
    gpu, per_node = hwdb.gpu(name), _count(group, "gpus_per_node")
    known = _instance(str(group.get("instance") or ""), gpu, per_node, hwdb)
    if known is not None:
        return _without_peer_access(known, cells, hwdb)
    intra, inter = (_own_words(cells.text(column), name, kinds) for column in ("intra_link", "inter_link"))
    machine = MACHINES.get(stack, {}).get(gpu.name)
    if machine and not network_gbps(inter, per_node):
        cells.assume(f"{name} node", machine, "nothing said of the network: the source's own machines")
        return _without_peer_access(_of_size(hwdb.node(machine), per_node), cells, hwdb)
    link, bridge, noted = intra_link(intra, gpu, hwdb)
    if noted:
        cells.assumed.append(f"{name}: {noted}")
    reference = reference_node(gpu, per_node, hwdb)
    gbps = network_gbps(inter, per_node)
    if not gbps:
        gbps = NIC_GBPS
        cells.assume(f"{name} network", f"{gbps:g} Gb/s", "nothing said: one port")
    node = Node(
        gpu=gpu,
        gpus=per_node,
        intra=link,
        nic_bytes_per_s=gbps_to_bytes_per_s(gbps),
        nic_latency_s=reference.nic_latency_s if reference is not None else 50e-6,
        bridges=tuple((first, first + 1) for first in range(0, per_node - 1, 2)) if bridge else (),
        bridge=bridge,
    )
    return _without_peer_access(node, cells, hwdb)


def _of_size(node: Node, gpus: int) -> Node:
    """The node with only some of its GPUs in use, or with more of them."""
    pairs = tuple((first, first + 1) for first in range(0, gpus - 1, 2)) if node.bridges else ()
    return node if node.gpus == gpus else replace(node, gpus=gpus, bridges=pairs)


def _without_peer_access(node: Node, cells: Cells, hwdb: Hwdb) -> Node:
    """The node with PCIe as NCCL uses it where cards lack peer access: copies go through host memory."""
    link = through_host(node.intra, node.gpu, hwdb)
    if node.gpus == 1 or link == node.intra:
        return node
    cells.assume(f"{node.gpu.name} link", link.name, "no peer access over PCIe: copies pass through the host")
    return replace(node, intra=link)


def _instance(name: str, gpu: Gpu, per_node: int, hwdb: Hwdb) -> Node | None:
    """The node type of that name, if the database has it with these GPUs and knows its network."""
    try:
        node = hwdb.node(name) if name else None
    except TangramError:
        return None
    if node is None or node.gpu.name != gpu.name or node.gpus != per_node or not node.nic_bytes_per_s:
        return None
    return node


def _own_words(text: str, name: str, kinds: list[str]) -> str:
    """The part for one GPU kind of "V100: NVLink; T4: PCIe" ("" if it has none); other cells whole."""

    def plain(word: str) -> str:
        return re.sub(r"[^a-z0-9]", "", word.lower())

    labelled = [part.partition(":") for part in text.split(";") if ":" in part]
    about = {plain(label): said for label, _, said in labelled}
    matching = [label for label in about if label and plain(name).startswith(label)]
    others = [label for label in about if any(plain(kind).startswith(label) for kind in kinds)]
    if matching:
        return about[max(matching, key=len)].strip()
    return "" if others else text
