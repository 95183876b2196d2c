"""Tensor parallelism with slow ranks: the share of its columns that each rank computes, prunes or sends.

After ZERO-resizing and SEMI-migration (arXiv 2401.11469, github:fearless1007/ZERO at 907a48f). The paper's
three equations for shares were not legible and the released code has fixed shares (`published_shares`); the
bisection is our own. Layers take rank i, `x_i` times slower than a healthy rank, x_i (a + g (1 - pruned_i -
sent_i + received_i)) seconds: `a` does not depend on its share of the columns, `g` does. The layers end with
the slowest rank; the senders' transfers follow one after another. Pruned columns are a risk to accuracy,
which is not simulated: the pruned share is part of every answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf

from tangram_sim.errors import BadInputError
from tangram_sim.training.shares import by_earliest_end

# Of the published code: a pruning rank drops half of its columns, the sender keeps 4 of 32 parts.
PUBLISHED_PRUNED = 1 / 2
PUBLISHED_SENT = 28 / 32
# A pruning rank gathers what it keeps and scatters gradients back: for each of the inputs and weights it
# moves 11 times what it keeps and once the whole (counted from the operations of the published code).
_KEPT_PASSES, _WHOLE_PASSES = 11.0, 1.0
_HALVINGS = 50
# Shares below it are none.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Seconds of some layers on a healthy rank of a tensor-parallel group, and to prune and send columns.

    Shares are relative to a rank's even share of the columns. Columns move in `units` (columns of the first
    feed-forward matrix with the row of the second; `unit_part` of all columns) and `groups` (key/value heads
    with their queries; the rest). A rank keeps at least one group. 0 units: columns are divisible at will.
    """

    columns_s: float  # g: all of a rank's columns
    fixed_s: float = 0.0  # a: whatever its share
    gather_s: float = 0.0  # one pass over the inputs and weights in memory
    send_s: float = 0.0  # per sender, whatever it sends
    share_s: float = 0.0  # per sender, times the share of its columns that it sends
    most_received: float = inf  # share that a rank has memory for
    units: int = 0
    unit_part: float = 1.0
    groups: int = 0

    @property
    def most_sent(self) -> float:
        """The largest share of its columns that a rank can send away."""
        kept = (1 - self.unit_part) / self.groups if self.groups else 1 - self.unit_part
        return 1 - kept if self.units else 1.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Division of the layers over a group's ranks. Pruned, sent and received columns [n] are shares of an
    even rank's; `layer_s` and `transfer_s` are seconds."""

    layer_s: float
    pruned: tuple[float, ...]
    sent: tuple[float, ...]
    received: tuple[float, ...]
    transfer_s: float

    @property
    def pruned_share(self) -> float:
        """Share of the group's columns that no rank computes: the risk to accuracy."""
        return sum(self.pruned) / len(self.pruned)

    @property
    def verdict(self) -> str:
        """Name of the method in use: `even`, `resize`, `migrate` or `both`."""
        return {(False, False): "even", (True, False): "resize", (False, True): "migrate"}.get(
            (any(self.pruned), any(self.sent)), "both"
        )


def even(slowness: Sequence[float], costs: LayerCosts) -> Shares:
    """Even shares: the slowest rank determines the layers' time."""
    x = _checked(slowness, costs)
    zero = (0.0,) * len(x)
    return _shares(x, costs, zero, zero, zero)


def lossless_bound_s(slowness: Sequence[float], costs: LayerCosts) -> float:
    """Lower bound on seconds of layers without pruning: the work of n healthy ranks over the sum of speeds.

    Exact where `fixed_s` is 0; otherwise only a bound, since part of the work is not divisible.
    """
    x = _checked(slowness, costs)
    return len(x) * (costs.fixed_s + costs.columns_s) / sum(1 / slowness for slowness in x)


def resized(
    slowness: Sequence[float], costs: LayerCosts, cap: float = PUBLISHED_PRUNED, max_pruned: float = 1.0
) -> Shares:
    """ZERO-resizing: slow ranks prune at most the share `cap` of their columns; nothing is sent."""
    return _best(slowness, costs, cap, max_pruned, senders=(0,))


def hybrid(
    slowness: Sequence[float], costs: LayerCosts, cap: float = PUBLISHED_PRUNED, max_pruned: float = 1.0
) -> Shares:
    """The fastest of even shares, resizing, migration, and both: the slowest send, other slow ranks prune.

    Every number of senders is tried; among equally fast results the one with the least pruning.
    """
    return _best(slowness, costs, cap, max_pruned, senders=range(len(slowness)))


def published_shares(slowness: Sequence[float], costs: LayerCosts, migrates: bool) -> Shares:
    """Fixed shares of the published code: slow ranks prune 1/2, or the slowest sends 28/32 evenly.

    Healthy ranks receive. Other slow ranks prune nothing, since that code does not prune while migrating.
    """
    x = _checked(slowness, costs)
    zero, least = (0.0,) * len(x), min(x)
    if not migrates:
        return _shares(x, costs, tuple(PUBLISHED_PRUNED if item > least else 0.0 for item in x), zero, zero)
    sender = max(range(len(x)), key=x.__getitem__)
    if x[sender] == least:
        return even(x, costs)
    healthy = x.count(least)
    received = tuple(PUBLISHED_SENT / healthy if item == least else 0.0 for item in x)
    sent = tuple(PUBLISHED_SENT if rank == sender else 0.0 for rank in range(len(x)))
    return _shares(x, costs, zero, sent, received)


def with_senders(
    x: Sequence[float], costs: LayerCosts, senders: frozenset[int], cap: float, max_pruned: float
) -> Shares:
    """The least time in which `senders` send and other slow ranks prune, by bisection. Bisection applies
    because a longer time never needs more pruning or sending. Even shares where no time is feasible."""
    whole = costs.fixed_s + costs.columns_s
    low, high = min(x) * whole, max(x) * whole
    target = _target(x, costs, senders, low)
    if target is None or not target.is_allowed(costs, cap, max_pruned):
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            target = _target(x, costs, senders, middle)
            if target is not None and target.is_allowed(costs, cap, max_pruned):
                high = middle
            else:
                low = middle
        target = _target(x, costs, senders, high)
    if target is None or not target.is_allowed(costs, cap, max_pruned):
        return even(x, costs)
    sent, received = _placed(x, costs, target)
    if max(received) > costs.most_received + _ROUNDING:  # whole key/value groups that fit nowhere
        return even(x, costs)
    return _shares(x, costs, target.pruned, sent, received)


def _best(
    slowness: Sequence[float], costs: LayerCosts, cap: float, max_pruned: float, senders: Sequence[int]
) -> Shares:
    x = _checked(slowness, costs)
    if not 0 <= cap < 1 or not 0 <= max_pruned <= 1:
        raise BadInputError(f"a cap of {cap:g} and {max_pruned:g} pruned at most: give shares, a cap below 1")
    slowest_first = sorted(range(len(x)), key=lambda rank: -x[rank])
    found = [even(x, costs)]
    for most in sorted({0.0, cap}):  # whole units can make pruning beside sending the slower choice
        found += [
            with_senders(x, costs, frozenset(slowest_first[:count]), most, max_pruned) for count in senders
        ]
    return min(found, key=lambda shares: (round(shares.layer_s / max(x), 12), shares.pruned_share))


@dataclass(frozen=True, slots=True)
class _Target:
    """What a target time requires of every rank, as shares of an even rank's columns, [n]."""

    pruned: tuple[float, ...]
    sent: tuple[float, ...]
    slack: tuple[float, ...]

    def is_allowed(self, costs: LayerCosts, cap: float, max_pruned: float) -> bool:
        """Whether no rank prunes or sends too much, and the slack can receive all that is sent."""
        return (
            max(self.pruned) <= cap + _ROUNDING
            and sum(self.pruned) / len(self.pruned) <= max_pruned + _ROUNDING
            and max(self.sent) <= costs.most_sent + _ROUNDING
            and sum(self.sent) <= sum(self.slack) + _ROUNDING
        )


def _target(
    x: Sequence[float], costs: LayerCosts, senders: frozenset[int], target_s: float
) -> _Target | None:
    """What ranks prune, send and can receive to finish in `target_s`, transfers included; None: infeasible.

    With transfer time t, senders compute 1 - sent_i = ((target - t) / x_i - a) / g, and t is the sum of their
    transfers, which are linear in what they send.
    """
    a, g = costs.fixed_s, costs.columns_s
    sending: set[int] = set()
    transfer_s = 0.0
    while True:
        more = {rank for rank in senders if x[rank] * (a + g) > target_s - transfer_s + _ROUNDING * g}
        if more <= sending:
            break
        sending |= more
        damping = 1 - costs.share_s * sum(1 / (x[rank] * g) for rank in sending)
        if damping <= 0:
            return None
        asked = sum(costs.send_s + costs.share_s * (1 + a / g - target_s / (x[rank] * g)) for rank in sending)
        transfer_s = asked / damping
    left_s = target_s - transfer_s
    room = [(left_s / slowness - a) / g - 1 for slowness in x]
    whole = costs.gather_s * (_KEPT_PASSES + _WHOLE_PASSES) + a + g
    room_for, unit = costs.most_received, costs.unit_part / max(costs.units, 1)
    if costs.units and room_for < inf:
        room_for = floor(room_for / unit + 1e-9) * unit
    return _Target(
        pruned=tuple(
            (whole - left_s / x[rank]) / (g + _KEPT_PASSES * costs.gather_s)
            if rank not in senders and share < -_ROUNDING
            else 0.0
            for rank, share in enumerate(room)
        ),
        sent=tuple(-share if rank in sending else 0.0 for rank, share in enumerate(room)),
        slack=tuple(
            0.0 if rank in senders else min(max(share, 0.0), room_for) for rank, share in enumerate(room)
        ),
    )


def _placed(
    x: Sequence[float], costs: LayerCosts, target: _Target
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(sent, received) shares: proportional to slack, or whole units and groups where each ends first."""
    if not any(target.sent):
        return target.sent, (0.0,) * len(x)
    if not costs.units:
        share = sum(target.sent) / sum(target.slack)
        return target.sent, tuple(room * share for room in target.slack)
    unit = costs.unit_part / costs.units
    group = (1 - costs.unit_part) / costs.groups if costs.groups else 0.0
    groups = [
        ceil((share - costs.unit_part) / group - 1e-9) if share > costs.unit_part + _ROUNDING else 0
        for share in target.sent
    ]
    units = [
        floor((share - count * group) / unit + 1e-9) for share, count in zip(target.sent, groups, strict=True)
    ]
    takers = [rank for rank, room in enumerate(target.slack) if room > 0]
    held = dict.fromkeys(takers, 0.0)
    for total, size in ((sum(groups), group), (sum(units), unit)):

        def end_s(place: int, count: int, size: float = size) -> float:
            share = held[takers[place]] + count * size
            if share > costs.most_received + _ROUNDING:
                return inf
            return x[takers[place]] * (costs.fixed_s + costs.columns_s * (1 + share))

        for rank, count in zip(takers, by_earliest_end(total, end_s, [1] * len(takers)), strict=True):
            held[rank] += count * size
    sent = tuple(count * group + more * unit for count, more in zip(groups, units, strict=True))
    return sent, tuple(held.get(rank, 0.0) for rank in range(len(x)))


def _shares(
    x: Sequence[float],
    costs: LayerCosts,
    pruned: tuple[float, ...],
    sent: tuple[float, ...],
    received: tuple[float, ...],
) -> Shares:
    transfer_s = sum(costs.send_s + costs.share_s * share for share in sent if share > 0)
    busy_s = max(
        slowness
        * (
            costs.fixed_s
            + costs.columns_s * (1 - cut - away + more)
            + (costs.gather_s * (_KEPT_PASSES * (1 - cut) + _WHOLE_PASSES) if cut > 0 else 0.0)
        )
        for slowness, cut, away, more in zip(x, pruned, sent, received, strict=True)
    )
    return Shares(busy_s + transfer_s, pruned, sent, received, transfer_s)


def repriced(shares: Shares, slowness: Sequence[float], rank_s: Sequence[float]) -> Shares:
    """The same shares, priced with the seconds `rank_s` [n] that a healthy rank takes for each share."""
    busy_s = max(x * seconds for x, seconds in zip(slowness, rank_s, strict=True))
    return replace(shares, layer_s=busy_s + shares.transfer_s)


def _checked(slowness: Sequence[float], costs: LayerCosts) -> tuple[float, ...]:
    if not slowness or not all(0 < x < inf for x in slowness):
        raise BadInputError(f"slowness {list(slowness)}: give one number above 0 per rank, 1 = healthy")
    amounts = (costs.fixed_s, costs.gather_s, costs.send_s, costs.share_s)
    if not costs.columns_s > 0 or min(amounts) < 0:
        raise BadInputError(f"{costs}: give seconds, those of the columns above 0")
    return tuple(slowness)
