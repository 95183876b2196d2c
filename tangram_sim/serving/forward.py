"""Seconds of one forward pass of a stage on one rank, part by part, for any mix of prompts and decodes.

The products are those of a training step's forward pass with their own numbers of rows; attention also covers
the cached keys. Nothing here depends on engines or hosts. Arrays of N iterations throughout.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from tangram_sim.clusters import Gpu
from tangram_sim.cost.collectives import Group, all_reduce_s, all_to_all_s
from tangram_sim.cost.device import Rates, device_rates
from tangram_sim.cost.kernels import Floats, Number, fused_attention_s, gemm_s, streaming_s
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers import products
from tangram_sim.layers.products import IMBALANCE, KERNELS_FORWARD, NORM_PASSES, Gemm
from tangram_sim.layers.sharding import Sharding
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model
from tangram_sim.precision import STORED_BYTES, NumberTypes, Precision

# Kernels of a mixture of experts beside those of a dense block: router, top-k, sort, gather, two grouped
# products with an activation between, scatter.
KERNELS_EXPERTS = 6
# Of latent attention: two norms and two products more on the way down, two that fold queries and values. Of
# linear attention: convolution, gates, decay, state update, gated norm. Of an indexer: three products, norm,
# rotation, quantisation of keys, their cache, scores, top-k, gather.
KERNELS_LATENT, KERNELS_LINEAR, KERNELS_INDEX = 6, 6, 10
# By how much products of many rows take longer where kernels unpack 8- or 4-bit weights on the way (Marlin):
# bursts on A100 in fp8 and int4 beside the same models' in bf16, 1.17 to 1.27.
UNPACKING = 1.25
# Factors of engines on the arithmetic of experts are of kernels in which it takes thrice as long as moving
# (benchmarks.serving_kernels). They count in full from there on, and not at all where moving takes as long.
FAR = (1.0, 3.0)
STATE_BYTES = 4.0  # recurrent states are kept in fp32 (Qwen3-Next reference implementation)


@dataclass(frozen=True)
class IterationWork:
    """N iterations on one attention rank; see `StepCost` for the arguments."""

    rows: Floats
    scores: Floats
    decodes: Floats
    contexts: Floats
    verified: float = 1.0  # tokens of each decoding request in one pass: drafts and one more
    padding: Number = 0.0  # decodes without a context of their own, which fill a CUDA graph up

    @property
    def tokens(self) -> Floats:
        """Tokens that pass through the layers: rows of every matrix product."""
        return self.rows + (self.decodes + self.padding) * self.verified

    @property
    def prompt_keys(self) -> Floats:
        """Mean number of keys that a prompt token attends to."""
        return self.scores / np.maximum(self.rows, 1.0)

    @property
    def decode_keys(self) -> Floats:
        """Mean number of keys that a decoding request attends to."""
        return self.contexts / np.maximum(self.decodes, 1.0)


@dataclass(frozen=True)
class ForwardTimes:
    """Seconds of one pass by part, arrays of N; `kernels` and `reductions` are counts."""

    gemm: Floats
    experts: Floats
    cache: Floats  # decode attention
    attention: Floats  # prompt attention
    memory: Floats
    reduce: Floats
    exchange: Floats
    kernels: Floats
    reductions: Floats  # all-reduces and all-to-alls, each of which starts by a handshake
    peak_s: Floats  # of all products at the datasheet's peak
    least_s: Floats  # of products and prompt attention as kernels were measured, if they moved no data
    experts_least_s: Floats  # of it, the experts' products
    experts_bound_s: Floats  # of these, the share in which arithmetic takes far longer than moving
    attention_flop: Floats  # of decode and prompt attention, in the vector type
    moved_bytes: Floats  # through the memory of one rank
    sent_bytes: Floats  # by one rank over its links to others

    def __add__(self, other: "ForwardTimes") -> "ForwardTimes":
        return ForwardTimes(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    def times(self, count: Number) -> "ForwardTimes":
        """The times of `count` passes; `count` may be an array."""
        return ForwardTimes(*(getattr(self, field.name) * count for field in fields(self)))


@dataclass(frozen=True)
class Ranks:
    """Inputs for the cost of one rank: model, precision, GPU, parallel degrees, communication groups."""

    model: Model
    precision: Precision
    gpu: Gpu
    hwdb: Hwdb
    tp: int
    attention_dp: int
    ep: int
    tp_group: Group
    ep_group: Group
    one_shot: bool  # links join every rank with every other, so small reductions take one step

    @property
    def sharding(self) -> Sharding:
        """How columns are divided over tensor-parallel ranks: evenly."""
        return Sharding(float(self.tp))

    @property
    def expert_tp(self) -> float:
        """Number of ranks that share one expert by tensor parallelism."""
        return self.tp * self.attention_dp / self.ep

    def rates(self, compute: str) -> Rates:
        """Rates of matrix products in `compute`, or in the vector type where the GPU has no units for it.

        Kernel launches are not in these rates: they are counted in `ForwardTimes.kernels`.
        """
        return kernel_rates(self.gpu, compute, self.precision.vector, self.hwdb)


@dataclass(frozen=True)
class _Products:
    """Inputs for the shapes of a block's matrix products; see the protocol `products.Sharded`."""

    model: Model
    tokens: Number
    sharding: Sharding


def vector_type(gpu: Gpu, wanted: str) -> str:
    """The type of everything but quantised products: fp16 where the GPU has no bf16 units."""
    return "fp16" if wanted == "bf16" and not gpu.peak_flop_per_s("bf16") else wanted


@lru_cache(maxsize=512)
def _unpacking(rates: Rates) -> Rates:
    """Rates of products whose kernels unpack quantised weights."""
    return replace(rates, gemm_flop_per_s=rates.gemm_flop_per_s / UNPACKING)


def compute_type(gpu: Gpu, compute: str, vector: str) -> str:
    """Data type of products: `compute`, or without units for it the vector type (weights unpacked)."""
    return compute if gpu.peak_flop_per_s(compute) else vector_type(gpu, vector)


def emulated(gpu: Gpu, precision: Precision) -> str:
    """Note on types that `gpu` runs in place of this precision's, for want of units; empty: none.

    vLLM unpacks fp8 and 4-bit weights inside its kernels there (Marlin), and bf16 checkpoints run in fp16.
    """
    own = vector_type(gpu, precision.vector)
    said = []
    if not gpu.peak_flop_per_s(precision.compute) and precision.compute != precision.vector:
        said.append(f"no {precision.compute} units: products run in {own}, so it saves memory, not computing")
    if own != precision.vector:
        said.append(f"no {precision.vector} units: {own} is run in its place")
    return f"{gpu.name} has {' and '.join(said)}" if said else ""


@lru_cache(maxsize=512)
def _rates(gpu: Gpu, compute: str, vector: str, hwdb: Hwdb) -> Rates:
    return replace(device_rates(gpu, NumberTypes(compute, compute, vector), hwdb), launch_s=0.0)


def kernel_rates(gpu: Gpu, compute: str, vector: str, hwdb: Hwdb) -> Rates:
    """Rates of `gpu` for products in `compute`; raises InfeasibleError where it has no 16-bit units."""
    own = vector_type(gpu, vector)
    if not gpu.peak_flop_per_s(own):
        raise InfeasibleError(f"{gpu.name} has no {own} units; choose another `precision=` or GPU")
    return _rates(gpu, compute_type(gpu, compute, own), own, hwdb)


def block_times(ranks: Ranks, block: Block, work: IterationWork) -> ForwardTimes:
    """Seconds of one transformer block by part, arrays of N iterations."""
    attention, part, model = block.attention, block.feed_forward, ranks.model
    precision = ranks.precision
    shape = _Products(model, work.tokens, ranks.sharding)
    own = [*products.input_projections(shape, attention), *products.output_projection(shape, attention)]
    dense = _gemms_s(ranks, own, precision.attention_compute, precision.attention_bytes)
    zero = np.zeros_like(work.tokens)
    experts, exchange, permuted, dispatched = np.stack([zero] * 4), zero, zero, zero
    kernels = KERNELS_FORWARD + KERNELS_LATENT * (attention.kv_rank > 0)
    kernels += KERNELS_LINEAR * attention.linear + KERNELS_INDEX * (attention.index_heads > 0)
    if isinstance(part, Experts):
        kernels += KERNELS_EXPERTS
        router = [Gemm(work.tokens, part.experts, model.hidden)]
        dense = dense + _gemms_s(ranks, router, precision.vector, STORED_BYTES[precision.vector])
        experts, exchange, permuted, dispatched = _experts(ranks, part, work.tokens * ranks.attention_dp)
        inner = part.shared_width
    else:
        inner = part.width
    if inner:
        whole = FeedForward(inner, part.gated)
        # Ranks of attention data parallelism hold a dense feed-forward each, split by tp alone.
        both = products.up_projection(shape, whole) + products.down_projection(shape, whole)
        dense = dense + _gemms_s(ranks, both, precision.compute, precision.weight_bytes)
    width = precision.activation_bytes
    residual = work.tokens * model.hidden * width
    activated = ranks.sharding.width(work.tokens * inner) * width * (3.0 if part.gated else 2.0)
    streamed = 2.0 * NORM_PASSES * residual + activated + permuted
    memory = streaming_s(streamed, ranks.rates(precision.vector))
    attended_s = prompt_attention_s(ranks, attention, work)
    cached = decode_attention_work(ranks, attention, work)
    prompted = prompt_attention_work(ranks, attention, work)
    halves = 1.0 if block.parallel else 2.0
    reductions = halves * (ranks.tp > 1) * np.ones_like(zero)
    moved_s = experts[2] / ranks.rates(precision.compute).memory_bytes_per_s
    if isinstance(part, Experts) and ranks.attention_dp > 1:
        # Between attention and experts tokens change ranks; what follows needs no second reduction.
        reductions = (ranks.tp > 1) + 2.0 * np.ones_like(zero)
    return ForwardTimes(
        gemm=dense[0],
        experts=experts[0],
        cache=decode_attention_s(ranks, attention, work),
        attention=attended_s,
        memory=memory,
        reduce=halves * reduce_s(ranks, residual),
        exchange=exchange,
        kernels=kernels * np.ones_like(zero),
        reductions=reductions,
        peak_s=dense[3] + experts[3],
        least_s=dense[1] + experts[1] + attended_s,
        experts_least_s=experts[1],
        experts_bound_s=experts[1] * np.interp(experts[1] / np.maximum(moved_s, 1e-12), FAR, (0.0, 1.0)),
        attention_flop=cached[0] + prompted[0],
        moved_bytes=dense[2] + experts[2] + streamed + cached[1] + prompted[1],
        # A ring sends what it reduces twice, less a rank's own part.
        sent_bytes=halves * residual * 2.0 * (ranks.tp - 1) / ranks.tp + dispatched,
    )


def end_times(ranks: Ranks, work: IterationWork, embedding: bool, head: bool) -> ForwardTimes:
    """Times of the embedding (for all tokens) and the output head (one row for each token to be sampled).

    `embedding` and `head` say whether the stage holds them.
    """
    zero = np.zeros_like(work.tokens)
    model, precision = ranks.model, ranks.precision
    width = precision.activation_bytes
    gemm, least_s, memory, kernels, moved, peak_s = zero, zero, zero, zero, zero, zero
    if embedding:
        moved = 2.0 * work.tokens * model.hidden * width
        memory = streaming_s(moved, ranks.rates(precision.vector))
        kernels = kernels + 3.0
    if head:
        yields = (work.decodes + work.padding) * work.verified + np.minimum(work.rows, 1.0)
        logits = [Gemm(yields, ranks.sharding.width(model.vocab), model.embedding_width)]
        gemm, least_s, weights, peak_s = _gemms_s(ranks, logits, precision.vector, precision.end_bytes)
        # Logits of all ranks are gathered and sampled from in fp32: written, read thrice.
        sampled = 4.0 * 4.0 * yields * model.vocab
        memory = memory + streaming_s(sampled, ranks.rates(precision.vector))
        moved = moved + weights + sampled
        kernels = kernels + 8.0
    times = (gemm, zero, zero, zero, memory, zero, zero, kernels, zero, peak_s, least_s)
    return ForwardTimes(*times, zero, zero, attention_flop=zero, moved_bytes=moved, sent_bytes=zero)


def decode_attention_s(ranks: Ranks, attention: Attention, work: IterationWork) -> Floats:
    """Seconds of attention for decoding requests: the larger of memory time and compute time."""
    flop, moved = decode_attention_work(ranks, attention, work)
    rates = ranks.rates(ranks.precision.vector)
    return np.asarray(np.maximum(moved / rates.memory_bytes_per_s, flop / rates.attention_flop_per_s))


def decode_attention_work(ranks: Ranks, attention: Attention, work: IterationWork) -> tuple[Floats, Floats]:
    """(flop, bytes moved) of attention for decoding requests, on one rank.

    Every cached byte is read once, every head attends to every key. Multi-head latent attention runs
    absorbed: all heads share one latent, and query and value projections are folded into the products with it
    (arXiv:2405.04434, section 2.1.2). Indexed attention reads all of its index keys, and keys and values of
    `window` tokens. Linear attention reads and writes its state.
    """
    precision = ranks.precision
    if attention.linear:
        whole = 2.0 * work.decodes * work.verified * attention.state_elements
        states = ranks.sharding.width(whole) * STATE_BYTES
        return np.zeros_like(work.tokens), np.asarray(states + np.zeros_like(work.tokens))
    keys = work.decode_keys
    seen = np.minimum(keys, attention.window) if attention.window else keys
    index = attention.index_dim if attention.index_heads else 0
    elements = attention.cached_elements(ranks.tp) - index
    moved = work.decodes * (seen * elements + keys * index) * precision.kv_bytes
    if attention.kv_rank:
        columns = 2.0 * attention.kv_rank + attention.rope_dim
    else:
        columns = attention.head_dim + attention.value_dim
    queries = 2.0 * work.decodes * work.verified
    flop = queries * (
        ranks.sharding.width(seen * attention.heads) * columns + keys * attention.index_heads * index
    )
    return np.asarray(flop), np.asarray(moved)


def prompt_attention_s(ranks: Ranks, attention: Attention, work: IterationWork) -> Floats:
    """Seconds of attention for prompt chunks, which attend to cached tokens and to the chunk itself."""
    rates = ranks.rates(ranks.precision.vector)
    pairs, moved, chosen = _prompt_attention(ranks, attention, work)
    seconds = fused_attention_s(pairs, attention.head_dim, attention.value_dim, moved, rates)
    if attention.index_heads:
        seconds = seconds + chosen / rates.attention_flop_per_s
    return seconds


def prompt_attention_work(ranks: Ranks, attention: Attention, work: IterationWork) -> tuple[Floats, Floats]:
    """(flop, bytes moved) of attention for prompt chunks, on one rank."""
    pairs, moved, chosen = _prompt_attention(ranks, attention, work)
    return np.asarray(2.0 * pairs * (attention.head_dim + attention.value_dim) + chosen), np.asarray(moved)


def _prompt_attention(
    ranks: Ranks, attention: Attention, work: IterationWork
) -> tuple[Floats, Floats, Floats]:
    """(query-key pairs over all heads, bytes moved, flop of the index) of prompt chunks on one rank."""
    heads, keys = ranks.sharding.width(attention.heads), work.prompt_keys
    seen = np.minimum(keys, attention.window) if attention.window else keys
    dims = attention.head_dim + attention.value_dim
    width = ranks.precision.activation_bytes
    moved = work.rows * (heads + ranks.sharding.whole(attention.kv_heads)) * dims * width
    chosen = 2.0 * work.rows * keys * attention.index_heads * attention.index_dim
    return np.asarray(work.rows * seen * heads), np.asarray(moved), np.asarray(chosen)


def reduce_s(ranks: Ranks, size_bytes: Number) -> Floats:
    """Seconds of an all-reduce of `size_bytes` over the tensor-parallel ranks.

    Where every pair of ranks has a link, a one-shot all-reduce (each rank reads from every other one) is used
    if faster than NCCL; its handshake is not in this time but counted in `ForwardTimes.reductions`.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    if ranks.tp == 1:
        return np.zeros_like(size)
    library = np.asarray(all_reduce_s(size, ranks.tp_group))
    if not ranks.one_shot:
        return library
    return np.minimum(library, (ranks.tp - 1) * size / ranks.tp_group.ring.bytes_per_s)


def _experts(ranks: Ranks, part: Experts, tokens: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """(the experts' products as in `_gemms_s`, seconds of dispatch and combine, bytes permuted, bytes sent).

    All for the `tokens` of all ranks. Routing is assumed to be uniform: each of B tokens goes to k = `active`
    of E experts, so that on average the share 1 - (1 - k/E)^B of the experts is used. With expert parallelism
    the busiest rank has IMBALANCE times the mean.
    """
    precision, hidden = ranks.precision, ranks.model.hidden
    touched = 1.0 - (1.0 - part.active / part.experts) ** np.maximum(tokens, 1.0)
    local = touched * part.experts / ranks.ep
    skew = IMBALANCE if ranks.ep > 1 else 1.0
    rows = tokens * part.active / (part.experts * touched) * skew
    width = part.width / ranks.expert_tp
    shapes = [
        Gemm(rows, width * (2 if part.gated else 1), hidden, local),
        Gemm(rows, hidden, width, local),
    ]
    seconds = _gemms_s(ranks, shapes, precision.compute, precision.expert_bytes)
    size = tokens * hidden * precision.activation_bytes
    shared = size / ranks.expert_tp / ranks.ep * part.active
    exchange, sent = np.zeros_like(size), np.zeros_like(size)
    if ranks.ep > 1 and ranks.attention_dp > 1:
        exchange = 2.0 * np.asarray(all_to_all_s(shared * skew, ranks.ep_group))
        sent = 2.0 * shared * skew * (ranks.ep - 1) / ranks.ep
    permuted = size / (ranks.ep * ranks.expert_tp) * (2.0 + 2.0 * part.active)
    return seconds, exchange, permuted, sent


def _gemms_s(ranks: Ranks, shapes: list[Gemm], compute: str, weight_bytes: float) -> Floats:
    """[4, N]: seconds of products, seconds of their arithmetic alone, bytes moved, seconds at the peak."""
    rates = ranks.rates(compute)
    width = ranks.precision.activation_bytes
    own = compute_type(ranks.gpu, compute, ranks.precision.vector)
    if weight_bytes < width and own == vector_type(ranks.gpu, ranks.precision.vector):
        rates = _unpacking(rates)
    peak = ranks.gpu.peak_flop_per_s(own)
    total: Floats = np.asarray(0.0)
    flop: Floats = np.asarray(0.0)
    moved: Floats = np.asarray(0.0)
    for rows, n, k, count in shapes:
        total = total + gemm_s(rows, n, k, rates, operand_bytes=weight_bytes, output_bytes=width, count=count)
        flop = flop + 2.0 * rows * n * k * count
        moved = moved + ((rows * k + k * n) * weight_bytes + rows * n * width) * count
    zero = np.zeros_like(total)
    return np.stack([total, flop / rates.gemm_flop_per_s, moved + zero, flop / peak])
