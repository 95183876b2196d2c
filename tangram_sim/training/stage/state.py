"""Memory of an atom on a rank, and its data-parallel communication: weights, gradients, activations.

Activation accounting follows Korthikanti et al. (arXiv:2205.05198, section 4), generalised to grouped
queries, gated feed-forwards, experts, latent attention and context parallelism. docs/models/memory.md has the
equations.
"""

from typing import NamedTuple

import numpy as np

from tangram_sim.cost.collectives import all_gather_s, all_reduce_s, all_to_all_s, broadcast_s
from tangram_sim.cost.kernels import Floats, streaming_s
from tangram_sim.layers.atoms import Atom, Embedding, End, Head
from tangram_sim.layers.products import kv_heads
from tangram_sim.models import Attention, Block, Experts
from tangram_sim.training.job import Job
from tangram_sim.training.stage.setting import Setting

BUCKET = 5e8  # elements that DeepSpeed reduces at once (runtime/engine.py, `buffered_allreduce_fallback`)
MASK_BYTES = 1.0  # a dropout mask, per number
# Bytes of fp32 copies per logit at the peak of a loss: the copy that is overwritten with the gradient, or the
# softmax's logarithms with their gradient and that of the logits.
LOSS_FUSED, LOSS_PLAIN = 4.0, 12.0
# Norms of plain operations keep an fp32 copy of their input and the normalised 16-bit tensor, per number.
PLAIN_NORM = 4.0
MASKED_FRACTION = 0.16  # tokens a masked language model predicts (BERT's 15 %, padded)


class Held(NamedTuple):
    """Bytes of one atom on one rank. Arrays of K."""

    static: Floats  # weights, gradients, optimizer state, at the layout's ZeRO stage
    activation: Floats  # kept per microbatch in flight
    transient: Floats  # extra while the atom itself runs
    scratch: (
        Floats  # kept from its first backward on and shared by like atoms: gradients as products leave them
    )


def parameters_per_rank(setting: Setting, atom: Atom) -> tuple[Floats, Floats]:
    """(dense, expert) parameters of an atom that one rank keeps and reduces, before any ZeRO sharding.

    A matrix borrowed from the other end of the stage is counted there.
    """
    dense, expert = _parameters_read(setting, atom)
    if isinstance(atom, Block) or not atom.borrowed:
        return dense, expert
    return dense - setting.sharding.width(atom.borrowed), expert


def _parameters_read(setting: Setting, atom: Atom) -> tuple[Floats, Floats]:
    """(dense, expert) parameters that an atom reads on one rank, including borrowed ones."""
    if not isinstance(atom, Block):
        return setting.sharding.width(atom.parameters), np.zeros(len(setting.layouts))
    hidden, part = setting.model.hidden, atom.feed_forward
    total = atom.parameters(hidden)
    experts = part.expert_parameters(hidden) if isinstance(part, Experts) else 0
    return setting.sharding.width(total - experts), experts / (setting.tp * setting.ep)


def _sharded(setting: Setting, atom: Atom, stage: int) -> Floats:
    """Parameters of an atom on one rank, sharded over the replicas from ZeRO stage `stage` upward.

    Fully sharded experts are divided over their replicas at any ZeRO stage; hybrid groups shard dense
    parameters only.
    """
    dense, expert = parameters_per_rank(setting, atom)
    on = setting.zero >= stage
    kept = np.where(on, dense / setting.shards, dense)
    return kept + np.where(on | setting.fsep, expert / setting.expert_replicas, expert)


def _weight_bytes(job: Job, atom: Atom) -> float:
    """Bytes of one weight; frozen ones (with adapters) are in the products' operand type, or 4 bits."""
    precision = job.precision
    plain = min(precision.weight_bytes, precision.operand_bytes)  # the model's ends are not quantised
    frozen = (1.0 - job.trainable) * (job.frozen_bytes if isinstance(atom, Block) else plain)
    return job.trainable * precision.weight_bytes + frozen


def _optimizer_bytes(job: Job, atom: Atom) -> float:
    """Bytes per parameter of optimizer state and master copy; with Muon, embedding and head use AdamW."""
    return job.optimizer_bytes + (4.0 if job.optimizer == "muon" and not isinstance(atom, Block) else 0.0)


def static_bytes(setting: Setting, atom: Atom) -> Floats:
    """Bytes of weights, gradients and optimizer state of an atom on one rank, under recipe and stack."""
    recipe, job = setting.job.recipe, setting.job
    # Where a recipe has a master copy, a sharding optimizer of the stack may keep more (copies of gradients)
    # or less (no 16-bit shard) for it.
    master = setting.rates.master_bytes if recipe.master_bytes else 0.0
    state = _optimizer_bytes(job, atom) + np.where(setting.zero >= 1, master - recipe.master_bytes, 0.0)
    return (
        _sharded(setting, atom, 3) * _weight_bytes(job, atom)
        + _sharded(setting, atom, 2) * recipe.gradient_bytes * job.trainable
        + _sharded(setting, atom, 1) * state * job.trainable
    )


def optimizer_s(setting: Setting, atom: Atom) -> Floats:
    """Seconds of the memory-bound optimizer update: all state read and written, in as many passes as the
    stack makes."""
    job = setting.job
    moved = 2 * _optimizer_bytes(job, atom) + job.recipe.gradient_bytes + job.precision.weight_bytes
    moved *= job.trainable * job.code.optimizer_passes
    seconds = streaming_s(_sharded(setting, atom, 1) * moved, setting.rates)
    return seconds + _orthogonalised_s(setting, atom) if job.optimizer == "muon" else seconds


def _orthogonalised_s(setting: Setting, atom: Atom) -> Floats:
    """Seconds of Muon's Newton-Schulz iterations on the matrices that a rank updates.

    Five times 4 n n m + 2 n n n operations for n x m; matrices are assumed square, and whole on a rank.
    """
    if not isinstance(atom, Block):
        return np.zeros(len(setting.layouts))
    width = float(setting.model.hidden)
    flop = 5.0 * 6.0 * width * _sharded(setting, atom, 1) * setting.job.trainable
    return np.asarray(flop / setting.rates.gemm_flop_per_s)


def accumulation_s(setting: Setting, atom: Atom) -> Floats:
    """Seconds to add one microbatch's gradients to the sums, where products do not accumulate them.

    The product's result, in the type of the weights, is read; sums are read and written. 0 for ZeRO-2 and -3,
    which add shards, a negligible time.
    """
    job = setting.job
    if job.code.fuses_accumulation:
        return np.zeros(len(setting.layouts))
    dense, expert = parameters_per_rank(setting, atom)
    width = job.precision.weight_bytes + 2.0 * job.recipe.gradient_bytes
    moved = (dense + expert) * job.trainable * width
    return np.where(setting.zero < 2, streaming_s(moved, setting.rates), 0.0)


def copy_bytes(setting: Setting) -> Floats:
    """Bytes on a rank of one copy of a tied matrix, with its gradients and state, [K]."""
    return static_bytes(setting, Embedding(setting.model.vocabulary_parameters))


def borrower(front: Setting, back: Setting, columns: tuple[int, int] = (0, 0)) -> End:
    """The end of a stage that reads the other's copy of a tied matrix: the one whose own would be smaller.

    The embedding has layout `columns[0]` of `front`, the head `columns[1]` of `back`. The larger copy's
    memory is needed anyway. Of equal copies the embedding's is kept: its gradient is complete last.
    """
    of_front = copy_bytes(front)
    of_back = of_front if back is front else copy_bytes(back)
    return "embedding" if of_front[columns[0]] < of_back[columns[1]] else "head"


def _over_replicas(
    setting: Setting, parameters: tuple[Floats, Floats], bytes_per_parameter: float, reduce: bool
) -> Floats:
    """Seconds of the all-reduce of a rank's (dense, expert) parameters, or of the all-gather over shards.

    Without `reduce`: what ZeRO gathers, or reduce-scatters. Fully sharded experts are excluded (see
    `_experts_resharded_s`).
    """
    dense, expert = parameters
    operation, over = (all_reduce_s, setting.dp_group) if reduce else (all_gather_s, setting.shard_group)
    replicated = np.where(setting.fsep, 0.0, expert)
    return setting.rates.data_exposed * (
        operation(dense * bytes_per_parameter, over)
        + operation(replicated * bytes_per_parameter, setting.expert_dp_group)
    )


def _between_copies_s(setting: Setting, dense: Floats, bytes_per_parameter: float) -> Floats:
    """Seconds to all-reduce a rank's gradient shard over its copies under hybrid sharding; else 0.

    Zhao et al., PyTorch FSDP (arXiv:2304.11277, section 3.2.2).
    """
    if not setting.hybrid:
        return np.zeros(len(setting.layouts))
    shard = all_reduce_s(dense * bytes_per_parameter / setting.shards, setting.copy_group)
    return setting.rates.data_exposed * shard


def _experts_resharded_s(setting: Setting, atom: Atom, bytes_per_parameter: float) -> Floats:
    """Seconds of FSEP's all-to-all over all replicas to assemble a rank's experts or to redistribute them."""
    if not setting.fsep.any():
        return np.zeros(len(setting.layouts))
    _, expert = parameters_per_rank(setting, atom)
    moved = np.where(setting.fsep, expert, 0.0) * bytes_per_parameter
    return setting.rates.data_exposed * all_to_all_s(moved, setting.dp_group)


def sharded_weights_gather_s(setting: Setting, atom: Atom) -> Floats:
    """Seconds to gather an atom's weights before it runs, under ZeRO-3 and FSEP; else 0.

    Every slice beyond the first is one more collective, with one more latency.
    """
    width = _weight_bytes(setting.job, atom)
    resharded = _experts_resharded_s(setting, atom, width)
    if not (setting.zero >= 3).any():
        return resharded
    again = np.where(setting.replicas > 1, (setting.slices - 1) * setting.shard_group.once.start, 0.0)
    read = _over_replicas(setting, _parameters_read(setting, atom), width, False)
    gathered = read + setting.rates.data_exposed * again
    return np.where(setting.zero >= 3, gathered, 0.0) + resharded


def gradient_sync_s(setting: Setting, atom: Atom, last: bool) -> Floats:
    """Seconds of an atom's gradient reduction in one backward pass.

    ZeRO-2 and -3 reduce-scatter after every microbatch (gradients cannot accumulate unsharded); ZeRO-0
    all-reduces and ZeRO-1 reduce-scatters after the last one, unless the stack does that after all passes
    (`reduced_apart_s`). FSEP redistributes expert gradients after every microbatch.
    """
    width = setting.job.recipe.gradient_bytes * setting.job.trainable
    kept = parameters_per_rank(setting, atom)
    ends = last and not setting.job.reduces_apart
    shared_out = setting.zero >= (1 if ends else 2)
    found = np.zeros(len(setting.layouts))
    if ends and not shared_out.all():
        found = _over_replicas(setting, kept, width, True)
    if shared_out.any():
        scattered = _over_replicas(setting, kept, width, False) + _between_copies_s(setting, kept[0], width)
        found = np.where(shared_out, scattered, found)
    return found + _experts_resharded_s(setting, atom, width)


def reduced_apart_s(setting: Setting, atom: Atom) -> Floats:
    """An atom's share of the seconds in which ZeRO-0 and -1 reduce all gradients after the last pass; else 0.

    Dense gradients are flattened into buckets; the latency of each is divided over the atoms by parameters.
    """
    if not setting.job.reduces_apart:
        return np.zeros(len(setting.layouts))
    width = setting.job.recipe.gradient_bytes * setting.job.trainable
    dense, expert = parameters_per_rank(setting, atom)
    bucket = np.minimum(setting.model.parameters / setting.tp, BUCKET)

    def over_replicas(reduce: bool) -> Floats:
        flat = _over_replicas(setting, (bucket, np.zeros_like(bucket)), width, reduce)
        return flat * dense / bucket + _over_replicas(setting, (np.zeros_like(bucket), expert), width, reduce)

    scattered = over_replicas(False) + _between_copies_s(setting, bucket, width) * dense / bucket
    found: Floats = np.where(setting.zero == 0, over_replicas(True), scattered)
    return np.where(setting.zero < 2, found, 0.0)


def _broadcasts_s(setting: Setting, atom: Atom, bytes_per_parameter: float) -> Floats:
    """An atom's share of the seconds to broadcast the shards of the updated weights one by one.

    Latencies grow with the square of the ranks: each broadcast passes a ring of all. They are divided over
    the atoms by parameters, as without a pipeline (with one, stages have as many for fewer atoms).
    """
    dense, expert = parameters_per_rank(setting, atom)
    whole = setting.model.parameters / setting.tp
    one_s = broadcast_s(whole * bytes_per_parameter / setting.shards, setting.shard_group)
    return setting.rates.data_exposed * setting.shards * one_s * (dense + expert) / whole


def updated_weights_gather_s(setting: Setting, atom: Atom) -> Floats:
    """Seconds to gather the updated weights after the optimizer under ZeRO-1 and -2; else 0."""
    kept_whole = (setting.zero == 1) | (setting.zero == 2)
    if not kept_whole.any():
        return np.zeros(len(setting.layouts))
    updated = setting.job.precision.weight_bytes * setting.job.trainable
    if setting.job.code.broadcasts_shards:
        gathered = _broadcasts_s(setting, atom, updated)
    else:
        gathered = _over_replicas(setting, parameters_per_rank(setting, atom), updated, False)
    return np.where(kept_whole, gathered, 0.0)


def behind_last_pass_s(setting: Setting, atom: Atom) -> Floats:
    """An atom's share of the seconds of data-parallel communication after all passes."""
    return reduced_apart_s(setting, atom) + updated_weights_gather_s(setting, atom)


def kv_bytes(setting: Setting, attention: Attention) -> Floats:
    """Bytes of a rank's keys and values for one microbatch."""
    columns = attention.head_dim + attention.value_dim
    return setting.tokens * kv_heads(setting, attention) * columns * setting.job.precision.activation_bytes


def _ring_bytes(setting: Setting, block: Block) -> Floats:
    """Bytes of ring buffers during a block's core: two blocks of keys and values, and their gradients."""
    ringed = (setting.cp > 1) & (not setting.job.code.exchanges_heads)
    return np.where(ringed, 4.0 * kv_bytes(setting, block.attention), 0.0)


def drops(setting: Setting, block: Block) -> bool:
    """Whether a block trains with dropout."""
    return setting.job.dropout and block.usually_drops


def plainly_normed(setting: Setting, block: Block) -> bool:
    """Whether norms and activations run as one kernel per operation. LayerNorm is always one kernel."""
    job = setting.job
    return (job.plain_operations or job.code.plain_norms) and not block.usually_drops


def _block_activation(setting: Setting, block: Block) -> tuple[Floats, Floats]:
    """(bytes kept of one block without recomputation, bytes of its unfused score matrix).

    Inputs of products are kept for the weight gradients, in the products' operand type (fp8 recipes keep the
    converted copy); for frozen weights only the inputs that adapters on the attention need.
    """
    attention, part, precision = block.attention, block.feed_forward, setting.job.precision
    hidden, tokens, width = setting.model.hidden, setting.tokens, precision.activation_bytes
    shards = setting.sequence_shards
    trained = setting.job.trainable >= 1.0
    read = min(precision.operand_bytes, width)  # of an input kept for a weight gradient
    copied = read if read < width else 0.0  # beside the one that the attention core or the norm keeps
    masks = 2 * MASK_BYTES if drops(setting, block) else 0.0
    # Latent attention also keeps its bottlenecks, before and behind their norms.
    latent = 2 * (attention.query_rank + attention.kv_rank)
    # Inputs of the two norms and of the two column-parallel products, and dropout masks.
    normed = plainly_normed(setting, block)
    norms = 2 * (width + PLAIN_NORM + width if normed else width)
    inputs = hidden * (2 if trained else 1) * read / (1.0 if setting.job.code.keeps_gathered else shards)
    residual = (hidden * (norms + masks) + latent * width) / shards + inputs
    heads = setting.sharding.width(attention.heads)
    projected = heads * (attention.head_dim + attention.value_dim) + kv_heads(setting, attention) * (
        attention.head_dim + attention.value_dim
    )
    output = heads * attention.value_dim * copied if trained else 0.0
    # What the activation function reads, and its result: the input of the down-projection.
    kept_columns = (3.0 if normed else 2.0) if part.gated else 1.0  # plain: what the activation returns, too
    per_column = kept_columns * width + (read if trained else 0.0)
    if isinstance(part, Experts):
        copies = width + (read if trained else 0.0)  # tokens sorted by expert: as combined, as multiplied
        columns = part.active * part.width + part.shared_width
        inner = setting.sharding.width(columns * per_column + part.active * hidden * copies)
    else:
        inner = setting.sharding.width(part.width * per_column)
    kept = tokens * (residual + width * projected + output + inner)
    # Unfused kernels keep the whole matrix, whatever the mask hides: behind the softmax, and behind dropout.
    per_score = 2 * width + MASK_BYTES if drops(setting, block) else width
    scores = tokens * setting.job.seq * heads * per_score
    return kept, np.zeros_like(kept) if setting.rates.fused_attention else scores


def _gradient_scratch(setting: Setting, atom: Atom) -> Floats:
    """Bytes of weight gradients as products return them, beyond the wider sums; of one expert at a time.

    Autograd requires a gradient of the weight's own type for every matrix. Fused kernels that accumulate into
    fp32 gradients return a placeholder per shape, which is kept.
    """
    job, precision = setting.job, setting.job.precision
    dense, expert = _parameters_read(setting, atom)
    if job.recipe.gradient_bytes <= precision.weight_bytes:
        return np.zeros_like(dense)
    if isinstance(atom, Block) and isinstance(atom.feed_forward, Experts):
        expert = expert * setting.ep / atom.feed_forward.experts
    return np.where(setting.zero < 2, (dense + expert) * precision.weight_bytes * job.trainable, 0.0)


def held(setting: Setting, atom: Atom) -> Held:
    """Memory of one atom on one rank for every layout."""
    static = static_bytes(setting, atom)
    width, hidden, tokens = setting.job.precision.activation_bytes, setting.model.hidden, setting.tokens
    dense, expert = _parameters_read(setting, atom)
    # The gathered weights of the atom running and of the one prefetched, and its unsharded gradient.
    job, recipe = setting.job, setting.job.recipe
    gathered = np.where(setting.zero >= 3, dense + expert, np.where(setting.fsep, expert, 0.0))
    unsharded = np.where(setting.zero == 2, dense + expert, gathered)
    transient = 2 * gathered * _weight_bytes(job, atom) + unsharded * recipe.gradient_bytes * job.trainable
    transient = np.where(setting.zero >= 3, transient / setting.slices, transient)
    boundary = tokens * hidden * width / setting.sequence_shards
    if isinstance(atom, Embedding):
        return Held(static, boundary, transient, np.zeros_like(static))
    if isinstance(atom, Head):
        predicted = tokens * (MASKED_FRACTION if setting.model.masked_lm else 1.0)
        logits = setting.sharding.width(predicted * setting.model.vocab)
        # The product behind the loss has the logits' gradient and the weight's.
        fused = job.fused_loss and job.code.fuses_loss and not job.plain_operations
        loss = width + LOSS_FUSED if fused else LOSS_PLAIN
        product = logits * width + _gradient_scratch(setting, atom)
        # Under sequence parallelism the head's input is gathered, and so is its gradient.
        gathered = np.where(setting.sequence_shards > 1, 2.0 * predicted * hidden * width, 0.0)
        peak = np.maximum(logits * loss, product) + gathered
        return Held(static, 2 * boundary, transient + peak, np.zeros_like(static))
    kept, scores = _block_activation(setting, atom)
    everything = kept + scores
    activation = np.select(
        [setting.recompute == 2, setting.recompute == 1], [boundary, kept], default=everything
    )
    # What was not kept comes back while the block's own backward runs (its input is never recomputed).
    transient = transient + _ring_bytes(setting, atom)
    return Held(static, activation, transient + everything - activation, _gradient_scratch(setting, atom))
