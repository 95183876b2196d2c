"""Goodput of one plan: useful share of its time under failure classes and checkpoint tiers, by account.

A base interval holds W of work and the blocking part of the first tier; tier k saves at the end of every
n_k-th interval. The exact formula for one tier (`periods`) is applied with the mean blocking time per
interval; the additional loss of a less frequent tier, (n_k - 1)/2 intervals in the mean, is counted as part
of recovery. The event simulation (`sampling`) has the same rules without this approximation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tangram_sim.errors import InfeasibleError
from tangram_sim.reliability.checkpointing import Checkpointing, CheckpointTier
from tangram_sim.reliability.failures import Takes
from tangram_sim.reliability.periods import Recovery, best_period_s, minimise, useful_share_of

# Names of the accounts of wall time, in the order they are printed.
ACCOUNTS = (
    "useful",
    "slow",
    "checkpoint",
    "lost_work",
    "detection",
    "waiting_for_nodes",
    "restart",
    "migration",
    "degraded",
    "idle_nodes",
)

_REACH = 8.0  # periods are searched for this many times below and above their first-order optimum
_ROUNDS = 4
_SHORTEST_S = 1.0  # of periods to be chosen: checkpoints that cost nothing are still not taken without end


def empty_accounts() -> dict[str, float]:
    """A dict of all accounts of time, at 0.0."""
    return dict.fromkeys(ACCOUNTS, 0.0)


@dataclass(frozen=True, slots=True)
class Struck:
    """A failure class applied to one job: failures per second, downtime and restart, without lost work."""

    name: str
    rate_per_s: float
    takes: Takes
    detect_s: float
    wait_s: float
    start_s: float  # processes, communicators, warm-up; state is loaded besides


@dataclass(frozen=True, slots=True)
class Regime:
    """The failures, checkpoint tiers and checkpoint periods that goodput is computed for.

    `work_s` is W; `multiples` are n_k in the order of `tiers`, the first of them 1.
    """

    struck: tuple[Struck, ...]
    tiers: tuple[CheckpointTier, ...]
    work_s: float
    multiples: tuple[int, ...]

    @property
    def mtbf_s(self) -> float:
        """Mean seconds between failures of any class."""
        rate = sum(failure.rate_per_s for failure in self.struck)
        return 1.0 / rate if rate > 0 else math.inf

    @property
    def losing(self) -> tuple[Struck, ...]:
        """Failure classes that lose state, so that work has to be repeated."""
        return tuple(failure for failure in self.struck if failure.takes != "none")

    @property
    def stalled(self) -> float:
        """Seconds of stalls per second exposed to failures, caused by failures that lose no state."""
        return sum(
            failure.rate_per_s * (failure.detect_s + failure.wait_s)
            for failure in self.struck
            if failure.takes == "none"
        )

    @property
    def block_s(self) -> float:
        """Mean seconds that blocking checkpoints take in one base interval."""
        return sum(tier.block_s / n for tier, n in zip(self.tiers, self.multiples, strict=True))

    @property
    def base_s(self) -> float:
        """Seconds of one base interval: work and blocking checkpoints."""
        return self.work_s + self.block_s

    @property
    def periods_s(self) -> tuple[float, ...]:
        """The period of every tier, checkpoint included."""
        return tuple(n * self.base_s for n in self.multiples)

    def tier_of(self, failure: Struck) -> int:
        """The surviving tier that costs least time to restore from; InfeasibleError if none survives."""
        left = [k for k, tier in enumerate(self.tiers) if tier.survived(failure.takes)]
        if not left:
            raise InfeasibleError(
                f"failures of class {failure.name!r} take a {failure.takes}, and no checkpoint tier survives "
                f"that ({', '.join(f'{t.name}: {t.survives}' for t in self.tiers)}): all is lost; "
                f"add a tier with `survives: {failure.takes}`"
            )
        return min(left, key=lambda k: self.periods_s[k] / 2 + self.tiers[k].save_s + self.tiers[k].load_s)

    def redone_s(self, tier: int) -> float:
        """Mean seconds of work repeated after restoring from `tier`, beyond that within one base interval."""
        farther = (self.multiples[tier] - 1) * self.base_s / 2
        return self.tiers[tier].save_s + farther

    def recoveries(self) -> tuple[Recovery, ...]:
        """Downtime D and recovery R of every class that loses state; R includes the repeated work."""
        total = sum(failure.rate_per_s for failure in self.losing)
        found = []
        for failure in self.losing:
            tier = self.tier_of(failure)
            again = failure.start_s + self.tiers[tier].load_s + self.redone_s(tier)
            found.append(Recovery(failure.rate_per_s / total, failure.detect_s + failure.wait_s, again))
        return tuple(found)

    def between_losses(self) -> tuple[float, float, float]:
        """(useful share without stalls, losses per second of that time, share of it exposed to failures)."""
        if not self.losing:
            return (1.0 - self.block_s / self.base_s if self.base_s < math.inf else 1.0), 0.0, 1.0
        mtbf_s = 1.0 / sum(failure.rate_per_s for failure in self.losing)
        recoveries = self.recoveries()
        down = sum(r.share * r.downtime_s for r in recoveries)
        share = useful_share_of(mtbf_s, self.base_s, self.block_s, recoveries)
        return share, 1.0 / (mtbf_s + down), mtbf_s / (mtbf_s + down)

    def share(self) -> float:
        """Share of wall time that is useful work, stalls included."""
        share, _, open_to_failures = self.between_losses()
        return share / (1.0 + open_to_failures * self.stalled)


def regime_of(struck: Sequence[Struck], checkpointing: Checkpointing) -> Regime:
    """The regime with the largest useful share: stated periods are kept, periods of nan are chosen.

    Tiers are sorted by period; a tier whose period is to be chosen is dropped where the useful share is
    larger without it. Raises InfeasibleError where no tier survives some failure.
    """
    struck = tuple(failure for failure in struck if failure.rate_per_s > 0)
    tiers = checkpointing.tiers
    if not struck:
        kept = tuple(tier for tier in tiers if not math.isnan(tier.period_s))
        return (
            _regime(struck, kept, [tier.period_s for tier in kept]) if kept else Regime((), (), math.inf, ())
        )
    free = [tier for tier in tiers if math.isnan(tier.period_s)]
    found: list[Regime] = []
    for size in range(len(free), -1, -1):
        for some in combinations(free, size):
            chosen = tuple(tier for tier in tiers if tier in some or tier not in free)
            if chosen and all(any(t.survived(f.takes) for t in chosen) for f in struck):
                found.append(_with_best_periods(struck, chosen))
    if not found:
        Regime(struck, tiers, 0.0, (1,) * len(tiers)).recoveries()  # raises: says which failure, what to add
    return max(found, key=Regime.share)


def _with_best_periods(struck: tuple[Struck, ...], tiers: tuple[CheckpointTier, ...]) -> Regime:
    """The regime that uses all `tiers`, with free periods optimised in turn from a first-order start."""
    served = [0.0] * len(tiers)
    for failure in struck:
        left = [k for k, tier in enumerate(tiers) if tier.survived(failure.takes)]
        served[min(left, key=lambda k: tiers[k].save_s + tiers[k].load_s + tiers[k].block_s)] += (
            failure.rate_per_s
        )
    total = sum(failure.rate_per_s for failure in struck)
    periods, bounds = [], []
    for tier, rate in zip(tiers, served, strict=True):
        least = max(tier.save_s, tier.block_s * (1 + 1e-9), _SHORTEST_S)
        start = max(best_period_s(1.0 / (rate or total * 1e-3), tier.block_s), least)
        periods.append(tier.period_s if not math.isnan(tier.period_s) else start)
        bounds.append((max(least, start / _REACH), start * _REACH))
    free = [k for k, tier in enumerate(tiers) if math.isnan(tier.period_s)]
    for _ in range(_ROUNDS if len(tiers) > 1 else 0):
        for k in free:

            def cost(period_s: float, k: int = k) -> float:
                return -_regime(
                    struck, tiers, [*periods[:k], period_s, *periods[k + 1 :]], rounded=False
                ).share()

            periods[k] = minimise(cost, *bounds[k], 1e-4)
    return _regime(struck, tiers, periods)


def _regime(
    struck: tuple[Struck, ...],
    tiers: tuple[CheckpointTier, ...],
    periods: Sequence[float],
    *,
    rounded: bool = True,
) -> Regime:
    """The regime with these periods, seconds; `rounded`: each a whole multiple of the next shorter one."""
    order = sorted(range(len(tiers)), key=lambda k: periods[k])
    tiers, periods = tuple(tiers[k] for k in order), [periods[k] for k in order]
    multiples: list[float] = [1]
    for period in periods[1:]:
        ratio = max(1.0, period / periods[0]) if periods[0] > 0 else 1.0
        if rounded:
            ratio = max(1, round(ratio / multiples[-1])) * multiples[-1]
        multiples.append(ratio)
    block = sum(tier.block_s / n for tier, n in zip(tiers, multiples, strict=True))
    return Regime(struck, tiers, max(periods[0] - block, 0.0), tuple(multiples))  # type: ignore[arg-type]


def accounts_of(regime: Regime) -> dict[str, float]:
    """Shares of wall time by account; they sum to 1.

    In a base interval that takes E with its losses, N = E/(mu + D) failures occur (none during D); each is
    followed by its D and by a recovery that completes or is interrupted, (1 - e^(-R/mu)) mu in the mean.
    Stalls are added to the time that is exposed to failures.
    """
    found = empty_accounts()
    share, losses_per_s, open_to_failures = regime.between_losses()
    if regime.losing:
        mtbf_s = 1.0 / sum(failure.rate_per_s for failure in regime.losing)
        for failure, recovery in zip(regime.losing, regime.recoveries(), strict=True):
            count = losses_per_s * recovery.share
            found["detection"] += count * failure.detect_s
            found["waiting_for_nodes"] += count * failure.wait_s
            if recovery.recovery_s > 0:
                fixed = failure.start_s + regime.tiers[regime.tier_of(failure)].load_s
                spent = -math.expm1(-recovery.recovery_s / mtbf_s) * mtbf_s
                found["restart"] += count * spent * fixed / recovery.recovery_s
    found["useful"] = share
    if 0 < regime.work_s < math.inf:
        found["checkpoint"] = share * regime.block_s / regime.work_s
    found["lost_work"] = max(0.0, 1.0 - sum(found.values()))
    stretched = 1.0 + open_to_failures * regime.stalled
    found = {name: part / stretched for name, part in found.items()}
    for failure in regime.struck:
        if failure.takes == "none":
            found["detection"] += open_to_failures * failure.rate_per_s * failure.detect_s / stretched
            found["waiting_for_nodes"] += open_to_failures * failure.rate_per_s * failure.wait_s / stretched
    return found


@dataclass(frozen=True, slots=True)
class MarginalGain:
    """Useful share gained by reducing one constant (of `seconds`) by one second."""

    constant: str
    seconds: float
    gain: float


def worth_of(regime: Regime, share: Callable[[Regime], float] = Regime.share) -> tuple[MarginalGain, ...]:
    """Marginal gain of one second less of every nonzero constant, largest first; periods stay as they are.

    `share` computes the useful share of a regime under the recovery policy in question.
    """
    base = share(regime)
    found = []

    def tried(name: str, seconds: float, other: Regime) -> None:
        if seconds > 0:
            found.append(MarginalGain(name, seconds, (share(other) - base) / min(1.0, seconds)))

    for part, name in (("detect_s", "detection"), ("wait_s", "waiting for nodes"), ("start_s", "start")):
        seconds = max((getattr(failure, part) for failure in regime.struck), default=0.0)
        less = tuple(
            replace(failure, **{part: max(0.0, getattr(failure, part) - 1.0)}) for failure in regime.struck
        )
        tried(name, seconds, replace(regime, struck=less))
    for k, tier in enumerate(regime.tiers):
        for part, name in (("block_s", "blocking"), ("save_s", "saving"), ("load_s", "loading")):
            seconds = getattr(tier, part)
            shorter = replace(tier, **{part: max(0.0, seconds - 1.0)})
            tiers = (*regime.tiers[:k], shorter, *regime.tiers[k + 1 :])
            tried(f"{name}, {tier.name}", seconds, replace(regime, tiers=tiers))
    return tuple(sorted(found, key=lambda worth: -worth.gain))
