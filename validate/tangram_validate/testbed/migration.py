"""Columns of a slow tensor-parallel rank moved for real: SEMI-migration's messages and unit migration's.

Rank 0 sends. Both tasks run on every rank of a gloo group, count the bytes that rank 0's collectives carry,
and return them beside the largest difference from the layer that nothing was moved of.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

_SENDER = 0


@dataclass(frozen=True, slots=True)
class MovedLayer:
    """Bytes carried, by collective, and the largest relative difference of outputs and gradients."""

    collective_bytes: dict[str, float]
    difference: float

    @property
    def total_bytes(self) -> float:
        """Bytes of all collectives."""
        return sum(self.collective_bytes.values())


class _Wire:
    """Collectives of one group that count what they carry: each message once, as a pipelined ring does."""

    def __init__(self) -> None:
        self.carried: dict[str, float] = {}

    def _count(self, name: str, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        self.carried[name] = self.carried.get(name, 0.0) + size

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor on every rank."""
        self._count("broadcast", tensor)
        dist.broadcast(tensor, _SENDER)
        return tensor

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors on rank 0."""
        self._count("reduce", tensor)
        dist.reduce(tensor, _SENDER)
        return tensor

    def hand_over(self, tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
        """A tensor of `source` on `target`; every rank calls it, so that all count the same."""
        self._count("point to point", tensor)
        if dist.get_rank() == source:
            dist.send(tensor, target)
        elif dist.get_rank() == target:
            dist.recv(tensor, source)
        return tensor


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def published_linear(outputs: int, inputs: int, tokens: int, sent: int) -> MovedLayer:
    """A column-parallel linear [outputs, inputs] whose rank 0 sends `sent` of its input columns away.

    As in SEMI-migration's code: the whole shard and the list are broadcast forward and backward, partial
    outputs and padded weight gradients are reduced, the output gradient is broadcast.
    """
    rank, others = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(0)  # inputs and gradients are replicated in front of a column-parallel linear
    x, dy = torch.randn(tokens, inputs), torch.randn(tokens, outputs)
    own = torch.randn(outputs, inputs)  # rank 0's shard; the others' own work needs nothing of it
    listed = torch.randperm(inputs)[:sent]
    kept = torch.ones(inputs, dtype=torch.bool).index_fill(0, listed, False)
    wire = _Wire()

    def received() -> tuple[torch.Tensor, torch.Tensor]:
        """The shard and the columns that this rank works on: its own slice of the list."""
        shard = wire.broadcast(own.clone() if rank == _SENDER else torch.empty_like(own))
        columns = wire.broadcast(listed.clone() if rank == _SENDER else torch.empty_like(listed))
        if rank == _SENDER:
            return shard, kept.nonzero()[:, 0]
        return shard, columns.tensor_split(others)[rank - 1]

    shard, columns = received()
    y = wire.reduce(x[:, columns] @ shard[:, columns].T)
    shard, columns = received()
    upstream = wire.broadcast(dy.clone() if rank == _SENDER else torch.empty_like(dy))
    padded = torch.zeros_like(own)
    padded[:, columns] = upstream.T @ x[:, columns]
    dx = torch.zeros_like(x)
    dx[:, columns] = upstream @ shard[:, columns]
    dw = wire.reduce(padded)
    dist.all_reduce(dx)  # happens anyway: the sent columns' gradients merge there
    differences = [_difference(dx, dy @ own)]
    if rank == _SENDER:
        differences += [_difference(y, x @ own.T), _difference(dw, dy.T @ x)]
    return MovedLayer(wire.carried, max(differences))


def unit_feed_forward(hidden: int, units: int, tokens: int, sent: int) -> MovedLayer:
    """A feed-forward layer of `units` a rank whose rank 0 sends `sent` whole units to the others.

    Weights go out once, gradients come back once; outputs merge in the all-reduce that happens anyway.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, dy = torch.randn(tokens, hidden), torch.randn(tokens, hidden)
    every = [(torch.randn(units, hidden), torch.randn(units, hidden)) for _ in range(world)]
    up, down = every[rank]
    shares = torch.arange(units)[units - sent :].tensor_split(world - 1)
    wire = _Wire()
    borrowed = torch.empty(0)
    for target, share in enumerate(shares, 1):
        rows = torch.cat([up[share], down[share]]) if rank == _SENDER else torch.empty(2 * len(share), hidden)
        handed = wire.hand_over(rows, _SENDER, target)
        borrowed = handed if rank == target else borrowed
    keep = units - sent if rank == _SENDER else units
    extra = len(borrowed) // 2
    weights = [
        torch.cat([mine[:keep], lent]).requires_grad_()
        for mine, lent in (
            (up, borrowed[:extra].reshape(-1, hidden)),
            (down, borrowed[extra:].reshape(-1, hidden)),
        )
    ]
    partial = torch.nn.functional.gelu(x @ weights[0].T) @ weights[1]
    y = partial.detach().clone()
    dist.all_reduce(y)
    partial.backward(dy)
    first, second = (weight.grad for weight in weights)
    assert first is not None and second is not None
    gradients = [torch.cat([each[:keep], torch.zeros(units - keep, hidden)]) for each in (first, second)]
    for source, share in enumerate(shares, 1):
        lent = (
            torch.cat([first[units:], second[units:]])
            if rank == source
            else torch.empty(2 * len(share), hidden)
        )
        back = wire.hand_over(lent, source, _SENDER)
        if rank == _SENDER:
            gradients[0][share], gradients[1][share] = back[: len(share)], back[len(share) :]
    plain = [(a.clone().requires_grad_(), b.clone().requires_grad_()) for a, b in every]
    expected = sum((torch.nn.functional.gelu(x @ a.T) @ b for a, b in plain), torch.zeros(tokens, hidden))
    expected.backward(dy)
    own = [each.grad for each in plain[rank]]
    assert own[0] is not None and own[1] is not None
    return MovedLayer(
        wire.carried,
        max(
            _difference(y, expected.detach()),
            _difference(gradients[0], own[0]),
            _difference(gradients[1], own[1]),
        ),
    )
