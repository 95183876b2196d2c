"""Bytes of a prompt's KV cache that is sent from prefill to decode."""

from tangram_sim.serving.deployment import Deployment


def prompt_kv_bytes(deployment: Deployment, tokens: float, cached: float = 0.0) -> float:
    """KV bytes of a prompt of `tokens` on the whole replica, less `cached` tokens that the target has."""
    elements = sum(block.attention.cached_elements() for block in deployment.model.blocks)
    states = sum(block.attention.state_elements for block in deployment.model.blocks)
    moved = max(tokens - cached, 0.0)
    return (moved * elements + states) * deployment.precision.kv_bytes
