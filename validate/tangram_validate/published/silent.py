"""What a run may have done where it is silent: recomputation and ZeRO as weighted variants of one run.

People recompute no more than memory makes them, and predicted memory is uncertain. So a silent run is a
mixture: of those who recompute nothing (whose run then did fit, whatever we predict), of those who take the
lightest kind that fits, and of habits that do not ask memory at all. Unstated ZeRO rises before anything is
recomputed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tangram_sim.training.step.lowered import LoweredStep
from tangram_validate.published.reading import Run

SIGMA = 0.10  # log standard deviation of a predicted peak of software never measured (docs/models/memory.md)
# Shares of users who recompute nothing, against those who adapt to memory: with nothing else to go by, and
# where all runs beside this one, of the same model on the same GPU, need no recomputation.
PLAIN, PLAIN_BESIDE = 0.5, 0.9
SURE = 0.02  # variants less likely than this are left out
TAIL = (-0.67, 0.67)  # quartiles of the normal distribution: where the rest of a ladder is looked up


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a run may have been laid out, as a run that states it, and how likely it is."""

    run: Run
    step: LoweredStep
    weight: float
    name: str


def over(step: LoweredStep) -> float:
    """log(peak bytes / capacity bytes) of the fullest stage; above 0 where it does not fit."""
    return max(
        math.log(step.peak_bytes(stage) / step.capacity_bytes(stage)) for stage in range(len(step.prices))
    )


def plain_share(beside: float) -> float:
    """Probability that a silent run recomputes nothing; `beside`: share of its sweep that fits without."""
    return PLAIN + (PLAIN_BESIDE - PLAIN) * beside


def variants(run: Run, lower: Callable[[Run], LoweredStep], unfused: bool) -> list[Variant]:
    """The variants of a run that states no recomputation, likeliest first.

    `lower` gives the step of a run that states it; `unfused`: attention keeps scores that recomputing drops.
    """
    run = _with_enough_zero(run, lower)
    plain = _stated(run, lower, "none")
    fits = _normal(-over(plain.step) / SIGMA)
    if fits > 1 - SURE and not run.habit_full:
        return [plain]
    share = plain_share(run.beside)
    kept = fits / (share * fits + 1 - share)
    found = [replace(plain, weight=kept)]
    if kept < 1 - SURE:
        found += [
            replace(one, weight=(1 - kept) / len(TAIL))
            for one in _ladder(run, lower, unfused, -over(plain.step))
        ]
    if run.habit_full:
        full = _stated(run, lower, "full")
        found = [replace(one, weight=one.weight * (1 - run.habit_full)) for one in found]
        found.append(replace(full, weight=run.habit_full))
    return _merged(found)


def _with_enough_zero(run: Run, lower: Callable[[Run], LoweredStep]) -> Run:
    """The run at the least ZeRO stage that needs no recomputation, else at the highest it may have."""
    for stage in range(run.layout.zero_stage, run.highest_zero + 1):
        run = replace(run, layout=replace(run.layout, zero_stage=stage))
        if stage < run.highest_zero and over(lower(replace(run, recompute="none"))) <= 0:
            break
    return run


def _stated(
    run: Run, lower: Callable[[Run], LoweredStep], kind: str, layers: int = 0, rest: str = "none"
) -> Variant:
    stated = replace(run, recompute=kind, full_layers=layers, rest=rest)
    name = kind if not layers else f"full x{layers}" if rest == "none" else f"{rest}, full x{layers}"
    return Variant(stated, lower(stated), 1.0, name)


def _ladder(run: Run, lower: Callable[[Run], LoweredStep], unfused: bool, slack: float) -> Sequence[Variant]:
    """The lightest variants that fit where `none` does not: at quartiles of memory's error beyond `slack`."""
    found = []
    for quartile in TAIL:
        error = SIGMA * _beyond(slack / SIGMA, _normal(quartile))
        rest = "none"
        if unfused:
            selective = _stated(run, lower, "selective")
            if over(selective.step) + error <= 0:
                found.append(selective)
                continue
            rest = "selective"
        low, high = 1, -(-run.model.layers // run.layout.pp)
        while low < high:  # every stage recomputes as many layers; the most is taken last, fits or not
            middle = (low + high) // 2
            if over(_stated(run, lower, "full", middle, rest).step) + error <= 0:
                high = middle
            else:
                low = middle + 1
        found.append(_stated(run, lower, "full", high, rest))
    return found


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _beyond(least: float, share: float) -> float:
    """The quantile `share` of a standard normal variable known to exceed `least`, by bisection."""
    below = _normal(least)
    aim, low, high = below + share * (1 - below), least, max(least, 0.0) + 8.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _normal(middle) < aim else (low, middle)
    return low


def _merged(found: Sequence[Variant]) -> list[Variant]:
    """Equal variants once, unlikely ones left out, weights that add up to 1, the likeliest first."""
    by_name: dict[str, Variant] = {}
    for one in found:
        known = by_name.get(one.name)
        by_name[one.name] = one if known is None else replace(known, weight=known.weight + one.weight)
    likely = [one for one in by_name.values() if one.weight >= SURE]
    total = sum(one.weight for one in likely)
    likely = [replace(one, weight=one.weight / total) for one in likely]
    return sorted(likely, key=lambda one: -one.weight)
