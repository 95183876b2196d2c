"""Loop over the candidates of what-ifs and purchases for serving, shared days and post-training.

Training has its own loops, which plan many candidates at once (`purchasing/search.py`).

A candidate has a name and a subject: a fleet after a change, a mix from a catalogue, a budget. A
`CandidateJudge` of the workload plans it, values the plan and bounds the value beforehand.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar

from tangram_sim.errors import InfeasibleError, OutOfTimeError
from tangram_sim.planners.deadline import Deadline

NO_TIME = "not planned: the time limit was over"
PLANNED, INFEASIBLE, STOPPED, BOUNDED_AWAY = "planned", "infeasible", "stopped", "bounded away"

Item = TypeVar("Item")
Subject = TypeVar("Subject")
Found = TypeVar("Found")


class CandidateJudge(ABC, Generic[Subject, Found]):
    """How one workload plans, values and bounds its candidates."""

    @abstractmethod
    def planned(self, subject: Subject, deadline: Deadline) -> Found:
        """Plan `subject`, a candidate. Raises InfeasibleError where it has no plan."""

    def best_of(self, subject: Subject, found: Found, held: Sequence[Found]) -> Found:
        """The most valuable plan: `found`, or one of those `held` for candidates that this one includes."""
        del subject
        return max((found, *held), key=self.value)

    @abstractmethod
    def value(self, found: Found) -> float:
        """The value to maximise; 0 for a worthless plan."""

    def bound(self, subject: Subject) -> float:
        """Upper bound on the value of all plans of a candidate; infinite by default."""
        del subject
        return inf

    def includes(self, subject: Subject, other: Subject) -> bool:
        """Whether every plan of `other` is also a plan of `subject`."""
        del subject, other
        return False


@dataclass(frozen=True, slots=True)
class Judged(Generic[Subject, Found]):
    """A candidate and its plan; where it has none, `status` and `reason` say why."""

    name: str
    subject: Subject
    found: Found | None = None
    status: str = PLANNED
    reason: str = ""


def judged_in_turn(
    candidates: Sequence[tuple[str, Subject]],
    judge: CandidateJudge[Subject, Found],
    deadline: Deadline,
    *,
    prunes: bool = False,
) -> Iterator[Judged[Subject, Found]]:
    """Yields each candidate with its plan, in order; each gets an even share of the time left.

    The first is planned even after the deadline: the others are compared with it. `prunes`: candidates come
    by rising cost; one whose bound does not exceed the best value so far is not planned, and neither is the
    first after the deadline.
    """
    best, plans = 0.0, list[tuple[Subject, Found]]()
    for number, (name, subject) in enumerate(candidates):
        if (number or prunes) and deadline.over():
            yield Judged(name, subject, status=STOPPED, reason=NO_TIME)
            continue
        if prunes and judge.bound(subject) <= best:
            yield Judged(name, subject, status=BOUNDED_AWAY)
            continue
        share = deadline.share(deadline.left_s() / (len(candidates) - number))
        held = [plan for other, plan in plans if judge.includes(subject, other)]
        try:
            found = judge.best_of(subject, judge.planned(subject, share), held)
        except InfeasibleError as error:
            if not held:
                status = STOPPED if isinstance(error, OutOfTimeError) else INFEASIBLE
                yield Judged(name, subject, status=status, reason=str(error))
                continue
            found = judge.best_of(subject, held[0], held[1:])
        plans.append((subject, found))
        best = max(best, judge.value(found))
        yield Judged(name, subject, found)


def pareto(items: Sequence[Item], value: Callable[[Item], float], cost: Callable[[Item], Any]) -> list[Item]:
    """Pareto front of `items`, by rising cost: each is worth more than every cheaper one.

    Items without value are left out. `cost` may be any sort key; of equal items the first is kept.
    """
    front: list[Item] = []
    for item in sorted(items, key=lambda each: (cost(each), -value(each))):
        if value(item) > (value(front[-1]) if front else 0.0) * (1 + 1e-12):
            front.append(item)
    return front
