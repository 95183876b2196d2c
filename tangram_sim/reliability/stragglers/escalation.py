"""When to escalate to the next remedy: when the time lost so far has reached its price.

The ski-rental rule, as GREYHOUND uses it (USENIX ATC 2025): without knowing how long a slow phase lasts, and
with two choices, it loses at most twice what the best choice in hindsight loses.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemedyOption:
    """A remedy as escalation sees it: its one-off price, and the share of time still lost with it."""

    name: str
    price_s: float
    loss_rate: float  # seconds lost per second, 0 = none


@dataclass(frozen=True, slots=True)
class Escalation:
    """A remedy, and the seconds after the start of the slow phase at which to apply it."""

    choice: RemedyOption
    after_s: float


def escalate(choices: Sequence[RemedyOption]) -> tuple[Escalation, ...]:
    """Remedies by price, each applied when the time lost so far equals its price.

    The first choice (usually: do nothing) applies from the start. A remedy that would not lose less than the
    current one is skipped; once nothing is lost any more, no further remedy is applied.
    """
    ordered = sorted(choices, key=lambda choice: (choice.price_s, choice.loss_rate))
    if not ordered:
        return ()
    taken = [Escalation(ordered[0], 0.0)]
    lost, now = ordered[0].price_s, 0.0
    for choice in ordered[1:]:
        rate = taken[-1].choice.loss_rate
        if choice.loss_rate >= rate or rate <= 0:
            continue
        now += max(choice.price_s - lost, 0.0) / rate
        lost = max(lost, choice.price_s) + choice.price_s
        taken.append(Escalation(choice, now))
    return tuple(taken)


def lost_s(taken: Sequence[Escalation], phase_s: float) -> float:
    """Seconds lost in a slow phase of `phase_s` with these remedies, their prices included."""
    total = 0.0
    for step, later in zip(taken, [*taken[1:], None], strict=True):
        if step.after_s > phase_s or (step.after_s == phase_s and step is not taken[0]):
            break
        until = phase_s if later is None else min(later.after_s, phase_s)
        total += step.choice.price_s + (until - step.after_s) * step.choice.loss_rate
    return total
