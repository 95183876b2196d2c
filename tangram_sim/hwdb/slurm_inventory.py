"""Clusters from Slurm's output: `sinfo -N -o "%N %G %T"`, also without `-N`, and `scontrol show node`.

Formats: slurm.schedmd.com/sinfo.html (states, and their suffixes), /scontrol.html; GRES as
`gpu:TYPE:COUNT(S:0-1)`; lists of hosts as `gpu[001-004,007]`.
"""

import re
from collections import Counter

from tangram_sim.errors import BadInputError, TangramError, shown
from tangram_sim.hwdb.database import Hwdb
from tangram_sim.hwdb.inventories import (
    FoundGroup,
    Inventory,
    UnusableNodeError,
    gpu_named,
    inventory,
    one_kind,
)

_GRES = re.compile(r"\bgpu:(?:([\w.+\-]+):)?(\d+)\b")
_CONFIGURED = re.compile(r"\bGres=(\S*)")  # not GresDrain, GresUsed
_STATE = re.compile(r"(?<!\S)State=(\S+)")  # in the middle of a line under `scontrol -o`; not NextState
_FEATURES = re.compile(r"\bActiveFeatures=(\S+)")
_NODE = re.compile(r"^\s*NodeName=(\S+)", re.MULTILINE)
_SIGNS = "*~#!%$@^-+"  # behind a state: not responding, powered down, rebooting, ...
# States, whole and short, in which a node takes no job.
_AWAY = {
    *("down", "drain", "drained", "draining", "drng", "fail", "failing", "failg", "error", "future"),
    *("futr", "inval", "invalid_reg", "unk", "unknown", "perfctrs", "npc", "planned_down"),
}
_HOSTS = re.compile(r"(?:[^,\[]|\[[^\]]*\]?)+")  # up to a comma outside of brackets
_RANGES = re.compile(r"([^\[]*)\[([^\]]*)\](.*)")
_MOST_HOSTS = 100_000
_MOST_BEHIND = 3  # further ranges in one name; Slurm knows one


def from_slurm(text: str, hwdb: Hwdb, where: str) -> Inventory:
    """Node groups from saved output, each node once, without nodes that are down or unusable for plans."""
    listed = _shown(text) if _NODE.search(text) else _listed(text, where)
    found, left_out = [], []
    for node, (gres, states, features) in listed.items():
        kinds = Counter[str]()
        for kind, count in _GRES.findall(gres):
            kinds[kind] += int(count)
        kinds = +kinds  # without those that a node has none of
        away = [state for state in states if state in _AWAY]
        if not kinds:
            continue
        if away:
            left_out.append(f"{where}, node {node}: {' and '.join(away)}")
            continue
        place = f"{where}, node {node}"
        if "" in kinds:
            kinds = Counter({_by_feature(features, hwdb, kinds[""], place): kinds[""]}) + Counter(
                {kind: count for kind, count in kinds.items() if kind}
            )
        try:
            found.append(FoundGroup(1, *one_kind(kinds, hwdb, place)))
        except UnusableNodeError as error:
            left_out.append(str(error))
    if not found and not left_out:
        raise BadInputError(f"{where}: no node with GPUs as gpu:TYPE:COUNT; save `sinfo -N -o '%N %G %T'`")
    return inventory(found, left_out)


def _by_feature(features: list[str], hwdb: Hwdb, count: int, where: str) -> str:
    """The kind of GPUs without a type: the one feature of the node that is a GPU's name."""
    named = []
    for feature in features:
        try:
            named.append(gpu_named(feature, hwdb, where))
        except TangramError:
            continue
    if len(set(named)) != 1:
        raise BadInputError(f"{where}: {count} GPUs without a type; write gpu:TYPE:COUNT")
    return named[0]


def _shown(text: str) -> dict[str, tuple[str, list[str], list[str]]]:
    """(GRES, states, features) by node of `scontrol show node`."""
    parts = _NODE.split(text)[1:]
    found = {}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        states = [state.strip(_SIGNS).lower() for item in _STATE.findall(part) for state in item.split("+")]
        features = [word for item in _FEATURES.findall(part) for word in item.split(",")]
        found[name] = (" ".join(_CONFIGURED.findall(part)), states, features)
    return found


def _listed(text: str, where: str) -> dict[str, tuple[str, list[str], list[str]]]:
    """(GRES, states, no features) by node from `sinfo`; columns after the node's may be in any order."""
    found: dict[str, tuple[str, list[str], list[str]]] = {}
    for line in text.splitlines():
        name, *words = line.split() or [""]
        if not words or name.upper().startswith("NODELIST"):
            continue
        states = [word.rstrip(_SIGNS).lower() for word in words]
        for host in host_names(name, where):
            found[host] = (" ".join(words), states, [])
    return found


def host_names(text: str, where: str) -> list[str]:
    """The hosts in `gpu[001-003,007],rack[1-2]-b[0-3]`. Raises BadInputError for invalid ranges."""
    found: list[str] = []
    for item in _HOSTS.findall(text):
        inside = _RANGES.fullmatch(item)
        if inside is None:
            found.append(item)
            continue
        before, ranges, after = inside.groups()
        if after.count("[") > _MOST_BEHIND:
            raise BadInputError(f"{where}: {shown(text)} is no list of hosts like gpu[001-004]")
        behind = host_names(after, where) if after else [""]
        for part in ranges.split(","):
            first, dash, last = part.partition("-")
            ends = (first, last if dash else first)
            if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends):
                raise BadInputError(f"{where}: {shown(text)} is no list of hosts like gpu[001-004]")
            low, high = map(int, ends)
            if not 0 <= high - low < _MOST_HOSTS / len(behind):
                raise BadInputError(
                    f"{where}: {shown(text)}: a range of hosts runs from low to high, {_MOST_HOSTS:,} at most"
                )
            heads = [f"{before}{number:0{len(first)}d}" for number in range(low, high + 1)]
            found += [head + rest for head in heads for rest in behind]
    return found
