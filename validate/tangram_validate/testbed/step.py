"""One training step on one rank: our own schedule's order, torch's own modules, messages between stages.

The order of passes is `tangram_sim.training.schedules`', so a run validates it too. Receives are posted
when the step begins (gloo moves data only once both ends have asked), sends are asynchronous.
"""

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from tangram_sim.training.schedules import Pass, schedule_named
from tangram_validate.testbed.boundary import Side, Transfer, require_rows
from tangram_validate.testbed.runner import boundaries
from tangram_validate.testbed.stage import DTYPES, Chunk, RankStage

FORWARD, BACKWARD = 0, 1


@dataclass
class Timing:
    """Seconds of one step on one rank, by what they went to."""

    begin: float = 0.0
    end: float = 0.0
    compute_s: float = 0.0  # inside forward and backward passes, waits for other stages apart
    transfer_wait_s: float = 0.0  # blocked on activations or gradients from another stage
    sync_s: float = 0.0  # gradient synchronisation behind the last pass
    loss: float = 0.0
    busy_s: float = 0.0  # emulated: sum of the waits


@dataclass
class Incoming:
    """A message that was asked for."""

    works: list[Any]
    buffer: Tensor
    rows: int
    share: int


@dataclass
class Executor:
    """Plays steps of one rank's stage."""

    here: RankStage
    pairs: dict[tuple[int, int, int], Any] = field(default_factory=dict)  # NCCL: a group per pair and way
    _posted: dict[tuple[int, int, int], Incoming] = field(default_factory=dict)
    _sent: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.here.plan
        self.pipeline, self.job = plan.pipelines[0], plan.job
        self.depth = len(self.pipeline.stages)
        self.chunk_count = max(1, len(self.here.stage.chunks))
        self.sides = [Side(stage.ranks, stage.layout.tp, stage.layout.dp) for stage in self.pipeline.stages]
        for number, side in enumerate(self.sides):
            require_rows(side, self.pipeline.microbatch, number)
        order = schedule_named(self.job.schedule).order(
            self.depth, self.pipeline.microbatches, self.chunk_count
        )
        self.passes = order.stage(self.here.number)
        self.messages = boundaries(plan)
        data, _ = self.here.side.place(self.here.rank)
        self.rows = self.here.side.rows(self.pipeline.microbatch, data)
        self.final = {
            chunk: max(
                i
                for i, stage_pass in enumerate(self.passes)
                if stage_pass.kind == "B" and stage_pass.chunk == chunk
            )
            for chunk in range(self.chunk_count)
        }

    def step(self, tokens: Tensor) -> Timing:
        """One optimizer step on `tokens` [global batch, seq + 1], the same on every rank."""
        timing, emulated = Timing(begin=time.monotonic()), self.here.emulated
        if emulated is not None:
            emulated.start()
        self._timing = timing
        self._losses: list[Tensor] = []
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._post_receives()
        self.here.optimizer.zero_grad()
        for index, stage_pass in enumerate(self.passes):
            if stage_pass.kind == "F":
                self._forward(stage_pass, tokens)
            else:
                self._backward(stage_pass, index == self.final[stage_pass.chunk])
        begun = time.monotonic()
        self._synchronise()
        if emulated is not None:
            emulated.arrived(begun)
        timing.sync_s += time.monotonic() - begun
        self.here.optimizer.step()
        self._after_update()
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
        if self.here.device == "cuda":
            torch.cuda.synchronize()
        timing.end = time.monotonic()
        timing.loss = float(sum(loss.item() for loss in self._losses))
        timing.busy_s = emulated.busy_s if emulated is not None else 0.0
        timing.compute_s = timing.busy_s or timing.end - timing.begin - timing.transfer_wait_s - timing.sync_s
        return timing

    # passes

    def _forward(self, stage_pass: Pass, tokens: Tensor) -> None:
        chunk = self.here.chunks[stage_pass.chunk]
        low = stage_pass.microbatch * self.pipeline.microbatch + self.rows[0]
        own = tokens[low : low + self.rows[1] - self.rows[0]]
        if chunk.first:
            given = own[:, :-1]
        else:
            given = self._receive(FORWARD, stage_pass)
            given.requires_grad_(True)
        quiet = chunk.module.no_sync() if isinstance(chunk.module, DistributedDataParallel) else nullcontext()
        dtype = DTYPES[self.job.dtype]
        low_precision = (
            torch.autocast(self.here.device, dtype) if dtype is not torch.float32 else nullcontext()
        )
        with quiet, low_precision:
            made = chunk.module(given)
        if chunk.last:
            made = self._loss(made, own[:, 1:])
            self._losses.append(made.detach())
        self._kept[stage_pass.microbatch, stage_pass.chunk] = (given, made)
        if not chunk.last:
            self._send(FORWARD, stage_pass, made.detach())

    def _loss(self, made: Tensor, targets: Tensor) -> Tensor:
        """This rank's share of the mean over all tokens of the step."""
        if self.here.emulated is not None:
            return made
        whole = F.cross_entropy(made.float().flatten(0, 1), targets.flatten(), reduction="sum")
        return whole / (self.job.global_batch * self.job.seq)

    def _backward(self, stage_pass: Pass, last: bool) -> None:
        chunk = self.here.chunks[stage_pass.chunk]
        given, made = self._kept.pop((stage_pass.microbatch, stage_pass.chunk))
        gradient = None if chunk.last else self._receive(BACKWARD, stage_pass)
        if not chunk.first:
            # On its way as soon as it is known: behind the call, it would wait for the reduction of weight
            # gradients that ends the last backward.
            given.register_post_accumulate_grad_hook(
                lambda leaf: self._send(BACKWARD, stage_pass, cast(Tensor, leaf.grad))
            )
        self._run_backward(chunk, made, gradient, last)

    def _run_backward(self, chunk: Chunk, made: Tensor, gradient: Tensor | None, last: bool) -> None:
        module, begun = chunk.module, time.monotonic()
        if isinstance(module, DistributedDataParallel):
            if last:
                # DDP prepares in forward; with several forwards in flight it must be told here, as
                # torch.distributed.pipelining does.
                module.reducer.prepare_for_backward([])
                torch.autograd.backward(made, gradient)
                if self.here.emulated is not None:
                    self.here.emulated.arrived(begun)
            else:
                with module.no_sync():
                    torch.autograd.backward(made, gradient)
            return
        if isinstance(module, FSDPModule):
            zero = self.here.stage.layout.zero_stage
            for part in module.modules():
                if isinstance(part, FSDPModule):
                    part.set_is_last_backward(last)
                    part.set_requires_gradient_sync(zero >= 2 or last, recurse=False)
                    part.set_reshard_after_backward(zero >= 3, recurse=False)
        torch.autograd.backward(made, gradient)

    def _synchronise(self) -> None:
        """What is left of gradient synchronisation: replicas beside tensor parallelism, tied matrices."""
        for chunk in self.here.chunks:
            if chunk.data == "manual":
                for parameter in chunk.parameters():
                    if parameter.grad is not None:
                        dist.all_reduce(local(parameter.grad), group=self.here.dp_group)
        if self.here.tied is not None and self.here.emulated is None:
            tie(self.here)

    def _after_update(self) -> None:
        for chunk in self.here.chunks:
            if chunk.data == "fsdp":
                for part in chunk.module.modules():
                    if isinstance(part, FSDPModule):
                        part.reshard()

    # messages

    def _incoming(self, direction: int) -> tuple[int, tuple[Transfer, ...], bool]:
        """(boundary, messages, whether they are gradients) that a forward or backward pass receives."""
        boundary = (self.here.number - 1) % self.depth if direction == FORWARD else self.here.number
        return boundary, self.messages[boundary], direction == BACKWARD

    def _tag(self, direction: int, chunk: int, microbatch: int, index: int, boundary: int) -> int:
        most = max(len(messages) for messages in self.messages)
        place = ((direction * self.depth + boundary) * self.chunk_count + chunk) * self.pipeline.microbatches
        return (place + microbatch) * most + index

    def _post_receives(self) -> None:
        for stage_pass in self.passes:
            chunk = self.here.chunks[stage_pass.chunk]
            if stage_pass.kind == "F" and not chunk.first:
                self._post(FORWARD, stage_pass)
            elif stage_pass.kind == "B" and not chunk.last:
                self._post(BACKWARD, stage_pass)

    def _post(self, direction: int, stage_pass: Pass) -> None:
        boundary, messages, reverse = self._incoming(direction)
        side, rank = self.here.side, self.here.rank
        data, _ = side.place(rank)
        begin, _ = side.owned(rank, self.pipeline.microbatch, self.job.seq)
        share = side.share(self.pipeline.microbatch, self.job.seq, data)
        hidden = self.here.plan.model.hidden
        buffer = torch.zeros(share, hidden, device=self.here.device, dtype=DTYPES[self.job.dtype])
        works = []
        # A chunk's input comes from the same chunk of the stage before, behind a wrap from the chunk before.
        sender = self._sender_chunk(direction, stage_pass.chunk)
        for index, message in enumerate(messages):
            peer, mine = (message.target, message.source) if reverse else (message.source, message.target)
            if mine == rank:
                part = buffer[message.start - begin : message.stop - begin]
                tag = self._tag(direction, sender, stage_pass.microbatch, index, boundary)
                works.append(dist.irecv(part, peer, tag=tag, group=self.pairs.get((peer, rank, direction))))
        rows = self.rows[1] - self.rows[0]
        self._posted[direction, stage_pass.chunk, stage_pass.microbatch] = Incoming(
            works, buffer, rows, share
        )

    def _sender_chunk(self, direction: int, chunk: int) -> int:
        if direction == FORWARD:
            return chunk - (self.here.number == 0)
        return chunk + (self.here.number == self.depth - 1)

    def _receive(self, direction: int, stage_pass: Pass) -> Tensor:
        incoming = self._posted.pop((direction, stage_pass.chunk, stage_pass.microbatch))
        begun = time.monotonic()
        for work in incoming.works:
            work.wait()
        whole = incoming.buffer
        if self.here.side.tp > 1:
            tp = self.here.side.tp
            whole = torch.empty(tp * incoming.share, whole.shape[1], device=whole.device, dtype=whole.dtype)
            dist.all_gather_single(whole, incoming.buffer, group=self.here.tp_group)
        self._timing.transfer_wait_s += time.monotonic() - begun
        if self.here.emulated is not None:
            self.here.emulated.arrived(begun)
        tokens = incoming.rows * self.job.seq
        return whole[:tokens].view(incoming.rows, self.job.seq, -1).clone()

    def _send(self, direction: int, stage_pass: Pass, made: Tensor) -> None:
        reverse = direction == BACKWARD
        boundary = (self.here.number - 1) % self.depth if reverse else self.here.number
        base = self.rows[0] * self.job.seq
        flat = made.to(DTYPES[self.job.dtype]).reshape(-1, made.shape[-1])
        for index, message in enumerate(self.messages[boundary]):
            peer, mine = (message.source, message.target) if reverse else (message.target, message.source)
            if mine == self.here.rank:
                part = flat[message.start - base : message.stop - base].contiguous()
                tag = self._tag(direction, stage_pass.chunk, stage_pass.microbatch, index, boundary)
                group = self.pairs.get((self.here.rank, peer, direction))
                self._sent.append((dist.isend(part, peer, tag=tag, group=group), part))


def local(tensor: Tensor) -> Tensor:
    """The part of a (sharded) tensor that lies on this rank."""
    return cast(Tensor, tensor.to_local()) if hasattr(tensor, "to_local") else tensor


def tie(here: RankStage) -> None:
    """Add up the gradients of a matrix that the first and the last stage both hold, however it is sharded."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    stages = here.plan.pipelines[0].stages
    for chunk in here.chunks:
        for name, parameter in chunk.module.named_parameters():
            if not name.endswith(("tokens.weight", "logits.weight")):
                continue
            gradient = cast(Any, parameter.grad)
            sharded = isinstance(gradient, DTensor)
            whole = gradient.full_tensor() if sharded else gradient
            holders = stages[0] if name.endswith("tokens.weight") else stages[-1]
            whole = whole / len(holders.ranks)
            dist.all_reduce(whole, group=here.tied)
            if sharded:
                whole = distribute_tensor(
                    whole, gradient.device_mesh, gradient.placements, src_data_rank=None
                )
            parameter.grad = whole


def pair_groups(boundaries: list[tuple[Transfer, ...]]) -> dict[tuple[int, int, int], Any]:
    """NCCL orders messages per group: give every pair of ranks and direction a group of its own."""
    found: dict[tuple[int, int, int], Any] = {}
    for messages in boundaries:
        for message in messages:
            for direction in (FORWARD, BACKWARD):
                a, b = (
                    (message.source, message.target)
                    if direction == FORWARD
                    else (message.target, message.source)
                )
                if (a, b, direction) not in found:
                    found[a, b, direction] = dist.new_group([a, b])
    return found
