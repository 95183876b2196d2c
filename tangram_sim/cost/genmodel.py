"""GenModel: seconds of one collective from rounds, bytes sent, bytes reduced, memory traffic and incast.

T = A alpha + B beta + C gamma + D delta + max(w - w_t, 0) B epsilon  (GenTree paper, arXiv:2409.04202).
The terms of every plan are derived from its rounds: a k-way addition reads k blocks and writes one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, log2, prod

from tangram_sim.errors import BadInputError

OPS = ("all_reduce", "reduce_scatter", "all_gather")


@dataclass(frozen=True, slots=True)
class GenModelParameters:
    """Cost parameters of one level of a network and of the devices on it."""

    alpha_s: float  # per round
    beta_s_per_byte: float  # sent over the slowest link
    gamma_s_per_byte: float = 0.0  # reduced
    delta_s_per_byte: float = 0.0  # read or written in memory by reductions
    epsilon_s_per_byte: float = 0.0  # more per byte sent, for each sender above the threshold
    senders: float = inf  # w_t: so many may send to one receiver at once at no extra cost
    source: str = ""

    def __post_init__(self) -> None:
        for name in (
            "alpha_s",
            "beta_s_per_byte",
            "gamma_s_per_byte",
            "delta_s_per_byte",
            "epsilon_s_per_byte",
        ):
            value = getattr(self, name)
            if not isfinite(value) or value < 0:
                raise BadInputError(
                    f"GenModel {name}: {value:g} given; a finite number, zero or more, is wanted"
                )
        if not self.senders >= 0:
            raise BadInputError(f"GenModel senders: {self.senders:g} given; zero or more is wanted")


@dataclass(frozen=True, slots=True)
class GenModelTerms:
    """A plan's rounds A, bytes B sent, C reduced, D moved in memory on the critical path; senders w."""

    rounds: float
    sent_bytes: float
    reduced_bytes: float
    memory_bytes: float
    senders: int

    def seconds(self, at: GenModelParameters) -> float:
        """GenModel's time under parameters `at`."""
        incast = max(self.senders - at.senders, 0.0)
        return (
            self.rounds * at.alpha_s
            + self.sent_bytes * at.beta_s_per_byte
            + self.reduced_bytes * at.gamma_s_per_byte
            + self.memory_bytes * at.delta_s_per_byte
            + incast * self.sent_bytes * at.epsilon_s_per_byte
        )

    def of(self, op: str) -> "GenModelTerms":
        """The terms of `op` (a half of an all-reduce, or all of it), where self are those of the
        all-reduce."""
        if op == "all_reduce":
            return self
        moved = self.rounds / 2, self.sent_bytes / 2
        if op == "reduce_scatter":
            return GenModelTerms(*moved, self.reduced_bytes, self.memory_bytes, self.senders)
        return GenModelTerms(*moved, 0.0, 0.0, self.senders)


def reduce_broadcast(ranks: int, size: float) -> GenModelTerms:
    """All ranks send the whole buffer to one root, which adds and sends the sum back."""
    n = ranks
    return GenModelTerms(2, 2 * (n - 1) * size, (n - 1) * size, (n + 1) * size, n - 1) if n > 1 else _NOTHING


def colocated_ps(ranks: int, size: float) -> GenModelTerms:
    """Every rank is the parameter server of one block: a direct reduce-scatter and all-gather."""
    return hierarchical_ps((ranks,), size)


def ring(ranks: int, size: float) -> GenModelTerms:
    """A ring: blocks are passed around, with one addition of two blocks per step."""
    n = ranks
    if n < 2:
        return _NOTHING
    share = (n - 1) * size / n
    return GenModelTerms(2 * (n - 1), 2 * share, share, 3 * share, 1)


def halving_doubling(ranks: int, size: float) -> GenModelTerms:
    """Recursive halving and doubling; ranks beyond a power of two fold into a neighbour first."""
    if ranks < 2:
        return _NOTHING
    power = 1 << (ranks.bit_length() - 1)
    share = (ranks - 1) * size / ranks
    if power == ranks:
        return GenModelTerms(2 * int(log2(ranks)), 2 * share, share, 3 * share, 1)
    return GenModelTerms(
        2 * int(log2(power)) + 2, 2 * share + 2 * size, share + size, 3 * share + 3 * size, 1
    )


def hierarchical_ps(fan_ins: Sequence[int], size: float) -> GenModelTerms:
    """Co-located servers in stages: groups of f_1 ranks first, then of f_2 on the remaining blocks, etc."""
    kept = [fan_in for fan_in in fan_ins if fan_in > 1]
    n = prod(kept)
    if n < 2:
        return _NOTHING
    share, done, memory = (n - 1) * size / n, 1, 0.0
    for fan_in in kept:
        done *= fan_in
        memory += (fan_in + 1) / done
    return GenModelTerms(2 * len(kept), 2 * share, share, memory * size, max(kept) - 1)


_NOTHING = GenModelTerms(0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """A plan over the members of one switch, by name; `fan_ins` for hierarchical ones."""

    name: str
    fan_ins: tuple[int, ...] = ()

    def terms(self, ranks: int, size: float) -> GenModelTerms:
        """GenModel's terms of an all-reduce of `size` bytes over `ranks`."""
        if self.name == "hierarchical-ps":
            return hierarchical_ps(self.fan_ins, size)
        return FIXED[self.name](ranks, size)

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.fan_ins))}" if self.fan_ins else self.name


FIXED = {
    "reduce-broadcast": reduce_broadcast,
    "colocated-ps": colocated_ps,
    "ring": ring,
    "halving-doubling": halving_doubling,
}


@lru_cache(maxsize=4096)
def factorisations(number: int) -> tuple[tuple[int, ...], ...]:
    """Ordered ways to write `number` as a product of two or more factors above 1."""
    return tuple(found for found in _products(number) if len(found) > 1)


def _products(number: int) -> Iterator[tuple[int, ...]]:
    yield (number,)
    for first in range(2, number // 2 + 1):
        if number % first == 0:
            for rest in _products(number // first):
                yield (first, *rest)


@lru_cache(maxsize=4096)
def candidates(ranks: int) -> tuple[LocalPlan, ...]:
    """All plans over `ranks` members of one switch, in the order of preference among equally fast ones."""
    if ranks < 2:
        return ()
    plans = [LocalPlan("colocated-ps"), LocalPlan("halving-doubling"), LocalPlan("ring")]
    plans += [LocalPlan("hierarchical-ps", fan_ins) for fan_ins in factorisations(ranks)]
    return (*plans, LocalPlan("reduce-broadcast"))
