"""Atoms whose compute is a timed wait: real tensors of the real sizes move, kernels do not run.

Lengths come from a scenario (seconds per flop of each kind of rank) and from torch's own flop counter run
over the real module on meta tensors. Nothing here knows what was predicted.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tangram_sim.models import Model
from tangram_validate.testbed.transformer import build_atom

BLOCKED_S = 100e-6  # a call that took longer than this has waited for another rank
BYTES_OPTIMIZER = 28.0  # AdamW in fp32 reads weight, gradient, two moments and writes weight and moments


@dataclass(frozen=True, slots=True)
class Speed:
    """What a kind of emulated rank does per second, from a scenario file."""

    flop_per_s: float
    memory_bytes_per_s: float
    overhead_s: float = 0.0  # per pass through an atom


@dataclass
class Device:
    """The time line of one emulated device: work queued back to back keeps exact time, as on a GPU stream."""

    speed: Speed
    free_at: float = 0.0
    busy_s: float = 0.0
    last_wait_end: float = 0.0

    def start(self) -> None:
        """Begin a step now."""
        self.free_at = time.monotonic()
        self.busy_s = 0.0

    def arrived(self, since: float) -> None:
        """Note an input received by a call begun at `since` (monotonic); if it blocked, work starts now."""
        now = time.monotonic()
        if now - since > BLOCKED_S:
            self.free_at = max(self.free_at, now)

    def wait(self, seconds: float) -> None:
        """Be busy for that long, from when the device was free."""
        now = time.monotonic()
        if now - self.free_at > 0.02:  # nothing was queued: the host was elsewhere
            self.free_at = now
        self.free_at += seconds
        self.busy_s += seconds
        left = self.free_at - time.monotonic()
        if left > 0:
            time.sleep(left)


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations of one atom for some sequences on one rank (before any sharding)."""

    forward: float
    input_gradient: float
    weight_gradient: float
    parameters: int


@lru_cache(maxsize=256)
def work_of(model: Model, atom: int, sequences: int, seq: int) -> Work:
    """Count with torch's FlopCounterMode on meta tensors; attention unfused, so that all scores count."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    kind = atom if atom in (0, model.layers + 1) else 1 + model.blocks.index(model.blocks[atom - 1])
    if kind != atom:
        return work_of(model, kind, sequences, seq)
    with torch.device("meta"):
        module = _meta_atom(model, atom)
        if atom == 0:
            given: Tensor = torch.zeros(sequences, seq, dtype=torch.long)
        else:
            given = torch.zeros(sequences, seq, model.hidden, requires_grad=True)
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            with FlopCounterMode(display=False) as counter:
                made = module(given)
            forward = counter.get_total_flops()
            with FlopCounterMode(display=False) as counter:
                made.sum().backward()
    backward = counter.get_total_flops()
    matrices = sum(p.numel() for p in module.parameters() if p.dim() > 1) if atom else 0
    weight = min(2.0 * sequences * seq * matrices, backward)
    return Work(forward, backward - weight, weight, sum(p.numel() for p in module.parameters()))


def _meta_atom(model: Model, atom: int) -> nn.Module:
    from dataclasses import replace

    return build_atom(replace(model, tied=False), atom, 0)


class _Passage(torch.autograd.Function):
    """Autograd function of an emulated atom: timed waits for both passes and tensor-parallel all-reduces."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, atom: "EmulatedAtom") -> Tensor:
        ctx.atom, ctx.shape, ctx.dtype = atom, weight.shape, weight.dtype
        sequences = x.shape[0]
        ctx.sequences = sequences
        out = atom.output_for(x)
        ctx.integer_input = not x.is_floating_point()
        atom.pass_forward(sequences, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        atom: EmulatedAtom = ctx.atom
        (gradient,) = gradients
        back = atom.pass_backward(ctx.sequences, gradient)
        weight = torch.zeros(ctx.shape, dtype=ctx.dtype)
        return (None if ctx.integer_input else back), weight, None


class EmulatedAtom(nn.Module):
    """One atom of a model as waits; `weight` is a real parameter of the size a rank holds."""

    def __init__(
        self,
        model: Model,
        atom: int,
        seq: int,
        device: Device,
        tp: int,
        group: Any,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.facts, self.atom, self.seq, self.device = model, atom, seq, device
        self.tp, self.group = tp, group
        self.recompute = recompute and 0 < atom <= model.layers
        self.work = work_of(model, atom, 1, seq)  # of one sequence
        size = self.work.parameters // tp
        self.weight = nn.Parameter(torch.zeros(size))
        # Reductions behind row-parallel products: two in a block, one behind the embedding.
        self.parts = 2 if 0 < atom <= model.layers else 1
        self.reduces_forward = tp > 1 and atom <= model.layers
        self.reduces_backward = tp > 1 and atom > 0

    def seconds(self, sequences: int) -> tuple[float, float, float]:
        """(forward, input gradient, weight gradient) of one pass on this rank."""
        speed = self.device.speed
        forward, inputs, weights = (
            flop * sequences / self.tp / speed.flop_per_s
            for flop in (self.work.forward, self.work.input_gradient, self.work.weight_gradient)
        )
        return forward + speed.overhead_s, inputs + speed.overhead_s, weights

    def output_for(self, x: Tensor) -> Tensor:
        """What the next atom gets: activations, behind the head one number."""
        if self.atom == 0:
            return torch.zeros(x.shape[0], self.seq, self.facts.hidden)
        if self.atom == self.facts.layers + 1:
            return torch.zeros(())
        return x.clone()

    def pass_forward(self, sequences: int, out: Tensor) -> None:
        """Wait through the forward pass."""
        forward = self.seconds(sequences)[0]
        for _ in range(self.parts):
            self.device.wait(forward / self.parts)
            if self.reduces_forward:
                begun = time.monotonic()
                dist.all_reduce(out.detach().clone(), group=self.group)
                self.device.arrived(begun)

    def pass_backward(self, sequences: int, gradient: Tensor) -> Tensor:
        """Wait through the backward pass; weight gradients run beside the reduction of input gradients."""
        _, inputs, weights = self.seconds(sequences)
        back = (
            torch.zeros(sequences, self.seq, self.facts.hidden)
            if self.atom == self.facts.layers + 1
            else gradient.clone()
        )
        if self.recompute:
            self.pass_forward(sequences, back)
        for _ in range(self.parts):
            self.device.wait(inputs / self.parts)
            work = (
                dist.all_reduce(back.clone(), group=self.group, async_op=True)
                if self.reduces_backward
                else None
            )
            self.device.wait(weights / self.parts)
            if work is not None:
                begun = time.monotonic()
                cast(Any, work).wait()
                self.device.arrived(begun)
        return back

    def forward(self, x: Tensor) -> Tensor:
        """As the real atom's, with zeros for values."""
        return cast(Tensor, _Passage.apply(x, self.weight, self))


@dataclass
class EmulatedOptimizer:
    """An optimizer step as a wait: every state read and written once."""

    device: Device
    parameters: Sequence[Tensor] = field(default_factory=tuple)

    def step(self) -> None:
        """Be busy for as long as the update takes."""
        moved = sum(parameter.numel() for parameter in self.parameters) * BYTES_OPTIMIZER
        self.device.wait(moved / self.device.speed.memory_bytes_per_s)

    def zero_grad(self) -> None:
        """Forget gradients but keep their memory, as training loops that accumulate do."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
