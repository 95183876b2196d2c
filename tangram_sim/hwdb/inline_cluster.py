"""Clusters written on one line: `DGX-H100:4+DGX-A100-80GB:6`, or `H100x8:4` for nodes of a GPU kind."""

import re
from typing import Any

from tangram_sim.errors import BadInputError, TangramError, UnknownNameError
from tangram_sim.hwdb.database import Hwdb

_HINT = (
    "write NODE:COUNT, several joined by +, e.g. DGX-H100:4+DGX-A100-80GB:6 or T4x4:2, and behind @ "
    "the Gbit/s of a node's NICs, e.g. H100x8:4@400"
)
MOST_NODES = 100_000  # of one kind


def is_inline(given: str) -> bool:
    """Whether a cluster is written on one line, as nodes with counts, rather than as a path."""
    return ":" in given and "/" not in given and "\\" not in given


def inline_cluster(given: str, hwdb: Hwdb) -> dict[str, Any]:
    """The mapping of a cluster file for nodes on one line.

    Raises BadInputError for other forms, UnknownNameError for an unknown node.
    """
    groups = [{"count": count, **node_keys(name, hwdb), **nics} for name, count, nics in counted_nodes(given)]
    return {"name": "".join(given.replace(",", "+").split()), "nodes": groups}


def counted_nodes(given: str, where: str = "") -> list[tuple[str, int, dict[str, Any]]]:
    """(node, count, keys of its NICs) of each part of `NODE:COUNT[@GBIT]+...`, or with commas between.

    NODE is a row of nodes.csv, a GPU and how many of it a node holds on its usual board, `H100x8`, or a file;
    GBIT is the Gbit/s of all NICs of a node. Raises BadInputError, naming `where`, for other forms.
    """
    found = []
    for part in given.replace(",", "+").split("+"):
        name, _, rest = (piece.strip() for piece in part.rpartition(":"))
        count, at, gbit = (piece.strip() for piece in rest.partition("@"))
        nics = _gbit(gbit) if at else 1.0
        counts = count.isascii() and count.isdigit() and len(count) < 9 and 1 <= int(count) <= MOST_NODES
        if not name or not counts or nics is None:
            said = part.strip() or "nothing"
            raise BadInputError(
                f"{where or f'cluster {given}'}: {said} given; {_HINT}; 1 to {MOST_NODES} nodes"
            )
        found.append((name, int(count), {"nic_gbps": nics} if at else {}))
    return found


def _gbit(text: str) -> float | None:
    """A positive number of Gbit/s; None for other text."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 < found < float("inf") else None


def node_keys(name: str, hwdb: Hwdb) -> dict[str, Any]:
    """The cluster-file keys of a node in one word, `DGX-H100` or `H100x8`.

    Raises UnknownNameError with the nearest GPUs for a name like `H100x8`, else with the nearest nodes.
    """
    gpu, _, gpus = name.rpartition("x")
    unknown_gpu = None
    if gpu and gpus.isascii() and gpus.isdigit() and 0 < len(gpus) < 5:
        try:
            return {"gpu": hwdb.gpu_row(gpu).name, "gpus": int(gpus)}
        except UnknownNameError as error:
            unknown_gpu = error  # or the `x` belongs to the name of a node
    try:
        return {"node": hwdb.row("nodes", name).name}
    except UnknownNameError as error:
        if name.strip() and _is_gpu(name, hwdb):
            raise UnknownNameError(
                f"{name} is a GPU, and a node holds several: write {name}x8 for a node of eight."
            ) from None
        raise unknown_gpu or error from None


def _is_gpu(name: str, hwdb: Hwdb) -> bool:
    try:
        hwdb.gpu_row(name)
    except UnknownNameError:
        return False
    return True


def with_counts(given: str, hwdb: Hwdb) -> str:
    """Nodes without counts with count 1 added, `H100x8:1` for `H100x8`; empty where `given` is not nodes."""
    names = [part.strip() for part in given.replace(",", "+").split("+")]
    try:
        for name in names:
            node_keys(name, hwdb)
    except TangramError:
        return ""
    return "+".join(f"{name}:1" for name in names)


_COUNTED = (  # 2xH100x8, 2 * H100x8, H100x8*2, H100x8x2
    re.compile(r"(?P<count>[0-9]{1,8})\s*[x*]\s*(?P<name>.+)"),
    re.compile(r"(?P<name>.+?)\s*[x*]\s*(?P<count>[0-9]{1,8})"),
)


def recounted(given: str, hwdb: Hwdb) -> str:
    """Nodes with counts in other notations rewritten, `H100x8:2` for `2xH100x8` or `H100x8*2`.

    Nodes without a count get count 1; empty where `given` is not nodes.
    """
    found = [_recounted(part.strip(), hwdb) for part in given.replace(",", "+").split("+")]
    return "+".join(found) if all(found) else ""


def _recounted(part: str, hwdb: Hwdb) -> str:
    forms = [form.fullmatch(part) for form in _COUNTED]
    tried = [(part, "1"), *((form["name"].strip(), form["count"]) for form in forms if form)]
    for name, count in tried:
        try:
            node_keys(name, hwdb)
        except TangramError:
            continue
        return f"{name}:{count}" if int(count) else ""
    return ""
