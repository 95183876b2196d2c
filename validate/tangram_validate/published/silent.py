"""What a run may have done where it is silent: recomputation and ZeRO as weighted variants of one run.

People recompute no more than memory makes them, and predicted memory is uncertain. So a silent run is a
mixture: of those who recompute nothing (whose run then did fit, whatever we predict), of those who take the
lightest kind that fits, and of habits that do not ask memory at all. Unstated ZeRO rises before anything is
recomputed. Runs of one sweep recompute alike, whatever each would need: what all of them may have done, on
average, is what each did.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tangram_sim.training.step.lowered import LoweredStep
from tangram_validate.published.reading import Habit, Run

SIGMA = 0.10  # log standard deviation of a predicted peak of software never measured (docs/models/memory.md)
PLAIN = 0.5  # share of users who recompute nothing, against those who adapt to memory
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


def habits(runs: Sequence[Sequence[tuple[Run, float]]]) -> tuple[Habit, ...]:
    """What the runs of a sweep may have recomputed, from each one's variants with their weights."""
    weights: dict[tuple[str, str], float] = {}
    shares: dict[tuple[str, str], float] = {}
    for run, weight in (variant for variants in runs for variant in variants):
        kind = run.recompute, run.rest if run.full_layers else "none"
        layers = min(run.full_layers / _per_stage(run), 1.0) if run.full_layers else 1.0
        weights[kind] = weights.get(kind, 0.0) + weight
        shares[kind] = shares.get(kind, 0.0) + weight * layers
    return tuple(
        Habit(*kind, shares[kind] / weight, weight / len(runs))
        for kind, weight in weights.items()
        if weight >= SURE * len(runs)
    )


def _per_stage(run: Run) -> int:
    return -(-run.model.layers // run.layout.pp)


def variants(run: Run, lower: Callable[[Run], LoweredStep], unfused: bool) -> list[Variant]:
    """The variants of a run that states no recomputation, likeliest first.

    `lower` gives the step of a run that states it; `unfused`: attention keeps scores that recomputing drops.
    """
    run = _with_enough_zero(run, lower)
    if run.habits:
        found = [replace(_habitual(run, lower, habit), weight=habit.weight) for habit in run.habits]
        return _merged(found)
    plain = _stated(run, lower, "none")
    fits = _normal(-over(plain.step) / SIGMA)
    if fits > 1 - SURE and not run.habit_full:
        return [plain]
    kept = fits / (PLAIN * fits + 1 - PLAIN)
    found = [replace(plain, weight=kept)]
    if kept < 1 - SURE:
        found += [
            replace(variant, weight=(1 - kept) / len(TAIL))
            for variant in _ladder(run, lower, unfused, -over(plain.step))
        ]
    if run.habit_full:
        full = _stated(run, lower, "full")
        found = [replace(variant, weight=variant.weight * (1 - run.habit_full)) for variant in found]
        found.append(replace(full, weight=run.habit_full))
    return _merged(found)


def _habitual(run: Run, lower: Callable[[Run], LoweredStep], habit: Habit) -> Variant:
    layers = _per_stage(run)
    some = max(round(habit.share * layers), 1)
    if habit.recompute != "full" or some == layers:
        return _stated(run, lower, habit.recompute)
    return _stated(run, lower, "full", some, habit.rest)


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
        low, high = 1, _per_stage(run)
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
    for variant in found:
        known = by_name.get(variant.name)
        by_name[variant.name] = (
            variant if known is None else replace(known, weight=known.weight + variant.weight)
        )
    likely = [variant for variant in by_name.values() if variant.weight >= SURE]
    total = sum(variant.weight for variant in likely)
    likely = [replace(variant, weight=variant.weight / total) for variant in likely]
    return sorted(likely, key=lambda variant: -variant.weight)
