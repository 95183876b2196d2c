"""Seconds to move the KV cache of a prompt from prefill to decode over the link between them."""

from tangram_sim.cost.collectives import transfer_s
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.deployment import Deployment
from tangram_sim.serving.transfer import prompt_kv_bytes


def kv_transfer_s(
    source: Deployment,
    target: Deployment,
    tokens: float,
    hwdb: Hwdb,
    *,
    cached: float = 0.0,
    sharing: float = 1.0,
    prefill_s: float = 0.0,
) -> float:
    """Seconds until a prompt's cache is at the decode replica, after its prefill.

    Each rank sends its part through its own NIC; the narrower side's NICs together are the link, of which
    `sharing` transfers at once have equal parts. With layer-wise overlap, all but the last layer's part
    moves during `prefill_s`. Raises BadInputError where the two caches differ.
    """
    if source.model != target.model or source.precision.kv != target.precision.kv:
        raise BadInputError(
            f"prefill keeps {source.model.name} in {source.precision.kv} and decode {target.model.name} in "
            f"{target.precision.kv}; both sides of a transfer need the same model and type of cache"
        )
    rate = min(
        sum(stage.island.nic_bytes_per_s * stage.island.nodes for stage in side.stages)
        for side in (source, target)
    )
    rate *= hwdb.network_efficiency.value / max(sharing, 1.0)
    latency = max(stage.island.nic_latency_s for side in (source, target) for stage in side.stages)
    whole = transfer_s(prompt_kv_bytes(source, tokens, cached), rate, latency)
    last = whole / source.model.layers
    return max(whole - prefill_s, last) if prefill_s > 0 else whole
