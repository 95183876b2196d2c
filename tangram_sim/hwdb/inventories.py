"""Clusters from the output of machines: `nvidia-smi -q -x`, one file per node, and `topo -m`.

`slurm_inventory` and `kubernetes_inventory` read schedulers' output into the same types.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any
from xml.etree import ElementTree

from tangram_sim.clusters import Gpu
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.inferred_links import Inside, inside_of
from tangram_sim.hwdb.link_matrix import is_link_matrix, link_matrix
from tangram_sim.units import GIGA

_MAKERS = ("nvidia", "amd", "tesla", "instinct", "geforce")
# Words behind a name that make it another card, or less than a whole one: MIG slices, time-sliced and virtual
# GPUs (docs.nvidia.com/datacenter/cloud-native/gpu-operator, "MIG" and "Time-Slicing"; vGPU profiles).
_ANOTHER = ("ti", "super", "d", "laptop", "mobile")
_SLICE = re.compile(r"\d+g\.\d+gb.*")  # MIG's profiles, `1g.10gb+me`, which Slurm writes without the word
_PARTS = re.compile(r"mig|shared|\d+[abcq]")
_SAME_MEMORY = 0.9  # of the row's: drivers round
_MEMORY = re.compile(r"(\d+)gb")


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """Equal nodes of an inventory, and what was read of their interconnect."""

    count: int
    gpu: str  # row of gpus.csv
    gpus: int
    inside: Inside = field(default_factory=Inside)
    node: str = ""  # row of nodes.csv, where the machine's type is stated

    @property
    def entry(self) -> dict[str, Any]:
        """The group as an entry of a cluster file."""
        kind = {"node": self.node} if self.node else {"gpu": self.gpu, "gpus": self.gpus}
        return {"count": self.count, **kind, **dict(self.inside.keys)}


@dataclass(frozen=True, slots=True)
class Inventory:
    """The node groups that plans can use, and the nodes left out, with reasons."""

    groups: tuple[FoundGroup, ...]
    left_out: tuple[str, ...] = ()


class UnusableNodeError(BadInputError):
    """A node with GPUs that no plan can use in its present state."""


def gpu_named(printed: str, hwdb: Hwdb, where: str) -> str:
    """The row of gpus.csv for a driver's or scheduler's name: `NVIDIA A100-SXM4-80GB`, `h100`.

    Vendor names at the front and words at the end are dropped one by one. Raises UnknownNameError, and
    BadInputError where a dropped word says that it is another card, or a part of one.
    """
    words = printed.replace("-", " ").replace("_", " ").split()
    while words and words[0].lower() in _MAKERS:
        words = words[1:]
    if any(_SLICE.fullmatch(word.lower()) for word in words):
        raise _part_of_a_gpu(printed, where)
    for length in range(len(words), 0, -1):
        try:
            found = hwdb.gpu_row(" ".join(words[:length])).name
        except (UnknownNameError, BadInputError):
            continue
        _require_same(printed, [word.lower() for word in words[length:]], hwdb.gpu(found), where)
        return found
    try:
        return hwdb.gpu_row(printed).name
    except UnknownNameError as error:
        raise UnknownNameError(f"{where}: {error}") from None


def _require_same(printed: str, left_out: list[str], gpu: Gpu, where: str) -> None:
    """Raise BadInputError where words dropped from a name say that it is not this GPU."""
    if any(_PARTS.fullmatch(word) for word in left_out):
        raise _part_of_a_gpu(printed, where)
    sizes = [int(size[1]) * GIGA for word in left_out if (size := _MEMORY.fullmatch(word))]
    less = min(sizes, default=gpu.memory_bytes) < _SAME_MEMORY * gpu.memory_bytes
    if less or any(word in _ANOTHER for word in left_out):
        raise BadInputError(
            f"{where}: {printed!r} is not in the table of GPUs, and {gpu.name} is another card; add a row of "
            "your own for it"
        )


def _part_of_a_gpu(printed: str, where: str) -> UnusableNodeError:
    return UnusableNodeError(
        f"{where}: {printed!r} is a part of a GPU, or shared; plans are made for whole ones"
    )


def from_nvidia_smi(texts: dict[str, str], hwdb: Hwdb) -> Inventory:
    """Node groups from `nvidia-smi -q -x`, one text per node by file name, and from link matrices.

    A text of `nvidia-smi topo -m` belongs to the node whose file has the same name without the ending; a
    single one belongs to all nodes.
    """
    matrices = {where: text for where, text in texts.items() if is_link_matrix(text)}
    nodes = {where: text for where, text in texts.items() if where not in matrices}
    if not nodes:
        raise BadInputError(
            f"{', '.join(matrices)}: a matrix names no GPU; give `nvidia-smi -q -x` of the node beside it"
        )
    read = {where: link_matrix(text, where) for where, text in matrices.items()}
    stems = {str(PurePath(where).with_suffix("")): where for where in matrices}
    lost = set(stems) - {str(PurePath(where).with_suffix("")) for where in nodes}
    if lost and len(matrices) > 1:
        raise BadInputError(
            f"{', '.join(sorted(stems[stem] for stem in lost))}: of which node? Name each matrix as its "
            "node's file, like node1.xml and node1.topo; one alone is taken for all nodes"
        )
    found = []
    for where, text in nodes.items():
        kinds, slot = _smi_gpus(text, where)
        gpu, gpus = one_kind(kinds, hwdb, where)
        beside = next(iter(matrices)) if lost else stems.get(str(PurePath(where).with_suffix("")), "")
        inside = Inside()
        if beside:
            if read[beside].gpus != gpus:
                raise BadInputError(f"{beside}: {read[beside].gpus} GPUs, and {where} lists {gpus}")
            inside = inside_of(gpu, read[beside], slot if slot in hwdb.link_names() else "", hwdb, beside)
        found.append(FoundGroup(1, gpu, gpus, inside))
    return inventory(found)


def _smi_gpus(text: str, where: str) -> tuple[Counter[str], str]:
    """(GPUs by product name, PCIe class of their slots or "") of `nvidia-smi -q -x`."""
    if "<!ENTITY" in text:
        raise BadInputError(f"{where}: entities are declared in it; nvidia-smi writes none")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise BadInputError(
            f"{where}: neither the XML of `nvidia-smi -q -x` ({error}) nor the matrix of `nvidia-smi topo -m`"
        ) from None
    kinds = Counter(gpu.findtext("product_name", "").strip() for gpu in root.iter("gpu"))
    if not kinds or "" in kinds:
        raise BadInputError(f"{where}: no GPU with a product_name; save `nvidia-smi -q -x`")
    split = [
        gpu.get("id", "") for gpu in root.iter("gpu") if gpu.findtext("mig_mode/current_mig") == "Enabled"
    ]
    if split:
        raise UnusableNodeError(
            f"{where}: {len(split)} of {kinds.total()} GPUs are cut by MIG ({split[0]}); plans are made for "
            "whole ones"
        )
    slots = [
        (gpu.findtext(".//max_link_gen", ""), gpu.findtext(".//max_link_width", "").removesuffix("x"))
        for gpu in root.iter("gpu")
    ]
    return kinds, "PCIe{}x{}".format(*min(slots))


def one_kind(kinds: Counter[str], hwdb: Hwdb, where: str) -> tuple[str, int]:
    """(GPU, count) of a node, from printed names. Raises UnusableNodeError for several kinds in one node."""
    if len(kinds) > 1:
        raise UnusableNodeError(f"{where}: {', '.join(kinds)} in one node; a node has one kind of GPU")
    [(name, count)] = kinds.items()
    return gpu_named(name, hwdb, where), count


def inventory(found: Sequence[FoundGroup], left_out: Sequence[str] = ()) -> Inventory:
    """Single nodes merged into groups of equal ones, in their order. Raises BadInputError if none is left."""
    groups: dict[str, FoundGroup] = {}
    for found_group in found:
        alike = groups.get(repr(found_group))
        groups[repr(found_group)] = replace(alike, count=alike.count + 1) if alike else found_group
    if not groups and left_out:
        more = f" (and {len(left_out) - 1} more nodes)" if len(left_out) > 1 else ""
        raise BadInputError(f"{left_out[0]}{more}; no node is left to plan for")
    return Inventory(tuple(groups.values()), tuple(left_out))
