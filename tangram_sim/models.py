"""Models: attention, feed-forward, experts, blocks, and their parameter counts. No I/O.

Parameter counts are exact sums over the tensors of the public checkpoints; operation counts belong to
`tangram_sim.cost`.
"""

from dataclasses import dataclass, field
from functools import cached_property

from tangram_sim.errors import BadInputError
from tangram_sim.fields import described, fact, stated
from tangram_sim.model_details import NO_DETAILS, Details
from tangram_sim.naming import require_name


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention of one block; `kv_rank > 0` means multi-head latent attention (DeepSeek-V2).

    Under MLA every head has its own keys and values, so `kv_heads` equals `heads`.
    """

    heads: int
    kv_heads: int
    head_dim: int  # of queries and keys, rotary part included
    value_dim: int  # of values; equals head_dim except with MLA
    query_rank: int = 0  # MLA query bottleneck, 0 = one dense projection
    kv_rank: int = 0  # MLA key/value bottleneck, 0 = no MLA
    rope_dim: int = 0  # MLA: rotary dimensions shared by all heads
    window: int = 0  # sliding window in tokens, 0 = whole sequence
    causal: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    norm_parameters: int = 0  # QK-norm weights, attention sinks and the like; MLA's own norms are implied
    output_gate: bool = False  # the core's output is gated by one more projection of the input
    linear: bool = False  # a recurrent state of head_dim x value_dim per head in place of cached keys
    index_heads: int = 0  # sparse attention: heads that pick the `window` keys to attend to (DeepSeek-V3.2)
    index_dim: int = 0  # of one such head; their keys, one per token, are cached too

    @property
    def state_elements(self) -> int:
        """Elements of the recurrent state of one sequence; 0 where keys and values are cached."""
        return self.heads * self.head_dim * self.value_dim if self.linear else 0

    def cached_elements(self, ranks: int = 1) -> float:
        """Elements one token leaves in the cache of each of `ranks` tensor-parallel ranks.

        MLA's latent is one for all heads and cannot be split, heads beyond the number of key/value heads are
        replicated, linear attention leaves none.
        """
        if self.linear:
            return 0.0
        index = self.index_dim if self.index_heads else 0
        if self.kv_rank:
            return float(self.kv_rank + self.rope_dim + index)
        return max(self.kv_heads / ranks, 1.0) * (self.head_dim + self.value_dim) + index

    def parameters(self, hidden: int) -> int:
        """Elements of all projections, biases and norms of this attention."""
        if self.kv_rank:
            projections = self._latent_projections(hidden)
        else:
            width = self.heads * self.head_dim + self.kv_heads * (self.head_dim + self.value_dim)
            projections = hidden * width + self.qkv_bias * width
        output = self.heads * self.value_dim * hidden + self.out_bias * hidden
        gate = self.output_gate * self.heads * self.value_dim * hidden
        return projections + output + gate + self._index_projections(hidden) + self.norm_parameters

    def _index_projections(self, hidden: int) -> int:
        """Queries from the query bottleneck, a key and a weight per head from the input, the key's norm."""
        if not self.index_heads:
            return 0
        queries = (self.query_rank or hidden) * self.index_heads * self.index_dim
        return queries + hidden * (self.index_dim + self.index_heads) + 2 * self.index_dim

    def _latent_projections(self, hidden: int) -> int:
        """MLA down- and up-projections with the norms on the bottlenecks (arXiv:2405.04434, appendix C).

        Biases, where a checkpoint has them, sit on the down-projections only.
        """
        queries = self.heads * self.head_dim
        if self.query_rank:
            query = self.query_rank * (hidden + 1 + queries) + self.qkv_bias * self.query_rank
        else:
            query = hidden * queries
        down = self.kv_rank + self.rope_dim
        up = self.kv_rank * self.heads * (self.head_dim - self.rope_dim + self.value_dim)
        return query + hidden * down + self.qkv_bias * down + self.kv_rank + up


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A dense feed-forward: hidden -> width -> hidden; gated means two up-projections (SwiGLU, GeGLU)."""

    width: int
    gated: bool = True
    bias: bool = False

    def parameters(self, hidden: int) -> int:
        """Elements of the two (gated: three) matrices and their biases."""
        inputs = 2 if self.gated else 1
        biases = inputs * self.width + hidden if self.bias else 0
        return (inputs + 1) * hidden * self.width + biases


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: `active` of `experts` feed-forwards per token, plus shared ones."""

    experts: int
    active: int
    width: int  # of one expert
    gated: bool = True
    bias: bool = False  # biases inside the experts
    shared_width: int = 0  # all shared experts together; always active
    router_bias: bool = False
    shared_gate: bool = False
    sent_width: int = (
        0  # numbers of a token that experts are sent, where not the hidden size (latent experts)
    )

    def _routed(self, hidden: int, experts: int) -> int:
        return experts * FeedForward(self.width, self.gated, self.bias).parameters(hidden)

    def expert_parameters(self, hidden: int) -> int:
        """Elements of the routed experts alone: what expert parallelism shards."""
        return self._routed(hidden, self.experts)

    def common_parameters(self, hidden: int) -> int:
        """Elements that every token uses: the router, the shared experts and their gate."""
        router = self.experts * (hidden + self.router_bias)
        shared = (
            FeedForward(self.shared_width, self.gated, self.bias).parameters(hidden)
            if self.shared_width
            else 0
        )
        return router + shared + self.shared_gate * hidden

    def parameters(self, hidden: int) -> int:
        """Elements of the router and all experts."""
        return self.common_parameters(hidden) + self.expert_parameters(hidden)

    def active_parameters(self, hidden: int) -> int:
        """Elements that one token uses: `active` routed experts, and what all tokens use."""
        return self.common_parameters(hidden) + self._routed(hidden, self.active)


@dataclass(frozen=True, slots=True)
class Block:
    """One transformer block."""

    attention: Attention
    feed_forward: FeedForward | Experts
    norms: int = 2  # norm layers over the hidden size
    norm_bias: bool = False  # LayerNorm (weight and bias) rather than RMSNorm
    parallel: bool = False  # attention and feed-forward read the same input (GPT-NeoX, Falcon)
    norm_affine: bool = True  # norms carry learned weights

    @property
    def usually_drops(self) -> bool:
        """Whether such blocks train with dropout: GPT's and BERT's, of LayerNorm and plain feed-forwards."""
        return self.norm_bias and not self.feed_forward.gated

    def norm_width(self, hidden: int) -> int:
        """Elements of one norm layer of this block."""
        return hidden * (1 + self.norm_bias) if self.norm_affine else 0

    def parameters(self, hidden: int) -> int:
        """Elements of attention, feed-forward (all experts) and norms."""
        inner = self.attention.parameters(hidden) + self.feed_forward.parameters(hidden)
        return inner + self.norms * self.norm_width(hidden)

    def active_parameters(self, hidden: int) -> int:
        """Elements that one token uses; differs from `parameters` in blocks with experts only."""
        if not isinstance(self.feed_forward, Experts):
            return self.parameters(hidden)
        idle = self.feed_forward.parameters(hidden) - self.feed_forward.active_parameters(hidden)
        return self.parameters(hidden) - idle


@described
@dataclass(frozen=True)
class Model:
    """A language model: embedding, blocks, head. Sizes are element counts, never bytes.

    The norms of embedding and head are of the kind the last block uses.
    """

    name: str = field(metadata=stated("What it is called: a shipped name, or that of its file."))
    family: str = field(metadata=stated("Its architecture, as in config.json."))
    hidden: int = field(metadata=stated("Hidden size.", "elements of a token"))
    vocab: int = field(metadata=stated("Rows of the vocabulary matrix.", "tokens"))
    blocks: tuple[Block, ...] = field(metadata=stated("Transformer blocks, first to last."))
    tied: bool = fact(False, "Whether input embedding and head share one matrix.")
    positions: int = fact(0, "Rows of a learned position table.", "positions")
    max_seq: int = fact(0, "Longest sequence that it was made for; 0: not stated.", "tokens")
    embedding_dim: int = fact(0, "Columns of the vocabulary matrix; 0: `hidden`.", "elements")
    token_types: int = fact(0, "Segment embeddings (BERT).", "rows")
    embedding_norm: bool = fact(False, "Whether a norm follows the embedding.")
    final_norm: bool = fact(True, "Whether a norm follows the last block.")
    head_parameters: int = fact(
        0, "Of the head, beside the vocabulary matrix: biases, transforms.", "elements"
    )
    masked_lm: bool = fact(False, "Whether it predicts masked tokens rather than the next one.")
    source: str = fact("", "Where its sizes were read.")
    extra_parameters: int = fact(0, "Of tensors that belong to no block (poolers).", "elements")
    rotary_base: float = fact(0.0, "Of rotary position embeddings; 0: not stated.", "a number")
    norm_epsilon: float = fact(0.0, "What norms add to the variance; 0: not stated.", "a number")
    details: Details = fact(NO_DETAILS, "What frameworks must be told beside sizes.")
    defaults: tuple[str, ...] = field(
        default=(), compare=False, metadata=stated("Keys that its file lacked, with what was taken.")
    )

    def __post_init__(self) -> None:
        require_name(self.name, "model:")

    def __hash__(self) -> int:
        # Hundreds of nested blocks would be hashed on every look-up of a cache; equal models have equal
        # counts. Numbers only, so that the hash is the same in every process.
        return hash((self.hidden, self.vocab, self.layers, self.parameters))

    @cached_property
    def layers(self) -> int:
        """Transformer blocks."""
        return len(self.blocks)

    @property
    def embedding_width(self) -> int:
        """Columns of the vocabulary matrix."""
        return self.embedding_dim or self.hidden

    @property
    def vocabulary_parameters(self) -> int:
        """Elements of one vocabulary matrix."""
        return self.vocab * self.embedding_width

    @property
    def _width_projection(self) -> int:
        """Elements of the matrix between embedding width and hidden size, one at either end (OPT-350M)."""
        return self.embedding_width * self.hidden if self.embedding_width != self.hidden else 0

    @cached_property
    def embedding_parameters(self) -> int:
        """Elements before the first block: vocabulary, positions, token types, norm, projection."""
        norm = self.blocks[-1].norm_width(self.hidden) if self.embedding_norm else 0
        tables = self.vocabulary_parameters + (self.positions + self.token_types) * self.hidden
        return tables + norm + self._width_projection

    @cached_property
    def head_only_parameters(self) -> int:
        """Elements behind the last block beside the vocabulary matrix: norm, projection, biases, poolers."""
        norm = self.blocks[-1].norm_width(self.hidden) if self.final_norm else 0
        return norm + self._width_projection + self.head_parameters + self.extra_parameters

    @property
    def head_parameters_total(self) -> int:
        """Elements behind the last block with the vocabulary matrix, as a last pipeline stage holds them.

        The matrix is counted here even when it is tied to the embedding.
        """
        return self.head_only_parameters + self.vocabulary_parameters

    @cached_property
    def parameters(self) -> int:
        """Elements of the whole model; a tied vocabulary matrix counts once, as publishers count it."""
        blocks = sum(block.parameters(self.hidden) for block in self.blocks)
        head = self.head_only_parameters if self.tied else self.head_parameters_total
        return self.embedding_parameters + blocks + head

    @cached_property
    def active_parameters(self) -> int:
        """Elements that one token uses: everything but the experts that were not chosen.

        The input embedding is included, as Mistral, Qwen and DeepSeek count; OpenAI leaves it out.
        """
        idle = sum(
            block.parameters(self.hidden) - block.active_parameters(self.hidden)
            for block in self.blocks
            if isinstance(block.feed_forward, Experts)
        )
        return self.parameters - idle


def has_experts(model: Model) -> bool:
    """Whether a model is a mixture of experts."""
    return any(isinstance(block.feed_forward, Experts) for block in model.blocks)


def lora_parameters(model: Model, rank: int) -> int:
    """Elements of LoRA adapters of `rank` on every attention projection of every block.

    An adapter of a matrix (out x in) has rank x (in + out) elements (Hu et al., arXiv:2106.09685, section
    4.1); queries, keys, values and output have one each, of MLA the down-projections and the output.
    """
    total = 0
    for block in model.blocks:
        attention, hidden = block.attention, model.hidden
        if attention.kv_rank:
            outputs = [attention.query_rank or attention.heads * attention.head_dim]
            outputs.append(attention.kv_rank + attention.rope_dim)
        else:
            outputs = [attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim]
            outputs.append(attention.kv_heads * attention.value_dim)
        total += sum(rank * (hidden + width) for width in (*outputs, attention.heads * attention.value_dim))
    return total


def lora_share(model: Model, rank: int, trainable: float = 1.0) -> float:
    """The trainable share of LoRA adapters of `rank`. Raises BadInputError where `trainable` is given too."""
    if rank < 1 or rank > model.hidden:
        raise BadInputError(f"`lora_rank={rank}`: give 1 to {model.hidden}, the width of {model.name}")
    if trainable != 1.0:
        raise BadInputError("`lora_rank=` sets the trainable share; drop `trainable=`, or give it alone")
    return min(lora_parameters(model, rank) / model.parameters, 1.0)
