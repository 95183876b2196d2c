"""Clusters written on one line: `DGX-H100:4+DGX-A100-80GB:6`, or `H100x8:4` for nodes of a GPU kind."""

from typing import Any

from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb.database import Hwdb

_HINT = "write NODE:COUNT, several joined by +, e.g. DGX-H100:4+DGX-A100-80GB:6 or T4x4:2"


def is_inline(given: str) -> bool:
    """Whether a cluster is written on one line: nodes with their counts, no path."""
    return ":" in given and "/" not in given and "\\" not in given


def inline_cluster(given: str, hwdb: Hwdb) -> dict[str, Any]:
    """The mapping of a cluster file for `NODE:COUNT+NODE:COUNT`.

    NODE is a row of nodes.csv, or a GPU and how many of it a node holds on its usual board, `H100x8`.
    Raises BadInputError for other forms, UnknownNameError for a node nobody knows.
    """
    groups = []
    for part in given.split("+"):
        name, _, count = (piece.strip() for piece in part.rpartition(":"))
        if not name or not (count.isascii() and count.isdigit() and len(count) < 9 and int(count)):
            raise BadInputError(f"cluster {given}: {part.strip() or 'nothing'} given; {_HINT}")
        groups.append({"count": int(count), **_kind(name, hwdb)})
    return {"name": "".join(given.split()), "nodes": groups}


def _kind(name: str, hwdb: Hwdb) -> dict[str, Any]:
    gpu, _, gpus = name.rpartition("x")
    if gpu and gpus.isascii() and gpus.isdigit() and 0 < len(gpus) < 5:
        try:
            return {"gpu": hwdb.gpu_row(gpu).name, "gpus": int(gpus)}
        except UnknownNameError:
            pass  # the `x` belongs to the name of a node
    return {"node": hwdb.row("nodes", name).name}
