"""Costs of a mixture of experts other than its products: launches, conversions, padding, dispatch."""

import numpy as np

from tangram_sim.cost.collectives import all_to_all_s
from tangram_sim.cost.kernels import Floats
from tangram_sim.models import Block, Experts
from tangram_sim.training.stage import gemms
from tangram_sim.training.stage.setting import Setting

# Kernels of a router and of sorting tokens by expert and back: scores, softmax, top-k, counts, gathers.
ROUTER_KERNELS_FORWARD, ROUTER_KERNELS_BACKWARD = 10, 12
# Of every local expert, where they are not one grouped product: two products, an activation; and backward.
EXPERT_KERNELS_FORWARD, EXPERT_KERNELS_BACKWARD = 3, 6
# Of every local expert where products run in a narrow type, grouped or not: two operands converted.
CAST_KERNELS = 2
# Bytes per weight converted forward: read in 16 bits, written for this pass and, transposed, for the other.
WEIGHT_CAST_BYTES = 4.0
# Passes over the copies of tokens: experts' rows are filled up to what narrow products want, and cut again.
PADDING_PASSES = 4.0
# What is left of an exchange that runs beside another microbatch's pass. DeepSeek-V3 on 1,024 H100 and on 256
# B200 (NVIDIA-NeMo/Megatron-Bridge, performance summary) take as long as their passes without it.
OVERLAPPED = 0.1


def expert_kernels(setting: Setting, block: Block, backward: bool) -> float | Floats:
    """Kernels that the host launches for a block's experts beyond those of a dense block, [K]."""
    part = block.feed_forward
    if not isinstance(part, Experts):
        return 0.0
    local = part.experts / setting.ep
    router, own = (
        (ROUTER_KERNELS_BACKWARD, EXPERT_KERNELS_BACKWARD)
        if backward
        else (ROUTER_KERNELS_FORWARD, EXPERT_KERNELS_FORWARD)
    )
    each = 0.0 if setting.job.code.groups_experts else own * (local - 1.0)
    return router + each + (CAST_KERNELS * local if setting.job.precision.narrow else 0.0)


def apart(setting: Setting, part: Experts, grouped: gemms.Passes) -> gemms.Passes:
    """The passes of a grouped product, or of one product per local expert without grouping, [K]."""
    if setting.job.code.groups_experts:
        return grouped
    starts = (part.experts / setting.ep - 1.0) * setting.rates.launch_s
    return gemms.Passes(*(seconds + starts for seconds in grouped))


def narrow_bytes(setting: Setting, part: Experts) -> Floats:
    """Bytes moved forward to run experts in a narrow type: converted weights, padded copies of tokens.

    Weights of experts are converted for every microbatch, and again backward with the rest (1.5 times the
    forward bytes). Both are fitted to Grok-1 on H100 (`traces/published`, dgxc-078 to -086): 2.4 to 4.5 ms a
    layer more than 16-bit rows of the same layouts, 0.7 ms of it for each local expert of 151 M parameters.
    """
    if not setting.job.precision.narrow:
        return np.zeros(len(setting.layouts))
    hidden, width = setting.model.hidden, setting.job.precision.activation_bytes
    copies = setting.tokens * part.active * gemms.imbalance(setting) * hidden
    return np.asarray(weight_cast_bytes(setting, part) + PADDING_PASSES * width * copies)


def weight_cast_bytes(setting: Setting, part: Experts) -> Floats:
    """The part of `narrow_bytes` for weights: once per microbatch, whatever its number of tokens."""
    if not setting.job.precision.narrow:
        return np.zeros(len(setting.layouts))
    weights = part.expert_parameters(setting.model.hidden) / (setting.tp * setting.ep)
    return np.asarray(WEIGHT_CAST_BYTES * weights)


def dispatch_s(setting: Setting, part: Experts) -> Floats:
    """Seconds to send every token to its experts, for the most loaded rank.

    With sequence parallelism each tensor-parallel rank sends its share of the tokens and gathers the rest
    after the exchange; without it each sends all tokens. Stacks with hierarchical exchanges send a token to a
    domain once, however many of its experts are there, where that is faster (DeepSeek-V3, arXiv:2412.19437,
    section 3.2.2).
    """
    senders = np.where(setting.sequence_shards > 1, setting.tp, 1)
    columns = part.sent_width or setting.model.hidden
    residual_bytes = setting.tokens * columns * setting.job.precision.activation_bytes
    sent = residual_bytes * part.active * gemms.imbalance(setting) / senders
    seconds = all_to_all_s(sent, setting.ep_group)
    if setting.job.code.sends_once:
        seconds = np.minimum(seconds, all_to_all_s(sent, setting.ep_group, copies=part.active))
    if setting.job.code.overlaps_experts and setting.job.schedule == "interleaved":
        seconds = seconds * OVERLAPPED
    return seconds
