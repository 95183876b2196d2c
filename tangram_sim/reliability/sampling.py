"""Event simulation of a checkpointing regime: sampled failures, one after another, with standard errors."""

import math
from dataclasses import dataclass

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.reliability.goodput import Regime

_FEWEST_WINDOWS = 20
_MOST_WINDOWS = 1_000_000


@dataclass(frozen=True, slots=True)
class SampledShare:
    """Useful share under sampled failures, and its spread over windows of time."""

    useful_share: float
    standard_error: float
    low: float  # 5 and 95 % of windows
    high: float
    failures: int
    windows: int
    window_s: float


def sample_share(regime: Regime, failures: int, window_s: float, seed: int = 0) -> SampledShare:
    """Simulate `failures` failures of a regime; useful share over all and over windows of `window_s`.

    Windows are shortened where fewer than 20 would fit. Raises BadInputError for fewer than 100 failures, a
    negative seed, and more than a million windows.
    """
    if failures < 100:
        raise BadInputError(f"`sample={failures}`: give 100 failures or more, e.g. 10000")
    if seed < 0:
        raise BadInputError(f"`seed={seed}`: give a whole number, zero or more")
    if not regime.struck:
        share = regime.share()
        return SampledShare(
            share, standard_error=0.0, low=share, high=share, failures=0, windows=0, window_s=window_s
        )
    times, work = history(regime, failures, seed)
    span = times[-1]
    windows = max(_FEWEST_WINDOWS, int(span // window_s))
    if windows > _MOST_WINDOWS:
        raise BadInputError(
            f"`sample={failures}`: {span:.3g} s of history hold {windows:.3g} windows of {window_s:.3g} s; "
            f"{_MOST_WINDOWS:,} at most are looked at: longer `days=`, fewer failures, or shorter repairs"
        )
    edges = np.linspace(0.0, span, windows + 1)
    done = np.interp(edges, times, work)
    shares = np.diff(done) / np.diff(edges)
    low, high = np.quantile(shares, (0.05, 0.95))
    error = float(shares.std(ddof=1)) / math.sqrt(windows)
    return SampledShare(
        useful_share=float(done[-1] / span),
        standard_error=error,
        low=float(low),
        high=float(high),
        failures=failures,
        windows=windows,
        window_s=float(span / windows),
    )


def history(regime: Regime, failures: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(wall seconds, useful seconds kept) after each sampled failure, both starting at 0.

    After a restore, the restored state counts as a snapshot of every tier, and newer snapshots are discarded.
    """
    draw = np.random.default_rng(seed)
    rates = np.array([failure.rate_per_s for failure in regime.struck])
    gaps = draw.exponential(regime.mtbf_s, failures + 1).tolist()
    kinds = draw.choice(len(rates), failures, p=rates / rates.sum()).tolist()
    tier_of = [regime.tier_of(f) if f.takes != "none" else -1 for f in regime.struck]
    down = [f.detect_s + f.wait_s for f in regime.struck]
    start = [
        0.0 if tier < 0 else f.start_s + regime.tiers[tier].load_s
        for f, tier in zip(regime.struck, tier_of, strict=True)
    ]
    saves = [tier.save_s for tier in regime.tiers]
    rhythm = _Rhythm(regime)
    clock, index, behind, recovery = 0.0, 0, 0.0, 0.0  # behind: running time into the interval (stalls)
    times, kept = [0.0], [0.0]
    for gap, kind in zip(gaps[:-1], kinds, strict=True):
        running = gap - recovery + behind
        tier = tier_of[kind]
        if gap < recovery:  # struck while recovering: the state is still the one being restored
            running = behind
        clock += gap + down[kind]
        if tier < 0:  # a stall: nothing is lost, the same interval goes on
            behind, recovery = running, max(0.0, recovery - gap)
            times.append(clock)
            kept.append((index + rhythm.completed(index, running)) * regime.work_s)
            continue
        index = rhythm.durable(index, running, tier, saves[tier])
        behind, recovery = 0.0, start[kind]
        times.append(clock)
        kept.append(index * regime.work_s)
    return np.array(times), np.array(kept)


class _Rhythm:
    """Times at which base intervals end, all tiers' checkpoints included, from the end of any interval."""

    def __init__(self, regime: Regime) -> None:
        self.multiples = regime.multiples
        self.cycle = regime.multiples[-1]
        self.blocks = [tier.block_s for tier in regime.tiers]
        self.work_s = regime.work_s
        self.cycle_s = self.cycle * regime.base_s

    def _length_s(self, index: int) -> float:
        """Seconds of interval number `index` (from 1): its work and the tiers that save at its end."""
        return self.work_s + sum(
            block for block, n in zip(self.blocks, self.multiples, strict=True) if index % n == 0
        )

    def _ends(self, index: int, running_s: float) -> tuple[int, float]:
        """(intervals completed, seconds they took) in `running_s` from the end of interval `index`."""
        if self.cycle_s <= 0:
            return 0, 0.0
        cycles = int(running_s // self.cycle_s)
        done, spent = cycles * self.cycle, cycles * self.cycle_s
        if self.cycle == 1:
            return done, spent
        while True:
            length = self._length_s(index + done + 1)
            if spent + length > running_s:
                return done, spent
            done, spent = done + 1, spent + length

    def completed(self, index: int, running_s: float) -> int:
        """Base intervals completed in `running_s` from the end of interval `index`."""
        return self._ends(index, running_s)[0]

    def durable(self, index: int, running_s: float, tier: int, save_s: float) -> int:
        """Index of the newest snapshot of `tier` restorable `running_s` after the end of interval `index`."""
        n = self.multiples[tier]
        if running_s <= save_s:
            return index // n * n
        done, _ = self._ends(index, running_s - save_s)
        newest = (index + done) // n * n
        return newest if newest > index else index // n * n
