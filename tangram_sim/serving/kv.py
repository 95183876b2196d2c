"""Memory for the KV cache: memory of each stage, weights, what the engine reserves, blocks.

The number of blocks is the smallest of all stages' (engines take the minimum over workers).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tangram_sim.cost.device import capacities
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Attention, Block, Experts, Model
from tangram_sim.precision import STORED_BYTES, Precision
from tangram_sim.serving.calibration import EngineFit
from tangram_sim.serving.deployment import Deployment, ReplicaStage
from tangram_sim.serving.forward import STATE_BYTES
from tangram_sim.serving.stepcost import KvCapacity
from tangram_sim.units import show_bytes


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Use of the memory of one rank of a stage, bytes."""

    given: float  # what the engine may take of the card
    weights: float
    kept: float  # context, workspaces, logits, buffers
    token: float  # KV bytes of one token in all blocks of the stage
    states: float  # recurrent states of one request

    @property
    def left(self) -> float:
        """Bytes for the KV cache; negative where the weights do not fit."""
        return self.given - self.weights - self.kept


def attention_bytes(attention: Attention, hidden: int, tp: int, precision: Precision) -> float:
    """Bytes of one attention layer's weights on one rank.

    Every rank holds the down-projections of latent attention in full; other matrices are divided.
    """
    whole = attention.parameters(hidden)
    if attention.kv_rank:
        down = hidden * ((attention.query_rank or 0) + attention.kv_rank + attention.rope_dim)
        elements = down + (whole - down) / tp
    else:
        keys = attention.kv_heads * (attention.head_dim + attention.value_dim) * hidden
        elements = (whole - keys) / tp + keys * max(1.0 / tp, 1.0 / attention.kv_heads)
    return elements * precision.attention_bytes


def block_bytes(block: Block, deployment: Deployment, tp: int) -> float:
    """Bytes of the weights of one transformer block on one rank."""
    hidden, precision, part = deployment.model.hidden, deployment.precision, block.feed_forward
    norms = block.norms * block.norm_width(hidden) * STORED_BYTES[precision.vector]
    total = attention_bytes(block.attention, hidden, tp, precision) + norms
    if isinstance(part, Experts):
        ranks = tp * deployment.attention_dp  # each expert lies on ep ranks' share, split by the others
        total += part.expert_parameters(hidden) / ranks * precision.expert_bytes
        router = part.experts * (hidden + part.router_bias)
        total += router * STORED_BYTES[precision.vector]
        return total + (part.common_parameters(hidden) - router) / tp * precision.weight_bytes
    return total + part.parameters(hidden) / tp * precision.weight_bytes


def end_bytes(model: Model, precision: Precision, tp: int, first: bool, last: bool) -> float:
    """Bytes of embedding and output head on one rank, split over the vocabulary.

    A tied matrix counts once on a stage that holds both.
    """
    elements = 0.0
    if first:
        elements += model.embedding_parameters
    if last:
        elements += model.head_only_parameters
        elements += 0 if model.tied and first else model.vocabulary_parameters
    return elements / tp * precision.end_bytes


def stage_memory(deployment: Deployment, stage: ReplicaStage, hwdb: Hwdb, fit: EngineFit) -> StageMemory:
    """Use of the memory of one rank of a stage: weights, what the engine reserves, KV bytes per token."""
    model, precision, engine = deployment.model, deployment.precision, deployment.engine
    gpu = stage.island.gpu
    usable, _ = capacities(gpu, hwdb.efficiency(gpu, "bf16"))
    first, last = stage.first == 0, stage.end == model.layers
    blocks = model.blocks[stage.first : stage.end]
    weights = sum(block_bytes(block, deployment, stage.tp) for block in blocks)
    weights += end_bytes(model, precision, stage.tp, first, last)
    kept = fit["memory_base_bytes"]
    if last:
        kept += fit["memory_logit_bytes"] * engine.max_sequences * model.vocab
    if stage.gpus > 1:
        kept += fit["memory_group_bytes"]
    if engine.memory_fraction_of == "card":
        given = engine.memory_fraction * usable
    else:  # a share of what weights and activations leave
        given = weights + kept + engine.memory_fraction * max(usable - weights - kept, 0.0)
    token = sum(block.attention.cached_elements(stage.tp) for block in blocks) * precision.kv_bytes
    states = sum(block.attention.state_elements for block in blocks) / stage.tp * STATE_BYTES
    return StageMemory(given, weights, kept, token, states)


def kv_capacity(deployment: Deployment, hwdb: Hwdb, fit: EngineFit, longest: int = 0) -> KvCapacity:
    """KV blocks of the replica. Raises InfeasibleError, with numbers, if the weights or one block do not fit.

    `longest` is the length of the longest request in tokens. Recurrent layers keep a state for each request;
    its bytes are spread over `longest` tokens, so that every such request that fits has a state. 0: no memory
    is reserved for states.
    """
    memories = [stage_memory(deployment, stage, hwdb, fit) for stage in deployment.stages]
    return capacity_of(deployment, memories, longest)


def capacity_of(deployment: Deployment, memories: Sequence[StageMemory], longest: int = 0) -> KvCapacity:
    """KV blocks of the replica, given the memory of every stage; see `kv_capacity`."""
    engine = deployment.engine
    blocks = []
    for index, (stage, memory) in enumerate(zip(deployment.stages, memories, strict=True)):
        if memory.left <= 0:
            raise InfeasibleError(
                f"stage {index} does not fit: {show_bytes(memory.weights)} of weights and "
                f"{show_bytes(memory.kept)} beside them on each {stage.island.gpu.name}, of which "
                f"{deployment.engine.engine} may take {show_bytes(memory.given)}; give more `tp=` or `pp=`, "
                "a larger GPU or fewer bits"
            )
        token = memory.token + (memory.states / longest if longest else 0.0)
        blocks.append(int(memory.left // (token * engine.block_tokens)) if token else 10**9)
    if min(blocks) < 1:
        raise InfeasibleError("no KV block fits beside the weights; give more `tp=` or `pp=`, or fewer bits")
    return KvCapacity(min(blocks) * deployment.attention_dp, engine.block_tokens)
