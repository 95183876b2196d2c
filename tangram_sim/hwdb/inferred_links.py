"""Conversion of a node's link matrix to keys of a cluster file: links, sockets, switches and NICs.

One NVLink carries 20 GB/s in one direction on Pascal, 25 from Volta to Hopper, 50 on Blackwell, 14.0625 over
the bridges of GA102 (datasheets; the rates of `hwdb/links.csv` are multiples of these). Where each pair of
GPUs has as many links as each GPU has in total, the links cannot be direct: a switch joins them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tangram_sim.clusters import Cluster, Link
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.link_matrix import LinkMatrix
from tangram_sim.hwdb.usual_node import ASSUMED, usual_node
from tangram_sim.topology.forms import MESHED, cube_mesh
from tangram_sim.topology.full import full_wiring
from tangram_sim.topology.graph import SCALE_UP
from tangram_sim.units import BITS_PER_BYTE, GIGA
from tangram_sim.wiring import Edge, Vertex, Wiring

_LANE_GB_PER_S = {"NVLink1": 20.0, "NVLink5": 50.0, "NVLink6": 100.0, "NVLink3-bridge-x4": 14.0625}
_USUAL_LANE_GB_PER_S = 25.0
SWITCH = -1  # the other end of an edge to the scale-up switch


@dataclass(frozen=True, slots=True)
class Inside:
    """Interconnect inside a node: keys of its group, notes on what was read, links that no key can state."""

    keys: tuple[tuple[str, Any], ...] = ()
    said: tuple[str, ...] = ()
    # (GPU, GPU or SWITCH, bytes/s) where the links are none of the usual forms, and their class.
    edges: tuple[tuple[int, int, float], ...] = ()
    link: Link | None = None


def inside_of(gpu: str, matrix: LinkMatrix, slot: str, hwdb: Hwdb, where: str) -> Inside:
    """The interconnect inside a node of `gpu` (a canonical name). `slot` is the PCIe class read, "" for none.

    Raises BadInputError where the matrix has NVLinks and the GPU has none.
    """
    own = hwdb.link(hwdb.gpu_row(gpu)["link"])
    if any(map(any, matrix.nvlinks)) and own.kind not in ("nvlink", "nvlink-bridge"):
        raise BadInputError(f"{where}: NVLinks between its GPUs, and {gpu} has none; name the GPU rightly")
    found = _scale_up(gpu, own, matrix, slot, hwdb)
    for other in (_pcie(matrix), _nics(gpu, matrix, hwdb)):
        found = replace(found, keys=(*found.keys, *other.keys), said=(*found.said, *other.said))
    return found


def _scale_up(gpu: str, own: Link, matrix: LinkMatrix, slot: str, hwdb: Hwdb) -> Inside:
    """NVLinks among the GPUs: the standard topology with exactly these links, else one edge for each pair."""
    if matrix.gpus == 1:
        return Inside()
    counts = matrix.nvlinks
    pairs = tuple((a, b) for a in range(matrix.gpus) for b in range(a + 1, matrix.gpus) if counts[a][b])
    among = sorted({counts[a][b] for a in range(matrix.gpus) for b in range(a)})
    slot = slot or f"PCIe{int(hwdb.gpu_row(gpu).number('pcie_gen', 3))}x16"
    if not pairs:
        hidden = f", and {gpu} has {own.name}: hidden by its board or virtual machine"
        return Inside(
            (("intra_link", slot),), (f"PCIe alone, no NVLink{hidden if own.kind == 'nvlink' else ''}",)
        )
    lane = _LANE_GB_PER_S.get(own.name, _USUAL_LANE_GB_PER_S) * GIGA
    has, rate = round(own.bytes_per_s / lane), f"{own.bytes_per_s / GIGA:g} GB/s"
    each = [sum(row) for row in counts]  # links that a GPU would need if all were direct
    if own.kind == "nvlink-bridge" and set(among) <= {0, has} and len(pairs) * 2 == sum(map(bool, each)):
        joined = ", ".join(f"{a}-{b}" for a, b in pairs)
        keys = (("intra_link", slot), ("links", [list(pair) for pair in pairs]), ("bridge", own.name))
        return Inside(keys, (f"NV{has} bridges {joined}, {rate}",))
    paired = all(sum(map(bool, row)) <= 1 for row in counts)  # boards of two: no switch has one GPU behind it
    direct = max(each) <= has or paired
    if among == [has] or (len(among) == 1 and each[0] == has):
        joined = "direct" if direct else "through a switch"
        return Inside(
            (("intra_link", own.name),), (f"NV{among[0]} between all GPUs, {joined}: {rate} a GPU",)
        )
    if own.name in MESHED and _as_cube(counts, own, lane):
        return Inside((("intra_link", own.name),), (f"hybrid cube mesh of NVLinks: {rate} a GPU",))
    if direct:
        edges = tuple((a, b, min(counts[a][b] * lane, own.bytes_per_s)) for a, b in pairs)
    else:
        each = [max(row) for row in counts]
        edges = tuple((a, SWITCH, links * lane) for a, links in enumerate(each) if links)
    words = f"NVLinks of no usual form, {min(each)} of {has} at the GPU with fewest: stated as a graph"
    kept = own.name if own.kind == "nvlink" else slot
    return Inside((("intra_link", kept),), (words,), edges, own)


def _as_cube(counts: tuple[tuple[int, ...], ...], own: Link, lane: float) -> bool:
    """Whether the links are those of the cube mesh that is the default for four or eight such GPUs.

    `counts[a][b]` is the number of NVLinks between GPUs a and b, `lane` the bytes/s of one.
    """
    mesh = cube_mesh(own, len(counts))
    return bool(mesh) and all(
        counts[a][b] == round(mesh.get((b, a), 0.0) / lane) for a in range(len(counts)) for b in range(a)
    )


def _pcie(matrix: LinkMatrix) -> Inside:
    """Sockets and PCIe switches, where each has the same number of GPUs, numbered consecutively."""
    keys: list[tuple[str, Any]] = []
    said = []
    sockets, switches = matrix.sockets(), matrix.switches()
    if _even(sockets):
        keys.append(("sockets", len(sockets)))
    else:
        said.append(f"GPUs on host bridges as {_groups(sockets)}: uneven, left to what is usual")
    shared = len(switches) < matrix.gpus or any("PIX" in nic for nic in matrix.nics)
    if _even(switches) and len(switches) % len(sockets) == 0:
        keys.append(("pcie_switches", len(switches) if shared else 0))
    elif shared:
        said.append(f"GPUs below PCIe switches as {_groups(switches)}: uneven, left to what is usual")
    return Inside(tuple(keys), tuple(said))


def _even(groups: Sequence[Sequence[int]]) -> bool:
    """Whether groups have equal sizes and list the GPUs in ascending order."""
    in_order = [gpu for group in groups for gpu in group] == list(range(sum(map(len, groups))))
    return in_order and len({len(group) for group in groups}) == 1


def _groups(groups: Sequence[Sequence[int]]) -> str:
    return " | ".join(" ".join(map(str, group)) for group in groups)


def _nics(gpu: str, matrix: LinkMatrix, hwdb: Hwdb) -> Inside:
    """The number of NICs nearest to the GPUs, with the usual rate: the matrix does not give rates."""
    if not matrix.nics:
        return Inside((), ("no NIC listed: Ethernet ports without RDMA are not",))
    near, usual = matrix.near_nics, usual_node(gpu, matrix.gpus, hwdb)
    port = usual.nic_bytes_per_s * BITS_PER_BYTE / GIGA / usual.nics
    of = f"{near} NIC{'s' * (near > 1)}" + (
        f" beside GPUs of {len(matrix.nics)} listed" if near < len(matrix.nics) else ""
    )
    label = f"{ASSUMED}{port:g} Gbit/s a NIC ({usual.like})"
    return Inside((("nics", near), ("nic_gbps", port * near), ("labels", [label])), (of,))


def stated_graph(cluster: Cluster, insides: Sequence[Inside]) -> Wiring | None:
    """The cluster's whole graph with the links read, where a group has some of no usual form; else None.

    `insides` are those of its groups, in order. Raises BadInputError for graphs too large to write out.
    """
    if not any(inside.edges for inside in insides):
        return None
    whole = full_wiring(cluster)
    owner = [
        inside for inside, group in zip(insides, cluster.groups, strict=True) for _ in range(group.count)
    ]
    odd = {f"{number}": inside for number, inside in enumerate(owner) if inside.edges}
    vertices = [v for v in whole.vertices if not (v.kind == "nvswitch" and v.name.split("/")[0] in odd)]
    edges = [e for e in whole.edges if not (e.kind in SCALE_UP and e.a.split("/")[0] in odd)]
    for box, inside in odd.items():
        assert inside.link is not None
        if any(b == SWITCH for _, b, _ in inside.edges):
            vertices.append(Vertex(f"{box}/nvswitch", "nvswitch"))
        for a, b, rate in inside.edges:
            end, half = (f"{box}/nvswitch", 0.5) if b == SWITCH else (f"{box}/gpu{b}", 1.0)
            link = inside.link
            edges.append(
                Edge(
                    a=f"{box}/gpu{a}",
                    b=end,
                    link=link.name,
                    kind=link.kind,
                    bytes_per_s=rate,
                    back_bytes_per_s=rate,
                    latency_s=link.latency_s * half,
                )
            )
    return Wiring(tuple(vertices), tuple(edges))
