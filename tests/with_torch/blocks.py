"""Transformer blocks in plain torch, of the shapes that `tangram_sim.models.Block` describes.

Fused kernels of training stacks are written as what they keep: SwiGLU keeps gate and up, dropout a mask of
one byte per element, attention no scores.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from tangram_sim.models import Attention, Block, Experts, FeedForward


class SwiGlu(torch.autograd.Function):
    """silu(gate) * up as one kernel: keeps its inputs only."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        share = torch.sigmoid(gate)
        return grad * up * share * (1 + gate * (1 - share)), grad * share * gate


class Norm(torch.autograd.Function):
    """RMS norm as one kernel: keeps its input and one number per token."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype)
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        unit = x * scale
        inner = grad * weight
        return scale * (inner - unit * (inner * unit).mean(-1, keepdim=True)), (grad * unit).flatten(
            0, -2
        ).sum(0)


class Flash(torch.autograd.Function):
    """Attention as a flash kernel keeps it, for values narrower than keys: torch's has none on CPUs."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        with torch.no_grad():
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            out = out.transpose(1, 2).contiguous().transpose(1, 2)  # token by token, as kernels write it
        ctx.causal = causal
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        inputs = [saved_tensor.detach().requires_grad_() for saved_tensor in ctx.saved_tensors[:3]]
        with torch.enable_grad():
            out = F.scaled_dot_product_attention(*inputs, is_causal=ctx.causal)
        return (*torch.autograd.grad(out, inputs, grad), None)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return Norm.apply(x, self.weight)


def norm(width: int, bias: bool) -> nn.Module:
    return nn.LayerNorm(width) if bias else RmsNorm(width)


class SelfAttention(nn.Module):
    """Queries, keys and values from one product each; grouped heads share keys inside the kernel."""

    def __init__(self, hidden: int, part: Attention) -> None:
        super().__init__()
        self.part = part
        self.q = nn.Linear(hidden, part.heads * part.head_dim, bias=part.qkv_bias)
        self.k = nn.Linear(hidden, part.kv_heads * part.head_dim, bias=part.qkv_bias)
        self.v = nn.Linear(hidden, part.kv_heads * part.value_dim, bias=part.qkv_bias)
        self.out = nn.Linear(part.heads * part.value_dim, hidden, bias=part.out_bias)

    def heads(self, x):
        b, s, _ = x.shape
        part = self.part
        q, k, v = (
            made(x).view(b, s, -1, width).transpose(1, 2)
            for made, width in ((self.q, part.head_dim), (self.k, part.head_dim), (self.v, part.value_dim))
        )
        return q, k, v

    def forward(self, x):
        q, k, v = self.heads(x)
        causal = self.part.causal
        if v.shape[-1] < k.shape[-1] and not q.is_meta:
            core = Flash.apply(q, k, v, causal)
        else:
            grouped = k.shape[1] < q.shape[1]
            core = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        return self.out(core.transpose(1, 2).flatten(2))


class LatentAttention(SelfAttention):
    """Multi-head latent attention, expanded for training (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

    def __init__(self, hidden: int, part: Attention) -> None:
        nn.Module.__init__(self)
        self.part, inner = part, part.head_dim - part.rope_dim
        self.q_down = nn.Linear(hidden, part.query_rank, bias=False)
        self.q_norm = RmsNorm(part.query_rank)
        self.q_up = nn.Linear(part.query_rank, part.heads * part.head_dim, bias=False)
        self.kv_down = nn.Linear(hidden, part.kv_rank + part.rope_dim, bias=False)
        self.kv_norm = RmsNorm(part.kv_rank)
        self.kv_up = nn.Linear(part.kv_rank, part.heads * (inner + part.value_dim), bias=False)
        self.out = nn.Linear(part.heads * part.value_dim, hidden, bias=False)

    def heads(self, x):
        b, s, _ = x.shape
        part, inner = self.part, self.part.head_dim - self.part.rope_dim
        q = self.q_up(self.q_norm(self.q_down(x))).view(b, s, part.heads, part.head_dim)
        latent, rope = self.kv_down(x).split([part.kv_rank, part.rope_dim], -1)
        wide = self.kv_up(self.kv_norm(latent.contiguous())).view(b, s, part.heads, inner + part.value_dim)
        k, v = wide.split([inner, part.value_dim], -1)
        rope = rope.view(b, s, 1, part.rope_dim).expand(-1, -1, part.heads, -1)
        k = torch.cat([k, rope], -1)
        return q.transpose(1, 2), k.transpose(1, 2), v.contiguous().transpose(1, 2)


class Mlp(nn.Module):
    def __init__(self, hidden: int, part: FeedForward) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, part.width, bias=part.bias) if part.gated else None
        self.up = nn.Linear(hidden, part.width, bias=part.bias)
        self.down = nn.Linear(part.width, hidden, bias=part.bias)

    def forward(self, x):
        if self.gate is None:
            return self.down(F.gelu(self.up(x)))
        return self.down(SwiGlu.apply(self.gate(x), self.up(x)))


class Mixture(nn.Module):
    """Experts that take turns evenly, as a balanced router would send tokens."""

    def __init__(self, hidden: int, part: Experts) -> None:
        super().__init__()
        self.part = part
        self.router = nn.Linear(hidden, part.experts, bias=False)
        self.experts = nn.ModuleList(
            Mlp(hidden, FeedForward(part.width, part.gated, part.bias)) for _ in range(part.experts)
        )
        self.shared = Mlp(hidden, FeedForward(part.shared_width, part.gated)) if part.shared_width else None

    def forward(self, x):
        tokens, part = x.flatten(0, 1), self.part
        share = self.router(tokens).softmax(-1)
        each = len(tokens) * part.active // part.experts
        turn = torch.arange(len(tokens) * part.active, device=x.device).view(part.experts, each) % len(tokens)
        parts = [
            expert(tokens.index_select(0, mine)) * share[:, number].index_select(0, mine)[:, None]
            for number, (mine, expert) in enumerate(zip(turn, self.experts, strict=True))
        ]
        total = torch.cat(parts).view(part.active, *tokens.shape).sum(0)
        if self.shared is not None:
            total = total + self.shared(tokens)
        return total.view_as(x)


class TorchBlock(nn.Module):
    """Pre-norm block; `dropout` puts one mask behind attention and one behind the feed-forward."""

    def __init__(self, hidden: int, block: Block, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm_1, self.norm_2 = norm(hidden, block.norm_bias), norm(hidden, block.norm_bias)
        latent = block.attention.kv_rank > 0
        self.attention = (LatentAttention if latent else SelfAttention)(hidden, block.attention)
        part = block.feed_forward
        self.inner = Mixture(hidden, part) if isinstance(part, Experts) else Mlp(hidden, part)

    def dropped(self, x):
        return torch.native_dropout(x, self.dropout, True)[0] if self.dropout else x

    def forward(self, x):
        x = x + self.dropped(self.attention(self.norm_1(x)))
        return x + self.dropped(self.inner(self.norm_2(x)))
