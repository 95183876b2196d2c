"""Catalogues of cloud machines: the whole GPU machines of nodes.csv, by provider."""

from collections.abc import Sequence

from tangram_sim.errors import unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.tables import Row
from tangram_sim.purchasing.fleets import Purchase, named_purchase

CLOUDS = ("aws", "gcp", "azure", "oci", "coreweave", "lambda")
MOST_NODES = 64  # of a kind, where no other number is given
_SPOKEN = {
    "amazon": "aws",
    "ec2": "aws",
    "google": "gcp",
    "gce": "gcp",
    "google cloud": "gcp",
    "microsoft": "azure",
    "oracle": "oci",
    "lambda labs": "lambda",
}
_GPUS = ("nvidia", "amd")  # other accelerators run other software


def clouds_named(names: Sequence[str]) -> tuple[str, ...]:
    """Provider names as in nodes.csv; `all` stands for CLOUDS. Raises UnknownNameError for others."""
    found: dict[str, None] = {}
    for given in names:
        name = _SPOKEN.get(given.lower(), given.lower())
        if name == "all":
            return CLOUDS
        if name not in (*CLOUDS, "onprem"):
            raise unknown_name("cloud", given, [*CLOUDS, "onprem", "all"])
        found[name] = None
    return tuple(found)


def cloud_catalogue(
    clouds: Sequence[str], hwdb: Hwdb, most: int = MOST_NODES
) -> tuple[list[tuple[Purchase, int]], list[str]]:
    """(one node, most of it) for the largest machine of every GPU kind of some clouds; and notes.

    A machine without a stated network is offered once: several such nodes cannot train together.
    """
    rows = [hwdb.row("nodes", name) for name in hwdb.node_names()]
    of_clouds = [row for row in rows if row["provider"] in clouds and not row["slice_of"]]
    largest: dict[tuple[str, str], float] = {}
    for row in of_clouds:
        kind = row["provider"], row["gpu"]
        largest[kind] = max(largest.get(kind, 0.0), _domain(row))
    found, alone = [], []
    for row in of_clouds:
        if _domain(row) < largest[row["provider"], row["gpu"]] or hwdb.gpu(row["gpu"]).vendor not in _GPUS:
            continue
        joined = row.number("nic_gbps") > 0
        if not joined:
            alone.append(row.name)
        found.append((named_purchase(row.name, 1, hwdb), most if joined else 1))
    notes = []
    if alone:
        notes.append(f"one node at most of {', '.join(alone)}: their network between nodes is not stated")
    return found, notes


def provider_of(node: str, hwdb: Hwdb) -> str:
    """The provider of a node of nodes.csv; empty for nodes of a file or of a GPU kind."""
    return hwdb.row("nodes", node)["provider"] if node in hwdb.node_names() else ""


def _domain(row: Row) -> float:
    """GPUs of a machine, or of the rack whose trays share one scale-up domain."""
    return row.number("gpus") * row.number("scale_up_nodes", 1)
