"""From the placement cells of a row to the stages of a plan: which blocks, which ranks, which GPU kinds.

`stage_layers` counts in the source's own units: blocks and small layers around them (embedding, transposes,
norms, head). `stage_placement` lists the GPU kinds of every stage and replica, or names the default order of
ranks. Both are free text with a few known shapes; anything else is a reason why the row is not predicted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError, TangramError, shown
from tangram_sim.hwdb import Hwdb
from tangram_validate.published.cells import CellError

# Units before the first block, by units that are not blocks. Two: embedding and head. Six: GPT2ModelPipe of
# DeepSpeed puts embedding and a transpose in front; a transpose, the norm, the head and a cast behind.
UNITS_BEFORE = {0: 0, 1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2}
_DEFAULT_ORDER = re.compile(r"default|rank order|\branks?\b", re.IGNORECASE)
_STAGE = re.compile(r"\bstage\s*\d*\s*[:=]?", re.IGNORECASE)
_PLANNED = re.compile(r"\bL(\d+)\[([^\]]*)\]")  # a stage as Sailor's planner writes it: L13[8xRTX-3090/tp1]
_DIGITS = 9  # of a count that is read from words; longer ones are wrong anyway
_TP = re.compile(r"\btp\s*[=:]?\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StageReplica:
    """One data-parallel replica of a stage: its GPU kind ("" = whatever sits there) and tensor degree."""

    gpu: str
    tp: int


def block_bounds(text: str, layers: int, pp: int) -> list[tuple[int, int]]:
    """Blocks [start, stop) of every stage.

    Understood: boundaries [0, 7, 14, 20, 30]; counts [7, 7, 6, 10]; the layers of every stage
    [[0, 1, 2], [3, 4]]; blank for an even split. Raises CellError for anything else.
    """
    if not text:
        if layers % pp:
            raise CellError(f"stage_layers not stated, and {layers} layers do not split evenly over pp {pp}")
        share = layers // pp
        return [(stage * share, (stage + 1) * share) for stage in range(pp)]
    bounds = _boundaries(text, pp)
    around = bounds[-1] - layers
    if around not in UNITS_BEFORE:
        raise CellError(
            f"stage_layers counts {bounds[-1]} units for {layers} layers; up to {max(UNITS_BEFORE)} more "
            "units than layers are understood"
        )
    cuts = [min(max(bound - UNITS_BEFORE[around], 0), layers) for bound in bounds]
    cuts[0], cuts[-1] = 0, layers
    found = list(pairwise(cuts))
    if any(stop <= start for start, stop in found[1:-1]):
        raise CellError(f"stage_layers {shown(text)}: an inner stage would hold no transformer block")
    return found


def layers_planned(placement: str) -> str:
    """The counts of layers in a placement that has them, L13[...] L13[...]; else blank."""
    return ",".join(layers for layers, _ in _PLANNED.findall(placement))


def _boundaries(text: str, pp: int) -> list[int]:
    try:
        data: Any = parse_json(text, "stage_layers")
    except BadInputError:
        data = [int(number[:_DIGITS]) for number in re.findall(r"\d+", text)]
    if isinstance(data, list) and data and all(isinstance(stage, list) for stage in data):
        data = [len(stage) for stage in data]
    if not isinstance(data, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in data):
        raise CellError(f"stage_layers is {shown(text)}; a JSON list of boundaries or counts is wanted")
    if len(data) == pp + 1 and data[0] == 0 and all(a <= b for a, b in pairwise(data)):
        return list(data)
    if len(data) == pp and all(count >= 0 for count in data):
        bounds = [0]
        for count in data:
            bounds.append(bounds[-1] + count)
        return bounds
    raise CellError(
        f"stage_layers {shown(text)}: {pp + 1} rising boundaries from 0 or {pp} counts are wanted"
    )


def replicas_of(
    text: str, kinds: Sequence[str], pp: int, dp: int, tp: int, hwdb: Hwdb
) -> list[list[StageReplica]]:
    """Replicas of every stage, [pp][dp]. Raises CellError where the text cannot be read as such.

    Understood: a default order of ranks (or blank); JSON [stage][replica] of GPU names, of {"gpu", "tp"} or
    of [name, tp]; stages separated by "|", ";" or "stage N:", or as Sailor writes them
    (L13[8xRTX-3090/tp1]), each a list of GPU names with counts ("2x RTX-3090 + Titan-RTX", "RTX-2080 x 2")
    and, where it differs, "tp 2".
    """
    if not text or (_DEFAULT_ORDER.search(text) and not _STAGE.search(text) and not text.startswith("[")):
        return [[StageReplica("", tp)] * dp for _ in range(pp)]
    stages = _from_json(text, tp) if text.lstrip().startswith("[") else _from_words(text, kinds, tp)
    if len(stages) == 1 and pp > 1:
        stages = stages * pp
    if len(stages) != pp:
        raise CellError(f"stage_placement lists {len(stages)} stages where pp is {pp}")
    known = {_canonical(kind, hwdb): kind for kind in kinds}
    found = []
    for number, stage in enumerate(stages):
        spread = stage * dp if len(stage) == 1 else stage
        if len(spread) == dp * tp and all(replica.tp == tp for replica in spread) and tp > 1:
            spread = spread[::tp]  # GPUs were listed, not replicas
        if len(spread) != dp:
            raise CellError(f"stage_placement: stage {number} lists {len(spread)} replicas where dp is {dp}")
        for replica in spread:
            if _canonical(replica.gpu, hwdb) not in known:
                raise CellError(f"stage_placement names {replica.gpu!r}; the cluster has {', '.join(kinds)}")
        found.append([StageReplica(_canonical(replica.gpu, hwdb), replica.tp) for replica in spread])
    return found


def _canonical(name: str, hwdb: Hwdb) -> str:
    try:
        return hwdb.gpu(name).name
    except TangramError:
        return name


def _from_json(text: str, tp: int) -> list[list[StageReplica]]:
    try:
        data = parse_json(text, "stage_placement")
    except BadInputError as error:
        raise CellError(str(error)) from None
    return [
        [_replica(entry, tp) for entry in (stage if isinstance(stage, list) else [stage])] for stage in data
    ]


def _replica(entry: Any, tp: int) -> StageReplica:
    if isinstance(entry, str):
        return StageReplica(entry, tp)
    if isinstance(entry, dict):
        gpu = entry.get("gpu", entry.get("gpu_type"))
        degree = entry.get("tp", tp)
    elif isinstance(entry, list) and entry:
        gpu, degree = entry[0], entry[1] if len(entry) > 1 and isinstance(entry[1], int) else tp
    else:
        gpu = degree = None
    if not isinstance(gpu, str) or not isinstance(degree, int) or isinstance(degree, bool) or degree < 1:
        raise CellError(f"stage_placement: {entry!r} is no replica; a GPU name, or gpu and tp, is wanted")
    return StageReplica(gpu, degree)


def _from_words(text: str, kinds: Sequence[str], tp: int) -> list[list[StageReplica]]:
    segments = [inside for _, inside in _PLANNED.findall(text)]
    if not segments:
        segments = _STAGE.split(text)[1:] if _STAGE.search(text) else re.split(r"[|;]|->", text)
    names = sorted({*kinds, *(_short(kind) for kind in kinds)}, key=len, reverse=True)
    kind = "|".join(re.sub(r"[-_ ]", "[-_ ]?", re.escape(name).replace(r"\-", "-")) for name in names)
    item = re.compile(
        rf"(?:(\d+)\s*(?:x|\*|×)?\s*)?(?:(?<![A-Za-z0-9])|(?<=\d[x*×]))({kind})(?![A-Za-z0-9])(?:\s*(?:x|\*|×|:)\s*(\d+)\b)?",
        re.IGNORECASE,
    )
    stages = []
    for segment in segments:
        matches = list(item.finditer(segment))
        if not matches:
            raise CellError(f"stage_placement: no GPU of the cluster is named in {segment.strip()!r}")
        stage: list[StageReplica] = []
        for place, match in enumerate(matches):
            end = matches[place + 1].start() if place + 1 < len(matches) else len(segment)
            degree = _TP.search(segment[match.end() : end])
            full = next(k for k in kinds if _plain(k).startswith(_plain(match[2])))
            count = int(match[1] or match[3] or 1)
            stage += [StageReplica(full, int(degree[1]) if degree else tp)] * min(count, 4096)
        stages.append(stage)
    return stages


def _short(kind: str) -> str:
    """The name without its memory size: V100 of V100-16GB."""
    return re.sub(r"[-_ ]?\d+\s*GB$", "", kind, flags=re.IGNORECASE)


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]", "", word.lower())


def seated(stages: Sequence[Sequence[StageReplica]], cluster: Cluster) -> list[list[tuple[int, ...]]]:
    """Ranks of every replica, [stage][replica]: consecutive ranks, of the kind asked for where one is.

    A tensor-parallel group stays in one node where a node still has room for it. Raises CellError when the
    cluster has not enough GPUs of a kind.
    """
    kinds, nodes = list[str](), list[list[int]]()
    for group in cluster.groups:
        for _ in range(group.count):
            nodes.append(list(range(len(kinds), len(kinds) + group.node.gpus)))
            kinds += [group.node.gpu.name] * group.node.gpus
    found = []
    for stage in stages:
        rows = []
        for replica in stage:
            able = [node for node in nodes if node and replica.gpu in ("", kinds[node[0]])]
            free = [rank for node in able for rank in node]
            if len(free) < replica.tp:
                raise CellError(f"stage_placement wants more {replica.gpu or 'GPUs'} than the cluster has")
            roomy = next((node for node in able if len(node) >= replica.tp), free)
            taken = tuple((roomy if replica.gpu else free)[: replica.tp])
            for node in nodes:
                node[:] = [rank for rank in node if rank not in taken]
            rows.append(taken)
        found.append(rows)
    return found
