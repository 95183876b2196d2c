"""Alpa's operators with their roles, and from their shardings to layouts: meshes, programs, nearest layouts.

An operator is its forward, data-gradient and weight-gradient products together. Roles of a matrix K -> N over
T tokens, for every axis of the mesh: T cuts tokens, N columns, K rows. Formulation: docs/models/alpa.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from tangram_sim.cost.collectives import all_reduce_s, group
from tangram_sim.models import Block, Experts, Model
from tangram_sim.parallelizers.alpa.ilp import Graph, Operator, Resharding, SolvedSharding, solve
from tangram_sim.parallelizers.alpa.mesh import (
    EXPERTS,
    FEATURES,
    REPLICATED,
    TOKENS,
    Axis,
    Mesh,
    reshard_s,
    shards,
)
from tangram_sim.parallelizers.layouts import divisors, expert_degrees
from tangram_sim.training.job import Job
from tangram_sim.training.stage.setting import Setting

# What a role wants its input to be cut by, and what it leaves its output cut by.
# M is a pair of matrices inside an expert, the first cut by columns and the second by rows.
INPUT = {"T": TOKENS, "K": FEATURES, "N": REPLICATED, "E": EXPERTS, "R": REPLICATED, "F": FEATURES}
OUTPUT = {"T": TOKENS, "N": FEATURES, "K": REPLICATED, "E": EXPERTS, "R": REPLICATED, "F": FEATURES}
INPUT["M"] = OUTPUT["M"] = REPLICATED


@dataclass
class Builder:
    """Collects the operators of a block and the tensors between them on one mesh.

    `microbatches` pay for one synchronisation of gradients. `held` microbatches are in flight where memory is
    counted. Operators cut `batch_axes` by tokens, and `tensor_axes` by weights, whatever that costs.
    """

    mesh: Mesh
    tokens: float
    element_bytes: float
    microbatches: int = 1
    state_bytes: float = 16.0  # per parameter
    held: int = 0
    batch_axes: tuple[int, ...] = ()
    tensor_axes: tuple[int, ...] = ()
    nodes: list[Operator] = field(default_factory=list)
    edges: list[Resharding] = field(default_factory=list)

    def _roles(self, allowed: str) -> tuple[tuple[str, ...], ...]:
        without = allowed if allowed == "RT" else allowed.replace(TOKENS, "")
        per_axis = [
            TOKENS if axis in self.batch_axes else without if axis in self.tensor_axes else allowed
            for axis in range(len(self.mesh))
        ]
        return tuple(product(*per_axis))

    def _add(self, name: str, rows: Sequence[tuple[tuple[str, ...], float, float]]) -> int:
        roles, seconds, held = zip(*rows, strict=True)
        self.nodes.append(Operator(name, tuple(roles), np.array(seconds), np.array(held)))
        return len(self.nodes) - 1

    def _saved(self, roles: Sequence[str], size: float) -> float:
        """Bytes of an output kept for backward."""
        left = [OUTPUT[role] for role in roles]
        return self.held * size / shards(self.mesh, left, TOKENS + FEATURES + EXPERTS)

    def following(self, name: str, allowed: str, width: float, local_s: float = 0.0) -> int:
        """An operator without weights to speak of: norms and residuals (T or R), attention core (T or F).

        `local_s` are seconds of its work when nothing cuts it; ranks that replicate it all do all of it.
        """
        size = self.tokens * width * self.element_bytes
        return self._add(
            name,
            [
                (roles, local_s / shards(self.mesh, roles, "TF"), self._saved(roles, size))
                for roles in self._roles(allowed)
            ],
        )

    def linear(self, name: str, rows: float, columns: float) -> int:
        """A matrix `rows` -> `columns`."""
        table = []
        for roles in self._roles("TNK"):
            cuts = {of: shards(self.mesh, roles, of) for of in ("NK", "TK", "TN")}
            seconds = 0.0
            for axis, role in zip(self.mesh, roles, strict=True):
                if role == "T":
                    gradient = rows * columns * self.element_bytes / cuts["NK"]
                    seconds += axis.all_reduce_s(gradient) / self.microbatches
                elif role == "N":
                    seconds += axis.all_reduce_s(self.tokens * rows * self.element_bytes / cuts["TK"])
                else:
                    seconds += axis.all_reduce_s(self.tokens * columns * self.element_bytes / cuts["TN"])
            state = self.state_bytes * rows * columns / cuts["NK"]
            saved = self._saved(roles, self.tokens * columns * self.element_bytes)
            table.append((roles, seconds, state + saved))
        return self._add(name, table)

    def experts(self, name: str, parameters: float, hidden: float, held_width: float) -> int:
        """Routed experts, all of them together: E spreads them, T cuts their capacity, M their width.

        `parameters` of all experts; `held_width` features of each token are kept for backward.
        """
        table = []
        for roles in self._roles("TEM"):
            owned = shards(self.mesh, roles, "EM")
            seconds = 0.0
            for axis, role in zip(self.mesh, roles, strict=True):
                if role == "T":
                    seconds += axis.all_reduce_s(parameters * self.element_bytes / owned) / self.microbatches
                elif role == "M":  # forward behind the rows, data gradient in front of the columns
                    size = self.tokens * hidden * self.element_bytes / shards(self.mesh, roles, "TE")
                    seconds += 2 * axis.all_reduce_s(size)
            size = self.tokens * held_width * self.element_bytes
            saved = self.held * size / shards(self.mesh, roles, "TEM")
            table.append((roles, seconds, self.state_bytes * parameters / owned + saved))
        return self._add(name, table)

    def tensor(self, before: int, after: int, width: float, copies: float = 1.0) -> None:
        """A tensor of `width` features per token from one operator to another, and its gradient back.

        On the way to and from experts there are `copies` of each token.
        """
        u, v = self.nodes[before], self.nodes[after]
        matrix = np.zeros((len(u.strategies), len(v.strategies)))
        for p, left in enumerate(u.strategies):
            for q, right in enumerate(v.strategies):
                source, target = [OUTPUT[role] for role in left], [INPUT[role] for role in right]
                size = self.tokens * width * self.element_bytes
                size *= copies if EXPERTS in (*source, *target) else 1.0
                matrix[p, q] = reshard_s(self.mesh, source, target, size)
                matrix[p, q] += reshard_s(self.mesh, target, source, size)
        self.edges.append(Resharding(before, after, matrix))

    def graph(self) -> Graph:
        """The graph of the operators added so far."""
        return Graph(tuple(self.nodes), tuple(self.edges))


def block_graph(builder: Builder, block: Block, hidden: int, norm_s: float = 0.0) -> Graph:
    """One transformer block whose output is the input of the next, equal one.

    Operators: `hid` (norms and residuals, `norm_s` seconds when nothing cuts them), `qkv`, `att`, `out`, then
    `up` and `dn`, or `experts` with `shared_up` and `shared_dn` where some are shared.
    """
    attention, part = block.attention, block.feed_forward
    heads = attention.heads * attention.value_dim
    columns = (attention.parameters(hidden) - heads * hidden) / hidden  # latent projections as one matrix
    hid = builder.following("hid", "RT", hidden, norm_s)
    qkv = builder.linear("qkv", hidden, columns)
    att = builder.following("att", "TF", heads)
    out = builder.linear("out", heads, hidden)
    links = [(hid, qkv, hidden), (qkv, att, columns), (att, out, heads), (out, hid, hidden)]
    dense = part.shared_width if isinstance(part, Experts) else part.width
    if dense:
        inner, name = dense * (1 + part.gated), "shared_" if isinstance(part, Experts) else ""
        up, down = builder.linear(f"{name}up", hidden, inner), builder.linear(f"{name}dn", dense, hidden)
        links += [(hid, up, hidden), (up, down, inner), (down, hid, hidden)]
    for before, after, width in links:
        builder.tensor(before, after, width)
    if isinstance(part, Experts):
        held = part.active * part.width * (1 + part.gated)
        routed = builder.experts("experts", part.expert_parameters(hidden), hidden, held)
        builder.tensor(hid, routed, hidden, part.active)
        builder.tensor(routed, hid, hidden, part.active)
    return builder.graph()


HELD = (1, 8)  # microbatches in flight where memory is counted: the last stage, and one in front
_SHRINK = 0.7  # each program may hold at most this share of what the one before held
_PROGRAMS = 5
# Times that norms and residuals of a block read or write the activations, forward and backward.
_NORM_PASSES = 20


def meshes(setting: Setting) -> Iterator[tuple[Mesh, bool]]:
    """Yields (mesh, whether its first axis must cut the batch) for every logical shape of the GPUs.

    Shapes (data, model) with the model axis inside a node, and one free axis over all GPUs.
    """
    gpus, inside = setting.island.gpus, setting.island.gpus_per_node
    for size in divisors(inside):
        if size > 1 and size < gpus and gpus // size <= int(np.max(setting.microbatch)):
            yield (_axis(setting, gpus // size, size), _axis(setting, size, 1)), True
    yield (_axis(setting, gpus, 1),), False


def _axis(setting: Setting, ranks: int, stride: int) -> Axis:
    """An axis with latency and bandwidth fitted to two simulated all-reduces: one byte, and activations."""
    over = group(setting.island, np.array([ranks]), np.array([stride]), setting.hwdb)
    job = setting.job
    size = job.boundary_bytes(setting.model, 1)
    start, whole = float(all_reduce_s(1.0, over)[0]), float(all_reduce_s(size, over)[0])
    return Axis(ranks, start, 2 * size * (ranks - 1) / ranks / max(whole - start, 1e-12))


def shardings(setting: Setting, block: Block, tensor: int = 0) -> Iterator[tuple[Mesh, SolvedSharding]]:
    """Yields fast shardings of a block, then ones with ever less memory, for every logical mesh.

    `tensor` > 0 fixes the tensor-parallel degree. Memory is counted with few and with many microbatches in
    flight.
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
    """Yields the (tp, dp, ep, sequence parallel) of layouts nearest to a sharding.

    Each axis becomes tensor-parallel, data-parallel, or data-parallel with experts spread over it. Where
    operators disagree about an axis, each choice gives a layout; the simulator's prices decide.
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
