"""Seconds of moving state between layouts, resizing, recovering: bytes of our state maps over one link rate.

One constant for each system and kind of measurement comes on top.

The testbed has nodes of 4 GPUs (16 in all). Rate and constants are fitted to the published rows: bytes say
how the seconds grow from case to case, the constants what they start from.
"""

import re
from functools import lru_cache

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import load_model
from tangram_sim.layouts import Layout
from tangram_sim.reliability.moves import assign, moves, transfer_seconds
from tangram_sim.reliability.state import StateMap, lost_with, state_of
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Share, pipeline_of_shares

_DEGREES = re.compile(r"\((\d+),\s*(\d+),\s*(\d+)\)")
_MODEL = re.compile(r"GPT-3 (XL|[\d.]+B)")
_LOST = re.compile(r"(\d+) of (\d+) GPUs")
_STEPS = re.compile(r"(\d+) steps lost")
_SIZES = re.compile(r"(\d+)->(\d+)")
_NAMES = {"XL": "gpt3-1.3b"}
_GPUS_PER_NODE = 4
# Fitted: seconds before any byte, by kind and system; bytes/s of a node's link.
LINK_BYTES_PER_S = 2.2e9
CONSTANTS_S = {
    ("repartition_state", "tenplex distributed"): 3.0,
    ("repartition_state", "tenplex through one node"): 12.0,
    ("resize_whole", "tenplex"): 72.0,
    ("resize_whole", "deepspeed"): 145.0,
    ("resize_whole", "singularity"): 105.0,
    ("failure_recovery", "tenplex"): 22.0,
}
# Of a recovery from a checkpoint: a step done again, fitted to the rows that say how many were lost. Starting
# takes what it takes from peers.
STEP_S = 7.06
_USUAL_LOST_STEPS = 50  # where the row does not say


def compute(figure: Figure, data: Data) -> Answer:
    """Seconds of the row's change of layout."""
    del data
    kind, _, rest = figure.setting.partition(": ")
    degrees = [tuple(map(int, found)) for found in _DEGREES.findall(rest)]
    if kind == "repartition_state" and len(degrees) == 2:
        system = rest.partition(":")[0]
        return Answer(_constant(kind, system) + _repartition_s(rest, degrees, "through" in system))
    if kind == "resize_whole":
        return Answer(_resize_s(kind, rest))
    if kind == "failure_recovery":
        return Answer(_recovery_s(kind, rest, degrees))
    raise RefusedError("the setting names no change of layout that is understood")


def _constant(kind: str, system: str) -> float:
    if (kind, system) not in CONSTANTS_S:
        known = ", ".join(name for of, name in CONSTANTS_S if of == kind)
        raise RefusedError(f"no constant of {kind} for {system!r}; known: {known}")
    return CONSTANTS_S[kind, system]


def _repartition_s(text: str, degrees: list[tuple[int, ...]], through_one: bool) -> float:
    model = _model(text)
    old, wanted = (laid_out(model, *shape) for shape in degrees)
    nodes = sorted({*old.nodes, *wanted.nodes})
    kinds = dict.fromkeys((*nodes, *(-1 - node for node in nodes)), "node")
    new = wanted.on(assign(old, wanted, kinds, nodes))
    if not through_one:
        return transfer_seconds(moves(old, new), lambda a, b: LINK_BYTES_PER_S, lambda n: LINK_BYTES_PER_S)
    # One node gathers what it lacks and hands every other node all that it needs, over its one link.
    gathered = old.total_bytes - old.held_bytes().get(0, 0.0)
    handed = sum(size for node, size in new.held_bytes().items() if node != 0)
    return max(gathered, handed) / LINK_BYTES_PER_S


def _resize_s(kind: str, text: str) -> float:
    """Whole resizes of a model that data parallelism replicates: new nodes fetch a copy."""
    sizes = _SIZES.search(text)
    system = text.rpartition(" ")[2]
    if sizes is None:
        raise RefusedError("the setting names no number of GPUs before and after")
    model = _model(text) if _MODEL.search(text) else _NAMES["XL"]
    old, new = (laid_out(model, *_shape(int(gpus))) for gpus in sizes.groups())
    seconds = transfer_seconds(moves(old, new), lambda a, b: LINK_BYTES_PER_S, lambda n: LINK_BYTES_PER_S)
    return _constant(kind, system) + seconds


def _shape(gpus: int) -> tuple[int, int, int]:
    """(tp, pp, dp) of a resized job: tensor-parallel nodes, two stages where they divide evenly."""
    nodes, over = divmod(gpus, _GPUS_PER_NODE)
    if over or not nodes:
        raise RefusedError(f"{gpus} GPUs are not whole nodes of {_GPUS_PER_NODE}")
    return (_GPUS_PER_NODE, 2, nodes // 2) if nodes % 2 == 0 else (_GPUS_PER_NODE, 1, nodes)


def _recovery_s(kind: str, text: str, degrees: list[tuple[int, ...]]) -> float:
    """From peers where every share has a live copy after the last nodes are lost, else from a checkpoint."""
    lost = _LOST.search(text)
    if lost is None:
        raise RefusedError("the setting names no number of lost GPUs")
    steps = _STEPS.search(text)
    again = _constant(kind, "tenplex") + STEP_S * (int(steps[1]) if steps else _USUAL_LOST_STEPS)
    if not degrees:
        return again
    tensor, depth, replicas = degrees[0]
    state = laid_out(_model(text), tensor, depth, replicas)
    gone = set(range((int(lost[2]) - int(lost[1])) // _GPUS_PER_NODE, int(lost[2]) // _GPUS_PER_NODE))
    if lost_with(state, gone):
        return again
    left = laid_out(_model(text), tensor, depth, (int(lost[2]) - int(lost[1])) // (tensor * depth) or 1)
    found = moves(state, left, gone)
    return _constant(kind, "tenplex") + transfer_seconds(
        found, lambda a, b: LINK_BYTES_PER_S, lambda n: LINK_BYTES_PER_S
    )


def _model(text: str) -> str:
    found = _MODEL.search(text)
    if found is None:
        raise RefusedError("the setting names no GPT-3 model")
    return _NAMES.get(found[1], f"gpt3-{found[1].lower()}")


@lru_cache(maxsize=32)
def laid_out(model: str, tensor: int, depth: int, replicas: int) -> StateMap:
    """The state of a Megatron layout: replicas beside each other, tensor-parallel ranks on one node."""
    loaded = load_model(model)
    cuts = [round(stage * loaded.layers / depth) for stage in range(depth + 1)]
    size = tensor * depth
    pipelines = tuple(
        pipeline_of_shares(
            1,
            cuts,
            [
                [Share("g0", tuple(range(first, first + tensor)), 1, Layout(tp=tensor))]
                for first in range(replica * size, (replica + 1) * size, tensor)
            ],
        )
        for replica in range(replicas)
    )
    plan = Plan(loaded, Cluster("testbed", ()), Job(dtype="fp16"), pipelines)
    return state_of(plan, [rank // _GPUS_PER_NODE for rank in range(size * replicas)])
