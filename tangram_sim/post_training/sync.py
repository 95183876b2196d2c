"""Weight sync: seconds to bring new weights into the rollout engines, by bytes, tensors and method.

Lower bound for all methods: every receiver takes in what it needs at the rate of its own network port, and
the weights leave the training pool once at the rate of all its ports.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tangram_sim.clusters import Cluster
from tangram_sim.errors import unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.usual_node import usual_node
from tangram_sim.models import Experts, Model
from tangram_sim.post_training.overheads import Overheads
from tangram_sim.precision import PRECISIONS
from tangram_sim.serving.build import NIC_BYTES_PER_S, NODE_GPUS

BROADCAST, BUCKETED, PACKED = "broadcast", "bucketed", "packed"
SHARDED, DELTA, GATHER, GATHERED = "sharded", "delta", "gather", "gathered"
METHODS = (BROADCAST, BUCKETED, PACKED, SHARDED, DELTA, GATHER, GATHERED)
# Of all weights, as a receiver sees it: 61 GB in 4.4 s, 470 GB in 24 s (verl, 16 and 64 H20).
BUCKETED_BYTES_PER_S = 20e9
GATHERED_BYTES_PER_S = 1.8e9  # 61 GB in 32 s, 470 GB in 256 s (verl, FSDP with experts spread over 8 H100)
DELTA_BYTES_PER_S = 4e9  # of values and places: 145 GB of weights in 13 s (verl, 32 H100)
# Seconds before the first byte, by method: intercepts of the same measurements.
_START_S = {BROADCAST: 0.5, BUCKETED: 0.5, PACKED: 0.8, SHARDED: 0.3, DELTA: 1.0, GATHER: 0.0, GATHERED: 0.5}
PACKED_SHARE = 0.9  # of a node's ports: 247 GB in 1.6 s, 1,342 GB in 3.4 s (NeMo-RL's refit calculator, H100)
CHANGED_SHARE = 0.1  # of values that one step changes in their 16-bit form; given by the user where known


@dataclass(frozen=True, slots=True)
class Sync:
    """Seconds of a weight sync's transfer, and a lower bound for all methods."""

    seconds: float
    bound_s: float
    method: str
    bytes: float
    tensors: int


def tensors_of(model: Model) -> int:
    """Number of tensors in a checkpoint; each expert matrix counts, as checkpoints and engines store them."""
    count = 3
    for block in model.blocks:
        count += 6 + block.norms
        part = block.feed_forward
        if isinstance(part, Experts):
            count += part.experts * (3 if part.gated else 2) + 1 + (3 if part.shared_width else 0)
        else:
            count += 3
    return count


def weight_bytes(model: Model, precision: str) -> float:
    """Bytes of the weights in the rollout precision."""
    return model.parameters * PRECISIONS[precision].weight_bytes


def bound_s(size: float, ranks: int, senders: int, port_bytes_per_s: float) -> float:
    """Least seconds to transfer `size` bytes to replicas of `ranks` GPUs from `senders` GPUs.

    Each receiver takes in its own part, 1 / ranks of the weights, through its own port; the senders send the
    weights once through theirs.
    """
    return max(size / ranks, size / senders) / port_bytes_per_s


def port_bytes_per_s(training: Cluster, rollout: Sequence[str], hwdb: Hwdb) -> float:
    """Bytes/s of the slowest network port of a GPU that sends or receives weights.

    Rollout GPU kinds that do not train are assumed to be in their usual nodes.
    """
    trains = {group.node.gpu.name for group in training.groups}
    ports = [group.node.nic_bytes_per_s / group.node.gpus for group in training.groups]
    ports += [
        usual_node(gpu, NODE_GPUS, hwdb).nic_bytes_per_s / NODE_GPUS for gpu in rollout if gpu not in trains
    ]
    return min((port for port in ports if port), default=NIC_BYTES_PER_S)


def sync_of(
    model: Model,
    precision: str,
    ranks: int,
    training: Cluster,
    method: str,
    *,
    overheads: Overheads,
    hwdb: Hwdb,
    rollout: Sequence[str] = (),
) -> Sync:
    """The weight sync of a step by `method`, to replicas of `ranks` GPUs. Raises UnknownNameError.

    `rollout`: receiving GPU kinds on nodes of their own; empty: the training GPUs themselves receive.
    broadcast: every rollout rank receives all weights, tensor by tensor. bucketed: the same in large pieces
    that overlap. packed: large pieces over all network ports of a node at once. sharded: each rank receives
    its own bytes. delta: changed values and their positions. gather: colocated, weights are gathered on every
    training rank and handed over in memory. gathered: broadcast by a trainer that shards every tensor over
    its ranks (FSDP) and gathers each one first.
    """
    size, tensors = weight_bytes(model, precision), tensors_of(model)
    node = training.groups[0].node
    port = port_bytes_per_s(training, rollout, hwdb)
    inside = not rollout and training.gpus <= node.gpus * max(node.scale_up_nodes, 1)
    rate = (
        node.intra.bytes_per_s if inside and node.intra.bytes_per_s else port * hwdb.network_efficiency.value
    )
    per_tensor = overheads.tensor_s * tensors
    if method == GATHER:
        moved = size / min(overheads.gather_bytes_per_s, node.intra.bytes_per_s or rate)
        least = size / ranks / node.gpu.memory_bytes_per_s
    else:
        least = bound_s(size, ranks, training.gpus, rate)
        if method == BROADCAST:
            moved = size / min(overheads.broadcast_bytes_per_s, rate)
        elif method == BUCKETED:
            moved, per_tensor = size / min(BUCKETED_BYTES_PER_S, rate), per_tensor / 10.0
        elif method == GATHERED:
            moved, per_tensor = size / min(GATHERED_BYTES_PER_S, rate), 0.0
        elif method == PACKED:
            ports = node.intra.bytes_per_s if inside and node.intra.bytes_per_s else port * node.gpus
            moved, per_tensor = size / (PACKED_SHARE * max(ports, rate)), per_tensor / 10.0
        elif method == SHARDED:
            moved = least / 0.8
        elif method == DELTA:
            value = PRECISIONS[precision].weight_bytes
            changed = size * CHANGED_SHARE * (value + 4.0) / value
            moved, per_tensor = changed / min(DELTA_BYTES_PER_S, rate), 0.0
        else:
            raise unknown_name("weight sync method", method, METHODS)
    return Sync(max(_START_S[method] + per_tensor + moved, least), least, method, size, tensors)
