"""A real transformer in torch from a `Model` noun: embedding, blocks, head, as atoms that a stage holds."""

from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

from tangram_sim.errors import BadInputError
from tangram_sim.models import Attention, Block, Experts, FeedForward, Model

ROTARY_BASE = 10_000.0


def require_supported(model: Model) -> None:
    """Raise BadInputError naming what this transformer cannot build."""
    for block in model.blocks:
        attention = block.attention
        lacking = [
            what
            for what, present in (
                ("latent attention", attention.kv_rank > 0),
                ("sliding windows", attention.window > 0),
                ("QK norms", attention.norm_parameters > 0),
                ("parallel blocks", block.parallel),
                ("blocks with other than 2 norms", block.norms != 2),
                (
                    "shared experts",
                    isinstance(block.feed_forward, Experts) and block.feed_forward.shared_width > 0,
                ),
            )
            if present
        ]
        if lacking or model.masked_lm or model.embedding_dim:
            what = ", ".join(lacking) or "masked language models and narrow embeddings"
            raise BadInputError(
                f"{model.name}: the runner does not build {what}; take a GPT- or Llama-like model"
            )


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding of [batch, heads, seq, dim] (Su et al., arXiv:2104.09864)."""
    half, seq = x.shape[-1] // 2, x.shape[-2]
    rates = ROTARY_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(seq, device=x.device, dtype=torch.float32)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]), dim=-1)


class SelfAttention(nn.Module):
    """Grouped-query self-attention; heads may be sharded over tensor-parallel ranks."""

    def __init__(self, hidden: int, facts: Attention, rotary: bool) -> None:
        super().__init__()
        self.facts, self.rotary = facts, rotary
        self.recompute_core = False
        self.q = nn.Linear(hidden, facts.heads * facts.head_dim, bias=facts.qkv_bias)
        self.k = nn.Linear(hidden, facts.kv_heads * facts.head_dim, bias=facts.qkv_bias)
        self.v = nn.Linear(hidden, facts.kv_heads * facts.value_dim, bias=facts.qkv_bias)
        self.o = nn.Linear(facts.heads * facts.value_dim, hidden, bias=facts.out_bias)

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Scores and mix of values; [batch, heads, seq, dim]."""
        grouped = k.shape[1] != q.shape[1]
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.facts.causal, enable_gqa=grouped)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        batch, seq = x.shape[0], x.shape[1]
        q, k, v = (
            part(x).view(batch, seq, -1, width).transpose(1, 2)
            for part, width in (
                (self.q, self.facts.head_dim),
                (self.k, self.facts.head_dim),
                (self.v, self.facts.value_dim),
            )
        )
        if self.rotary:
            q, k = rotate(q), rotate(k)
        if self.recompute_core and torch.is_grad_enabled():
            from torch.utils.checkpoint import checkpoint

            mixed = cast(Tensor, checkpoint(self.core, q, k, v, use_reentrant=False))
        else:
            mixed = self.core(q, k, v)
        return cast(Tensor, self.o(mixed.transpose(1, 2).reshape(batch, seq, -1)))


class DenseFeedForward(nn.Module):
    """hidden -> width -> hidden; gated ones multiply two up-projections."""

    def __init__(self, hidden: int, width: int, gated: bool, bias: bool) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, width, bias=bias)
        self.gate = nn.Linear(hidden, width, bias=bias) if gated else None
        self.down = nn.Linear(width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to the same."""
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return cast(Tensor, self.down(inner))


class Mixture(nn.Module):
    """Top-k routing over experts that all sit on this rank."""

    def __init__(self, hidden: int, facts: Experts) -> None:
        super().__init__()
        self.active = facts.active
        self.router = nn.Linear(hidden, facts.experts, bias=facts.router_bias)
        made = (DenseFeedForward(hidden, facts.width, facts.gated, facts.bias) for _ in range(facts.experts))
        self.experts = nn.ModuleList(made)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same."""
        rows = x.reshape(-1, x.shape[-1])
        weight, chosen = self.router(rows).float().softmax(-1).topk(self.active, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        # Sorted by expert once, as training stacks do: each expert multiplies one run of rows.
        order = chosen.flatten().argsort(stable=True)
        row = order // self.active
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        parts = [expert(part) for expert, part in zip(self.experts, rows[row].split(counts), strict=True)]
        made = torch.cat(parts) * weight.flatten()[order, None].to(parts[0].dtype)
        return made.new_zeros(rows.shape).index_add(0, row, made).to(x.dtype).view_as(x)


def norm(hidden: int, bias: bool, affine: bool = True) -> nn.Module:
    """LayerNorm where norms have biases, else RMSNorm."""
    if bias:
        return nn.LayerNorm(hidden, elementwise_affine=affine)
    return nn.RMSNorm(hidden, eps=1e-6, elementwise_affine=affine)


class TransformerBlock(nn.Module):
    """Pre-norm block; `repeats` > 1 does the same work several times over, to make a rank slower."""

    def __init__(self, hidden: int, facts: Block, rotary: bool, repeats: int = 1) -> None:
        super().__init__()
        self.repeats = repeats
        self.recompute = False
        self.norm1 = norm(hidden, facts.norm_bias, facts.norm_affine)
        self.attention = SelfAttention(hidden, facts.attention, rotary)
        self.norm2 = norm(hidden, facts.norm_bias, facts.norm_affine)
        part = facts.feed_forward
        self.feed_forward: nn.Module = (
            DenseFeedForward(hidden, part.width, part.gated, part.bias)
            if isinstance(part, FeedForward)
            else Mixture(hidden, part)
        )

    def body(self, x: Tensor) -> Tensor:
        """One pass."""
        x = x + self.attention(self.norm1(x))
        return cast(Tensor, x + self.feed_forward(self.norm2(x)))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to the same; the mean over equal copies is the result of one."""
        copies = x.repeat(self.repeats, 1, 1) if self.repeats > 1 else x
        if self.recompute and torch.is_grad_enabled():
            from torch.utils.checkpoint import checkpoint

            y = cast(Tensor, checkpoint(self.body, copies, use_reentrant=False))
        else:
            y = self.body(copies)
        return y.view(self.repeats, *x.shape).mean(0) if self.repeats > 1 else y


class InputEmbedding(nn.Module):
    """Token table, and a position table where the model has one."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocab, model.hidden)
        self.places = nn.Embedding(model.positions, model.hidden) if model.positions else None

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, seq] to [batch, seq, hidden]."""
        x = self.tokens(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return cast(Tensor, x)


class OutputHead(nn.Module):
    """Final norm and vocabulary projection, `repeats` times over as blocks are."""

    def __init__(self, model: Model, repeats: int = 1) -> None:
        super().__init__()
        self.repeats = repeats
        self.norm = norm(model.hidden, model.blocks[0].norm_bias if model.blocks else False)
        self.logits = nn.Linear(model.hidden, model.vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, seq, hidden] to [batch, seq, vocab]."""
        if self.repeats == 1:
            return cast(Tensor, self.logits(self.norm(x)))
        copies = cast(Tensor, self.logits(self.norm(x.repeat(self.repeats, 1, 1))))
        return copies.view(self.repeats, *x.shape[:-1], -1).mean(0)


def build_atom(model: Model, atom: int, seed: int, repeats: int = 1) -> nn.Module:
    """Atom 0 is the embedding, 1 to `layers` the blocks, the last the head; equal seeds give equal weights.

    A tied head starts from the embedding's own weights.
    """
    torch.manual_seed(seed * 10_007 + atom)
    if atom == 0:
        return _scaled(InputEmbedding(model))
    if atom <= model.layers:
        return _scaled(TransformerBlock(model.hidden, model.blocks[atom - 1], model.positions == 0, repeats))
    head = _scaled(OutputHead(model, repeats))
    if model.tied:
        embedding = build_atom(model, 0, seed)
        with torch.no_grad():
            head.logits.weight.copy_(embedding.tokens.weight)
    return head


def _scaled(module: nn.Module) -> nn.Module:
    """Weights drawn small, as GPT-2 does, so that losses start near ln(vocab)."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return module
