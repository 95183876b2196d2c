"""Peak memory of one rank with some chunks: its tensors, what the allocator holds, what the driver shows."""

from collections.abc import Sequence
from dataclasses import replace

from tangram_sim.training.plan import StagePrice


def _whole(chunks: Sequence[StagePrice]) -> StagePrice:
    """All chunks of a rank as one: states add up, activations and transients are the largest chunk's."""
    return replace(
        chunks[0],
        static_bytes=sum(chunk.static_bytes for chunk in chunks),
        activation_bytes=max(chunk.activation_bytes for chunk in chunks),
        transient_bytes=max(chunk.transient_bytes for chunk in chunks),
    )


def allocated_bytes(chunks: Sequence[StagePrice], in_flight: int) -> float:
    """Peak of all tensors, those of the software stack with them."""
    whole = _whole(chunks)
    return whole.tensor_bytes(in_flight) + whole.workspace_bytes


def reserved_bytes(chunks: Sequence[StagePrice], in_flight: int) -> float:
    """Peak of what the allocator holds."""
    whole = _whole(chunks)
    return whole.peak_bytes(in_flight) + whole.workspace_bytes


def device_bytes(chunks: Sequence[StagePrice], in_flight: int) -> float:
    """Peak as the driver shows it: what must fit."""
    return reserved_bytes(chunks, in_flight) + chunks[0].context_bytes


def capacity_bytes(chunks: Sequence[StagePrice]) -> float:
    """What the GPU holds in all."""
    first = chunks[0]
    return first.capacity_bytes + first.workspace_bytes + first.context_bytes
