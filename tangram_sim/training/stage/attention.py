"""The attention core of a block: on one rank, over a ring of ranks, or with an exchange of heads for tokens.

Ring attention: Liu et al. (arXiv:2310.01889). Causal masks are balanced by giving every rank one block of the
sequence from either end (zigzag; Llama 3, arXiv:2407.21783, section 3.3.2), so that all steps of all ranks
cost the same. Exchange of heads for tokens: Jacobs et al., DeepSpeed Ulysses (arXiv:2309.14509).
"""

from typing import NamedTuple

import numpy as np

from tangram_sim.cost.collectives import all_to_all_s, send_receive_s
from tangram_sim.cost.kernels import (
    Floats,
    Number,
    fused_attention_s,
    streaming_s,
    unfused_attention_s,
    visible_keys,
)
from tangram_sim.layers.products import kv_heads
from tangram_sim.layers.program import COMPUTE, EXCHANGE, Program
from tangram_sim.models import Attention, Block
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.stage.state import drops, kv_bytes

# Backward seconds of the fused attention core over forward ones: five products where forward does two, at
# 0.85 of its rate (flash-attention on a B200: 1,418 TFLOP/s forward and 1,209 backward; repository
# Dao-AILab/flash-attention, pull request 2280).
FUSED_BACKWARD = 2.5 / 0.85


class Unfused(NamedTuple):
    """Costs of attention without a flash kernel."""

    passes: float  # times the score matrix is streamed forward
    backward: float  # backward seconds over forward ones


# The product writes the scores, one kernel for scale, mask and softmax reads and writes them, the second
# product reads them; four products backward. Without that kernel mask and softmax are kernels of their own,
# and backward each of them and the scaling move two or three matrices. The counts are then those at which the
# 32-bit blocks that Sailor profiled (`traces/sailor`) agree best on six GPU kinds: 3.5 % in the mean, 7.0 %
# with six passes and a factor of two.
FUSED_SOFTMAX, SEPARATE_SOFTMAX = Unfused(4.0, 2.0), Unfused(7.0, 2.5)
DROPOUT_PASSES = 2.0  # forward beside them: reads and writes the scores

# Kernels that the host launches for every step of a ring behind the first: attention, slices of queries or
# keys, sums of statistics and results, sends and receives; and backward.
RING_KERNELS_FORWARD, RING_KERNELS_BACKWARD = 3, 4
MERGE_KERNELS = 3  # of them, where they are not fused: convert a partial result, add it, add its statistics
TILE_ROWS = 128.0  # queries of one tile of a fused kernel
# Tiles that run at once (A100 108 multiprocessors, H100 132, B200 148); the last round of every kernel is
# half empty. One long kernel has that in its measured efficiency, a ring runs one for each step.
PROCESSORS, LAST_ROUND = 128.0, 0.5


class Core(NamedTuple):
    """Seconds of one direction of the core on one rank. Arrays of K."""

    inward: Floats  # exchange of heads for tokens, in front of the core
    ahead: Floats  # all steps of a ring but the last; nothing without one
    passing: Floats  # the ring's transfers, beside `ahead`
    last: Floats  # the last step, or all
    outward: Floats  # exchange back

    def scaled(self, scale: Floats) -> "Core":
        """The core with all times multiplied by `scale` (0 or 1 for each layout)."""
        return Core(*(seconds * scale for seconds in self))


def cores(setting: Setting, block: Block) -> tuple[Core, Core]:
    """(forward, backward) attention core of a block."""
    zero = np.zeros(len(setting.layouts))
    alone = _alone_s(setting, block)
    factor = attention_backward(setting)
    forward = Core(zero, zero, zero, alone, zero)
    backward = forward._replace(last=factor * alone)
    if not (setting.cp > 1).any():
        return forward, backward
    if setting.job.code.exchanges_heads:
        apart = (setting.cp > 1).astype(np.float64)
        inward, outward = (apart * seconds for seconds in _exchanges_s(setting, block.attention))
        return (
            forward._replace(inward=inward, outward=outward),
            backward._replace(inward=outward, outward=inward),
        )
    return _ring(setting, block, alone), _ring(setting, block, alone, factor)


def add_core(program: Program, core: Core, name: str, *after: int) -> int:
    """Append the ops of an attention core; return the op that produces its result."""
    if core.inward.any():
        after = (program.add(f"{name} exchange", EXCHANGE, "context_parallel", core.inward, *after),)
    if core.passing.any() or core.ahead.any():
        ring = program.add(f"{name} ring", EXCHANGE, "context_parallel", core.passing, *after)
        steps = program.add(f"{name} steps", COMPUTE, "attention", core.ahead, *after)
        after = (ring, steps)
    done = program.add(name, COMPUTE, "attention", core.last, *after)
    if core.outward.any():
        done = program.add(f"{name} exchange back", EXCHANGE, "context_parallel", core.outward, done)
    return done


def ring_kernels(setting: Setting, backward: bool) -> Floats:
    """Kernels that the host launches for all ring steps but the first, [K]."""
    steps = 0.0 if setting.job.code.exchanges_heads else setting.cp - 1.0
    return np.asarray(steps * (RING_KERNELS_BACKWARD if backward else RING_KERNELS_FORWARD))


def attention_backward(setting: Setting) -> float:
    """Ratio of backward to forward seconds of the attention core."""
    return FUSED_BACKWARD if setting.rates.fused_attention else _unfused(setting).backward


def _unfused(setting: Setting) -> Unfused:
    return FUSED_SOFTMAX if setting.job.fused_softmax else SEPARATE_SOFTMAX


def _keys(setting: Setting, attention: Attention) -> float:
    """Mean number of keys in the whole sequence that a query is multiplied with."""
    if not setting.rates.fused_attention:
        return float(setting.job.seq)  # the whole matrix, masked
    return visible_keys(setting.job.attended, attention.window, attention.causal)


def _alone_s(setting: Setting, block: Block, pieces: Number = 1.0) -> Floats:
    """Forward seconds of one of `pieces` equal pieces of a rank's core, each a separate kernel."""
    attention, rates = block.attention, setting.rates
    heads, width = setting.sharding.width(attention.heads), setting.job.precision.activation_bytes
    dims = attention.head_dim, attention.value_dim
    scores = setting.tokens * _keys(setting, attention) * heads / pieces
    if not rates.fused_attention:
        passed = _unfused(setting).passes + (DROPOUT_PASSES if drops(setting, block) else 0.0)
        return unfused_attention_s(scores, *dims, scores * passed * width, rates)
    moved = setting.tokens * (heads + kv_heads(setting, attention)) * sum(dims) * width
    return fused_attention_s(scores, *dims, moved, rates)


def _ring(setting: Setting, block: Block, alone: Floats, backward: float = 0.0) -> Core:
    """Ring attention in `cp` steps: each step computes with the keys received so far and sends them on.

    The last step waits for the last transfer, so transfers shorter than a step add no time. Backward, the
    gradients of keys and values are sent along.
    """
    attention, rates, cp = block.attention, setting.rates, setting.cp
    width, columns = setting.job.precision.activation_bytes, attention.head_dim + attention.value_dim
    heads = setting.sharding.width(attention.heads)
    ringed, steps = cp > 1, cp - 1.0
    streamed = setting.job.code.streamed_ring
    step = _alone_s(setting, block, cp.astype(np.float64))
    if streamed:
        step = step - rates.launch_s
    elif rates.fused_attention:
        # The tiles of a step are queries by the keys of one or half a block: 0.75 of a block on average.
        keys = (0.75 if attention.causal else 1.0) * setting.job.attended / cp
        tile = fused_attention_s(TILE_ROWS * keys, attention.head_dim, attention.value_dim, 0.0, rates)
        step = step + LAST_ROUND * PROCESSORS * (tile - rates.launch_s)
    # A partial result (the output; backward the gradients of queries, keys and values) is added to the sum:
    # both read, one written. Unless that is one kernel it is first converted to fp32, the sum's type.
    merged, kernels = (3.0 * width, 1) if streamed else (width + 4.0 * 4.0, MERGE_KERNELS)
    numbers = setting.tokens * heads * attention.value_dim
    passed = kv_bytes(setting, attention)
    if backward:
        step = backward * step
        numbers = setting.tokens * (heads * attention.head_dim + kv_heads(setting, attention) * columns)
        passed = 2.0 * passed
    merge = streaming_s(numbers * merged, rates) + (kernels - 1.0) * rates.launch_s
    whole = backward * alone if backward else alone
    return Core(
        inward=np.zeros_like(step),
        ahead=steps * step + np.maximum(steps - 1.0, 0.0) * merge,
        passing=steps * send_receive_s(passed, setting.cp_group),
        last=np.where(ringed, step + merge, whole),
        outward=np.zeros_like(step),
    )


def _exchanges_s(setting: Setting, attention: Attention) -> tuple[Floats, Floats]:
    """(seconds to exchange queries, keys and values; seconds to exchange results), tokens for heads.

    Each number is also read and written once to sort it by rank. Where there are fewer key heads than ranks,
    each is sent to several ranks.
    """
    rates, width = setting.rates, setting.job.precision.activation_bytes
    queries = setting.sharding.width(setting.tokens * attention.heads) * width
    columns = attention.head_dim + attention.value_dim
    keys = setting.tokens * np.maximum(kv_heads(setting, attention), setting.cp) * columns * width
    inward, outward = queries * attention.head_dim + keys, queries * attention.value_dim
    return tuple(  # type: ignore[return-value]  # of two
        all_to_all_s(moved, setting.cp_group) + streaming_s(2.0 * moved, rates) for moved in (inward, outward)
    )
