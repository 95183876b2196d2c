"""Between two stages: who sends which tokens to whom, when their tensor and data degrees differ.

Tokens of a microbatch are numbered 0 to microbatch x seq. A data-parallel rank works on a run of whole
sequences; its tensor-parallel ranks hold the same run and each owns an even share of it. Every token
crosses the boundary once, from its owner on one side to its owner on the other; receivers then gather
their run inside the tensor-parallel group.
"""

from dataclasses import dataclass

from tangram_sim.errors import BadInputError


@dataclass(frozen=True, slots=True)
class Side:
    """The ranks of a stage, tp fastest."""

    ranks: tuple[int, ...]
    tp: int
    dp: int

    def place(self, rank: int) -> tuple[int, int]:
        """(data, tensor) coordinates of a rank."""
        return divmod(self.ranks.index(rank), self.tp)

    def rows(self, microbatch: int, data: int) -> tuple[int, int]:
        """Sequences [start, stop) of a data-parallel rank: even shares, the first ones larger."""
        base, extra = divmod(microbatch, self.dp)
        start = data * base + min(data, extra)
        return start, start + base + (data < extra)

    def owned(self, rank: int, microbatch: int, seq: int) -> tuple[int, int]:
        """Tokens [start, stop) that a rank sends or receives."""
        data, tensor = self.place(rank)
        start, stop = (row * seq for row in self.rows(microbatch, data))
        size = self.share(microbatch, seq, data)
        return min(start + tensor * size, stop), min(start + (tensor + 1) * size, stop)

    def share(self, microbatch: int, seq: int, data: int) -> int:
        """Tokens each tensor-parallel rank owns, the last one perhaps fewer."""
        start, stop = self.rows(microbatch, data)
        return -(-(stop - start) * seq // self.tp)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Tokens [start, stop) that `source` hands to `target`."""

    source: int
    target: int
    start: int
    stop: int


def transfers(before: Side, after: Side, microbatch: int, seq: int) -> tuple[Transfer, ...]:
    """All messages of one microbatch over one boundary, in order of tokens."""
    found = []
    for source in before.ranks:
        a = before.owned(source, microbatch, seq)
        for target in after.ranks:
            b = after.owned(target, microbatch, seq)
            start, stop = max(a[0], b[0]), min(a[1], b[1])
            if start < stop:
                found.append(Transfer(source, target, start, stop))
    return tuple(sorted(found, key=lambda transfer: (transfer.start, transfer.source, transfer.target)))


def require_rows(side: Side, microbatch: int, stage: int) -> None:
    """Raise BadInputError where a data-parallel rank would have no sequence."""
    if microbatch < side.dp:
        raise BadInputError(
            f"stage {stage}: a microbatch of {microbatch} leaves some of its {side.dp} data-parallel ranks "
            "without a sequence; the runner wants one each"
        )
