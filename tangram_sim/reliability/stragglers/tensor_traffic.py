"""Bytes and seconds that pruning and migrating columns add to the layers of a tensor-parallel group.

Published traffic is that of SEMI-migration's code (github:fearless1007/ZERO at 907a48f): every matrix and
every microbatch, over the whole group, regardless of the share that is sent. Unit migration is our own: whole
feed-forward units and key/value groups move, so that inputs are already in place and outputs are summed in
the all-reduce; weights are sent and gradients returned once a step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tangram_sim.cost.collectives import Group, broadcast_s
from tangram_sim.layers import products
from tangram_sim.layers.products import Gemm
from tangram_sim.models import Block, Experts
from tangram_sim.reliability.stragglers.tensor_shares import LayerCosts
from tangram_sim.training.stage import gemms
from tangram_sim.training.stage.setting import Setting

METHODS = ("unit-migration", "semi-migration", "zero-resizing")
_LIST_BYTES = 8.0  # an entry of a list of columns, int64


class Linear(NamedTuple):
    """One rank's shard of a weight matrix, outputs x inputs (the contracted dimension), for `rows` tokens."""

    outputs: float
    inputs: float
    rows: float
    copies: float = 1.0

    @property
    def weights(self) -> float:
        """Entries of the shard, of all copies."""
        return self.outputs * self.inputs * self.copies


class Message(NamedTuple):
    """A collective over the group: `whole` bytes whatever share is sent, plus `listed` times the share."""

    name: str
    whole: float
    listed: float = 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one sender: `whole` regardless of the share that it sends, plus `listed` times that share."""

    whole: float
    listed: float

    def at(self, share: float) -> float:
        """Bytes of a sender that sends `share` of its columns; 0 for none."""
        return self.whole + self.listed * share if share > 0 else 0.0


def linears(setting: Setting, blocks: Iterable[Block]) -> list[Linear]:
    """The sharded matrices of `blocks` under the first layout of a setting."""
    return [
        _linear(attention_gemm)
        for block in blocks
        for attention_gemm in (*attention_gemms(setting, block), *inner_gemms(setting, block))
    ]


def attention_gemms(setting: Setting, block: Block) -> list[Gemm]:
    """Products of a block's attention on one rank."""
    return [
        *products.input_projections(setting, block.attention),
        *products.output_projection(setting, block.attention),
    ]


def inner_gemms(setting: Setting, block: Block) -> list[Gemm]:
    """Products of a block's feed-forward network or experts on one rank."""
    part = block.feed_forward
    if isinstance(part, Experts):
        rows = gemms.computed_rows(setting, part)
        return gemms.expert_up(setting, part, rows) + gemms.expert_down(setting, part, rows)
    return products.up_projection(setting, part) + products.down_projection(setting, part)


def _linear(gemm: Gemm) -> Linear:
    rows, n, k, copies = (float(np.ravel(value)[0]) for value in gemm)
    return Linear(n, k, rows, copies)


def published_messages(linear: Linear, element_bytes: float) -> tuple[Message, ...]:
    """The collectives for one sender, matrix and microbatch, in order: forward, then backward."""
    weights = element_bytes * linear.weights
    outputs = element_bytes * linear.rows * linear.outputs * linear.copies
    columns = _LIST_BYTES * linear.inputs * linear.copies
    return (
        Message("broadcast of the shard", weights),
        Message("broadcast of the list of columns", 0.0, columns),
        Message("reduce of partial outputs", outputs),
        Message("broadcast of the shard", weights),
        Message("broadcast of the list of columns", 0.0, columns),
        Message("broadcast of the output gradient", outputs),
        Message("reduce of weight gradients", weights),
    )


def published_traffic(held: Sequence[Linear], element_bytes: float) -> Traffic:
    """Bytes of one sender per microbatch under the published method."""
    messages = [message for linear in held for message in published_messages(linear, element_bytes)]
    return Traffic(sum(item.whole for item in messages), sum(item.listed for item in messages))


def unit_traffic(held: Sequence[Linear], weight_bytes: float, gradient_bytes: float) -> Traffic:
    """Bytes of one sender per step under unit migration: weights are sent, gradients returned."""
    return Traffic(0.0, (weight_bytes + gradient_bytes) * sum(item.weights for item in held))


@dataclass(frozen=True, slots=True)
class SharingCosts:
    """Costs of pruning and sending for a stage's layers on one rank: seconds a microbatch, bytes a step."""

    gather_s: float
    published_s: LayerCosts  # its `send_s` and `share_s`
    unit_s: LayerCosts
    published: Traffic  # of all micro-batches of a step
    unit: Traffic
    transient_bytes: float  # on every rank of the group, as published

    def costs(self, base: LayerCosts, method: str) -> LayerCosts:
        """`base` (costs without pruning and sending) with the costs of `method` added."""
        added = self.unit_s if method == "unit-migration" else self.published_s
        base = replace(base, gather_s=self.gather_s, send_s=added.send_s, share_s=added.share_s)
        return base if method == "unit-migration" else replace(base, units=0)

    def traffic(self, method: str) -> Traffic:
        """Bytes of one sender per step under `method`."""
        return self.unit if method == "unit-migration" else self.published


def sharing_costs(setting: Setting, blocks: Sequence[Block], microbatches: int) -> SharingCosts:
    """Costs of pruning and sending columns of `blocks` under the first layout of a setting."""
    held, over, precision = linears(setting, blocks), setting.tp_group, setting.job.precision
    element, gradient = precision.activation_bytes, setting.job.recipe.gradient_bytes
    published = published_traffic(held, element)
    unit = unit_traffic(held, precision.weight_bytes, gradient)
    messages = [
        published_message for linear in held for published_message in published_messages(linear, element)
    ]
    touched = element * sum(item.rows * item.inputs * item.copies + item.weights for item in held)
    whole_s = sum(_seconds(message.whole, over) for message in messages)
    return SharingCosts(
        gather_s=touched / setting.rates.memory_bytes_per_s,
        published_s=LayerCosts(
            1.0, 0.0, 0.0, whole_s, sum(_seconds(message.listed, over) for message in messages)
        ),
        unit_s=LayerCosts(
            1.0, share_s=_per_step_s(held, precision.weight_bytes, gradient, over) / microbatches
        ),
        published=Traffic(published.whole * microbatches, published.listed * microbatches),
        unit=unit,
        transient_bytes=max(
            element * (2 * item.weights + item.rows * item.outputs * item.copies) for item in held
        ),
    )


def _per_step_s(held: Sequence[Linear], weight_bytes: float, gradient_bytes: float, over: Group) -> float:
    """Seconds to send all weights of a rank and to return their gradients, layer by layer."""
    return sum(
        _seconds(each * item.weights, over) for item in held for each in (weight_bytes, gradient_bytes)
    )


def _seconds(total_bytes: float, over: Group) -> float:
    """Seconds of a broadcast over the group, or of the mirrored reduce."""
    return float(broadcast_s(total_bytes, over)[0])
