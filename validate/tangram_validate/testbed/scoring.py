"""How good predictions were: error, bias, ranking, regret. Pure functions over (predicted, measured)."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Score:
    """How good the predictions of n plans were; errors are fractions of what was measured."""

    n: int
    median_ape: float
    worst_ape: float
    bias: float  # median signed error
    kendall_tau: float  # mean over groups of plans for one job; pairs within their spread are ties
    kendall_tau_strict: float  # the same with every difference counted, however small
    top1_regret: float  # the predicted best against the measured best, the mean over groups
    null_median_ape: float  # of "all work of the busiest rank, one thing after another"
    waiting_share: float  # plans with 30 % or more of the step in bubbles and exposed communication


def kendall_tau(
    predicted: Sequence[float], measured: Sequence[float], spreads: Sequence[float] = ()
) -> float:
    """Kendall's tau-b (Kendall, Biometrika 1945): agreement of two rankings, ties taken out.

    With `spreads` (seconds from the shortest to the longest run of each plan) two values that differ by no
    more than the larger spread of their pair are a tie, in both rankings alike: runs that scatter that much
    have not ordered such a pair (1F1B and GPipe over equal stages take equally long by construction).
    """

    def sign(difference: float, i: int, j: int) -> int:
        if abs(difference) <= (max(spreads[i], spreads[j]) if spreads else 0.0):
            return 0
        return 1 if difference > 0 else -1

    return _tau_b(
        len(predicted),
        lambda i, j: sign(predicted[i] - predicted[j], i, j),
        lambda i, j: sign(measured[i] - measured[j], i, j),
    )


def _tau_b(count: int, first: Callable[[int, int], int], second: Callable[[int, int], int]) -> float:
    agree = clash = ties_p = ties_m = 0
    for i in range(count):
        for j in range(i):
            p, m = first(i, j), second(i, j)
            agree += p * m > 0
            clash += p * m < 0
            ties_p += p == 0 and m != 0
            ties_m += m == 0 and p != 0
    total = ((agree + clash + ties_p) * (agree + clash + ties_m)) ** 0.5
    return (agree - clash) / total if total else 0.0


def regret(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """How much slower the plan predicted best is than the one measured best."""
    chosen = min(range(len(predicted)), key=lambda index: predicted[index])
    return measured[chosen] / min(measured) - 1


@dataclass(frozen=True, slots=True)
class Point:
    """One plan to score: its group of rivals; seconds predicted, measured and null; share spent waiting."""

    group: str
    predicted_s: float
    measured_s: float
    null_s: float
    waiting: float
    spread_s: float = 0.0  # the longest of its runs less the shortest


def score(points: Iterable[Point]) -> Score:
    """Everything over some plans (one at least)."""
    every = list(points)
    signed = [point.predicted_s / point.measured_s - 1 for point in every]
    groups: dict[str, list[Point]] = {}
    for point in every:
        groups.setdefault(point.group, []).append(point)
    ranked = [
        ([p.predicted_s for p in members], [p.measured_s for p in members], [p.spread_s for p in members])
        for members in groups.values()
        if len(members) > 1
    ]
    return Score(
        n=len(every),
        median_ape=statistics.median(map(abs, signed)),
        worst_ape=max(map(abs, signed)),
        bias=statistics.median(signed),
        kendall_tau=statistics.mean(kendall_tau(*columns) for columns in ranked) if ranked else 0.0,
        kendall_tau_strict=statistics.mean(kendall_tau(p, m) for p, m, _ in ranked) if ranked else 0.0,
        top1_regret=statistics.mean(regret(p, m) for p, m, _ in ranked) if ranked else 0.0,
        null_median_ape=statistics.median(abs(p.null_s / p.measured_s - 1) for p in every),
        waiting_share=sum(point.waiting >= 0.3 for point in every) / len(every),
    )


def score_document(found: Score) -> dict[str, Any]:
    """A score as a JSON object."""
    return asdict(found)
