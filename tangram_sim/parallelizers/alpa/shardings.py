"""From shardings of operators to layouts: meshes of (part of) an island, programs, nearest layouts."""

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from tangram_sim.cost.collectives import all_reduce_s, group
from tangram_sim.models import Block, Model
from tangram_sim.parallelizers.alpa.ilp import SolvedSharding, solve
from tangram_sim.parallelizers.alpa.mesh import Axis, Mesh
from tangram_sim.parallelizers.alpa.operators import Builder, block_graph
from tangram_sim.parallelizers.layouts import divisors, expert_degrees
from tangram_sim.training.job import Job
from tangram_sim.training.stage.setting import Setting

HELD = (1, 8)  # microbatches in flight where memory is counted: the last stage, and one in front
_SHRINK = 0.7  # each program may hold at most this share of what the one before held
_PROGRAMS = 5
# Times that norms and residuals of a block read or write the activations, forward and backward.
_NORM_PASSES = 20


def meshes(setting: Setting) -> Iterator[tuple[Mesh, bool]]:
    """Logical shapes (data, model) with the model axis inside a node, and one free axis over everything.

    With each, whether the first axis is bound to the batch.
    """
    gpus, inside = setting.island.gpus, setting.island.gpus_per_node
    for size in divisors(inside):
        if size > 1 and size < gpus and gpus // size <= int(np.max(setting.microbatch)):
            yield (_axis(setting, gpus // size, size), _axis(setting, size, 1)), True
    yield (_axis(setting, gpus, 1),), False


def _axis(setting: Setting, ranks: int, stride: int) -> Axis:
    """Latency and bandwidth of an axis: two all-reduces of the simulator, of nothing and of activations."""
    over = group(setting.island, np.array([ranks]), np.array([stride]), setting.hwdb)
    job = setting.job
    size = job.boundary_bytes(setting.model, 1)
    start, whole = float(all_reduce_s(1.0, over)[0]), float(all_reduce_s(size, over)[0])
    return Axis(ranks, start, 2 * size * (ranks - 1) / ranks / max(whole - start, 1e-12))


def shardings(setting: Setting, block: Block, tensor: int = 0) -> Iterator[tuple[Mesh, SolvedSharding]]:
    """Fast shardings of a block and, step by step, ones that hold less, for every logical mesh.

    `tensor` > 0 binds the operators to that tensor-parallel degree. Memory is counted with few and with many
    microbatches in flight.
    """
    model, job, rates = setting.model, setting.job, setting.rates
    tokens = int(np.max(setting.microbatch)) * job.seq
    passes = _NORM_PASSES * tokens * model.hidden * job.precision.activation_bytes
    for mesh, bound in meshes(setting):
        if tensor and mesh[-1].ranks not in (tensor, setting.island.gpus):
            continue
        fastest: SolvedSharding | None = None  # without a limit it is the same however many are held
        # Sequences are not cut: with fewer of them than ranks, the last axis has to cut weights.
        forced = setting.island.gpus > int(np.max(setting.microbatch)) or mesh[-1].ranks == tensor > 1
        batch = (0,) if bound or tensor == 1 else ()
        for held in HELD:
            builder = Builder(
                mesh,
                tokens,
                element_bytes=job.precision.activation_bytes,
                microbatches=max(1, job.global_batch // int(np.max(setting.microbatch))),
                state_bytes=job.bytes_per_parameter,
                held=held,
                batch_axes=batch,
                tensor_axes=(len(mesh) - 1,) if forced else (),
            )
            graph = block_graph(builder, block, model.hidden, passes / rates.memory_bytes_per_s)
            limit = _SHRINK * graph.cost(fastest.choice)[1] if fastest else float("inf")
            for _ in range(_PROGRAMS):
                found = solve(graph, limit)
                if found is None:
                    break
                yield mesh, found
                fastest = fastest or found
                limit = _SHRINK * found.held_bytes


def degrees(
    model: Model, job: Job, block: Block, mesh: Mesh, sharding: SolvedSharding
) -> Iterator[tuple[int, int, int, bool]]:
    """The nearest (tp, dp, ep, sequence parallel) that a layout of a whole block can say.

    Each axis is tensor-parallel, data-parallel, or data-parallel with experts spread over it. Where operators
    disagree about an axis, each side gives a layout; the simulator's prices decide.
    """
    dense = [roles for name, roles in sharding.roles.items() if name not in ("hid", "att", "experts")]
    routed = sharding.roles.get("experts")
    options = []
    for axis in range(len(mesh)):
        sides = {("dp" if roles[axis] == "T" else "tp") for roles in dense}
        if routed:
            sides.add("tp" if routed[axis] == "M" else "dp")
            if routed[axis] == "E":
                sides = {"ep" if side == "dp" else side for side in sides}
        options.append(sorted(sides))
    for named in product(*options):
        tp, dp, ep = (
            prod(axis.ranks for axis, side in zip(mesh, named, strict=True) if side in kinds)
            for kinds in (("tp",), ("dp", "ep"), ("ep",))
        )
        ep = max(degree for degree in expert_degrees(model, dp) if degree <= ep)
        if block.attention.heads % tp == 0:
            yield tp, dp, ep, tp > 1 and job.seq % tp == 0
