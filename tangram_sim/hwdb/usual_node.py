"""The usual machine of a GPU: links and NICs of a node whose file states its GPUs only."""

from dataclasses import dataclass

from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.tables import Row
from tangram_sim.units import gbps_to_bytes_per_s

ASSUMED = "assumed: "  # how the label of a node begins that says what its file left open
_PLAIN_GBPS = 25.0  # of a server with a GPU that no row of nodes.csv holds: one common port
_OFFICE_GBPS = 10.0  # slower ports are one laboratory's, not what a training server has


@dataclass(frozen=True, slots=True)
class UsualNode:
    """Links and NICs of a node in the machine in which its GPUs are usually sold."""

    intra_link: str  # row of links.csv; none for a single GPU
    nic_bytes_per_s: float  # all NICs together
    nics: int
    like: str  # in words, what it was taken from


def usual_node(gpu: str, gpus: int, hwdb: Hwdb) -> UsualNode:
    """Links and NICs of a node with `gpus` GPUs of a kind, taken from a row of nodes.csv with that kind.

    Rows that are slices of a larger machine (`slice_of`) are not used. A machine with the same number of GPUs
    is preferred, then one on premises, then the largest. Where it has more GPUs, NICs are scaled by the share
    used: a cloud node gets that share of the bandwidth, a machine on premises whole ports. `gpu` is a
    canonical name.
    """
    rows = [hwdb.row("nodes", name) for name in hwdb.node_names()]
    ported = [row for row in rows if not row["slice_of"] and row.number("nic_gbps") >= _OFFICE_GBPS]
    held = [row for row in ported if row["gpu"] == gpu] or _siblings(ported, gpu, hwdb)
    held.sort(key=lambda row: (row.number("gpus") != gpus, row["provider"] != "onprem", -row.number("gpus")))
    if not held:
        rate = gbps_to_bytes_per_s(_PLAIN_GBPS)
        return UsualNode(
            _link(hwdb.gpu_row(gpu), gpus, hwdb), rate, 1, "a common port: no server with it is listed"
        )
    row = held[0]
    share = gpus / row.number("gpus")
    nics, gbps = max(1, round(row.number("nics", 1) * share)), row.number("nic_gbps")
    port_gbps = gbps / max(1, round(row.number("nics", 1)))
    same = share == 1 and row["gpu"] == gpu and row["intra_link"] not in ("", "none")
    return UsualNode(
        row["intra_link"] if same else _link(hwdb.gpu_row(gpu), gpus, hwdb),
        gbps_to_bytes_per_s(port_gbps * nics if row["provider"] == "onprem" else gbps * share),
        nics,
        f"as {row.name}, which has the same board"
        if row["gpu"] != gpu
        else f"as {row.name}"
        if share == 1
        else f"by the share of {row.name}",
    )


def _siblings(rows: list[Row], gpu: str, hwdb: Hwdb) -> list[Row]:
    """Machines of GPUs on the same board (architecture and form, like SXM5), whose servers are similar.

    Empty for PCIe cards, which are used in machines of every kind.
    """
    own = hwdb.gpu_row(gpu)
    if not own["form"].startswith(("SXM", "OAM")):
        return []
    board = own["architecture"], own["form"]

    def same(row: Row) -> bool:
        other = hwdb.gpu_row(row["gpu"])
        return (other["architecture"], other["form"]) == board

    return [row for row in rows if same(row)]


def _link(row: Row, gpus: int, hwdb: Hwdb) -> str:
    """The link from a GPU to all others of its board: its own, else PCIe of its generation."""
    if gpus == 1:
        return "none"
    own = hwdb.row("links", row["link"])
    if own["kind"] not in ("none", "nvlink-bridge"):
        return own.name
    return f"PCIe{int(row.number('pcie_gen', 3))}x16"
