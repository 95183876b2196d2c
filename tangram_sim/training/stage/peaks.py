"""Peak memory of one rank with some chunks: its tensors, the allocator's and the driver's figures."""

from collections.abc import Sequence
from dataclasses import replace

from tangram_sim.training.plan import StagePrice


def _whole(chunks: Sequence[StagePrice]) -> StagePrice:
    """A rank's chunks as one price: static bytes are summed; of activations and transients the maximum."""
    return replace(
        chunks[0],
        static_bytes=sum(chunk.static_bytes for chunk in chunks),
        activation_bytes=max(chunk.activation_bytes for chunk in chunks),
        transient_bytes=max(chunk.transient_bytes for chunk in chunks),
    )


def allocated_bytes(chunks: Sequence[StagePrice], in_flight: int) -> float:
    """Peak bytes of all tensors, including those of the software stack."""
    whole = _whole(chunks)
    return whole.tensor_bytes(in_flight) + whole.workspace_bytes


def reserved_bytes(chunks: Sequence[StagePrice], in_flight: int) -> float:
    """Peak bytes that the allocator holds."""
    whole = _whole(chunks)
    return whole.peak_bytes(in_flight) + whole.workspace_bytes


def device_bytes(chunks: Sequence[StagePrice], in_flight: int) -> float:
    """Peak bytes as the driver reports them: what must fit."""
    return reserved_bytes(chunks, in_flight) + chunks[0].context_bytes


def capacity_bytes(chunks: Sequence[StagePrice]) -> float:
    """Total usable bytes of the GPU."""
    first = chunks[0]
    return first.capacity_bytes + first.workspace_bytes + first.context_bytes
