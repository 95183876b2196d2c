"""Tensor parallelism with slow ranks: pruned columns (ZERO-resizing), columns sent to fast ranks
(migration), both (SEMI-migration), and shares cut unevenly from the start.

The ideas are those of arXiv 2401.11469, whose equations could not be read; this model is our own. A layer
takes rank i, `x_i` times slower than a healthy one, x_i (a + g (1 - gamma_i - mu_i + received_i)) seconds:
`a` what does not depend on its share of the columns, `g` what does, `gamma_i` pruned, `mu_i` sent away. A
layer ends when the slowest rank has; sending costs every rank ceil(log2 n) (alpha + beta mu_i) for each
sender, along a tree. Pruned columns are a risk to accuracy, which is not simulated: their share is part of
every answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log2

from tangram_sim.errors import BadInputError

# Of the published code: gamma is fixed at 1/2 there.
USUAL_CAP = 0.5
_HALVINGS = 50
# Shares below it are none.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Seconds of one layer on a healthy rank of a tensor-parallel group, and of sending its columns."""

    columns_s: float  # g: all of a rank's columns
    fixed_s: float = 0.0  # a: whatever its share
    message_s: float = 0.0  # alpha, per sender and level of the tree
    share_s: float = 0.0  # beta, times the share of a rank's columns that is sent


@dataclass(frozen=True, slots=True)
class Shares:
    """How a group shares a layer. Columns are shares of an even rank's: pruned, sent away, taken over;
    [n].
    """

    layer_s: float
    pruned: tuple[float, ...]
    sent: tuple[float, ...]
    received: tuple[float, ...]
    transfer_s: float

    @property
    def pruned_share(self) -> float:
        """The share of all the group's columns that nobody computes: the risk to accuracy."""
        return sum(self.pruned) / len(self.pruned)


def even(slowness: Sequence[float], costs: LayerCosts) -> Shares:
    """Equal shares: the slowest rank sets the pace."""
    x = _checked(slowness, costs)
    zero = (0.0,) * len(x)
    return Shares(max(x) * (costs.fixed_s + costs.columns_s), zero, zero, zero, 0.0)


def lossless_bound_s(slowness: Sequence[float], costs: LayerCosts) -> float:
    """The least seconds of a layer that computes everything: n healthy layers' work over the speeds' sum.

    Exact where nothing is fixed (`fixed_s` 0); else a bound, since work is then not divisible without end.
    """
    x = _checked(slowness, costs)
    return len(x) * (costs.fixed_s + costs.columns_s) / sum(1 / slowness for slowness in x)


def resized(
    slowness: Sequence[float], costs: LayerCosts, cap: float = USUAL_CAP, max_pruned: float = 1.0
) -> Shares:
    """ZERO-resizing: every slow rank computes fewer columns, at most `cap` fewer; nothing is sent."""
    return _best(slowness, costs, cap, max_pruned, senders=(0,))


def migrated(slowness: Sequence[float], costs: LayerCosts) -> Shares:
    """Slow ranks send columns to those with slack; nothing is pruned."""
    return _best(slowness, costs, 0.0, 0.0, senders=range(len(slowness)))


def hybrid(
    slowness: Sequence[float], costs: LayerCosts, cap: float = USUAL_CAP, max_pruned: float = 1.0
) -> Shares:
    """SEMI-migration: of the slow ranks the slowest send columns, the others prune theirs.

    For each number of senders the least time; of all the least, then the one that prunes least.
    """
    return _best(slowness, costs, cap, max_pruned, senders=range(len(slowness)))


def _best(
    slowness: Sequence[float], costs: LayerCosts, cap: float, max_pruned: float, senders: Sequence[int]
) -> Shares:
    x = _checked(slowness, costs)
    if not 0 <= cap < 1 or not 0 <= max_pruned <= 1:
        raise BadInputError(f"a cap of {cap:g} and {max_pruned:g} pruned at most: give shares, a cap below 1")
    slowest_first = sorted(range(len(x)), key=lambda rank: -x[rank])
    found = [with_senders(x, costs, frozenset(slowest_first[:count]), cap, max_pruned) for count in senders]
    return min(found, key=lambda shares: (round(shares.layer_s, 12), shares.pruned_share))


def with_senders(
    x: Sequence[float], costs: LayerCosts, senders: frozenset[int], cap: float, max_pruned: float
) -> Shares:
    """The least time in which these ranks send and the others prune, by bisection: more time never needs
    more.
    """
    whole = costs.fixed_s + costs.columns_s
    low, high = min(x) * whole, max(x) * whole
    plan = _plan(x, costs, senders, low)
    if not _allowed(plan, cap, max_pruned):
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if _allowed(_plan(x, costs, senders, middle), cap, max_pruned):
                high = middle
            else:
                low = middle
        plan = _plan(x, costs, senders, high)
    share = sum(plan.sent) / sum(plan.slack) if any(plan.sent) else 0.0
    received = tuple(room * share for room in plan.slack)
    return Shares(plan.target_s, plan.pruned, plan.sent, received, plan.transfer_s)


@dataclass(frozen=True, slots=True)
class _Target:
    """What a target time asks of every rank; shares of an even rank's columns, [n]."""

    target_s: float
    transfer_s: float
    pruned: tuple[float, ...]
    sent: tuple[float, ...]
    slack: tuple[float, ...]


def _plan(x: Sequence[float], costs: LayerCosts, senders: frozenset[int], target_s: float) -> _Target:
    """What ranks do to end in `target_s`; the transfer is that of the columns which this target asks to
    send, and takes its time out of everybody's.
    """
    levels = ceil(log2(len(x)))
    asked = [_surplus(x[rank], costs, target_s) for rank in senders]
    transfer_s = levels * sum(costs.message_s + costs.share_s * share for share in asked if share > 0)
    left_s = target_s - transfer_s
    surplus = [_surplus(slowness, costs, left_s) for slowness in x]
    room = [(left_s / slowness - costs.fixed_s) / costs.columns_s - 1 for slowness in x]
    return _Target(
        target_s,
        transfer_s,
        pruned=tuple(0.0 if rank in senders else share for rank, share in enumerate(surplus)),
        sent=tuple(share if rank in senders else 0.0 for rank, share in enumerate(surplus)),
        slack=tuple(0.0 if rank in senders else max(share, 0.0) for rank, share in enumerate(room)),
    )


def _surplus(slowness: float, costs: LayerCosts, seconds: float) -> float:
    """The share of its columns that a rank cannot compute in so many seconds."""
    share = min(1 - (seconds / slowness - costs.fixed_s) / costs.columns_s, 1.0)
    return share if share > _ROUNDING else 0.0


def _allowed(plan: _Target, cap: float, max_pruned: float) -> bool:
    return (
        max(plan.pruned) <= cap + _ROUNDING
        and sum(plan.pruned) / len(plan.pruned) <= max_pruned + _ROUNDING
        and sum(plan.sent) <= sum(plan.slack) + _ROUNDING
    )


def _checked(slowness: Sequence[float], costs: LayerCosts) -> tuple[float, ...]:
    if not slowness or not all(0 < x < inf for x in slowness):
        raise BadInputError(f"slowness {list(slowness)}: give one number above 0 per rank, 1 = healthy")
    amounts = (costs.fixed_s, costs.message_s, costs.share_s)
    if not costs.columns_s > 0 or min(amounts) < 0:
        raise BadInputError(f"{costs}: give seconds, those of the columns above 0")
    return tuple(slowness)
