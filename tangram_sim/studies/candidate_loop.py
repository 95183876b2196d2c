"""The one loop of what-ifs and purchases of services, shared days and post-training: candidates in turn.

Those of training have loops of their own, which plan many at once (`purchasing/search.py`).

A candidate has a name and a subject: a fleet after a change, a mix of a catalogue, a budget. How it is
planned, what its plan is worth and what is known of it before are its workload's: a `CandidateJudge`.
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
    """What a workload knows of its candidates."""

    @abstractmethod
    def planned(self, subject: Subject, deadline: Deadline) -> Found:
        """The plan of a candidate. Raises InfeasibleError where there is none."""

    def best_of(self, subject: Subject, found: Found, held: Sequence[Found]) -> Found:
        """The plan to show of a candidate, of the one `found` for it and those `held` for others."""
        del subject
        return max((found, *held), key=self.value)

    @abstractmethod
    def value(self, found: Found) -> float:
        """What is made the most of; 0 where a plan is worth nothing."""

    def bound(self, subject: Subject) -> float:
        """A value that no plan of a candidate exceeds."""
        del subject
        return inf

    def includes(self, subject: Subject, other: Subject) -> bool:
        """Whether every plan of another candidate is one of this candidate, too."""
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
    """Every candidate with its plan, in order; each may take an even share of the time that is left.

    The first is planned even if time is over: the others are compared with it. `prunes`: candidates come by
    rising cost, and one whose bound is no more than the best value so far is not planned; nor is the first
    where time is over.
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
    """The items that no other beats (worth as much for less, or more for no more), by rising cost.

    Those worth nothing are left out. `cost` may be any key to sort by; of equal ones the first counts.
    """
    front: list[Item] = []
    for item in sorted(items, key=lambda each: (cost(each), -value(each))):
        if value(item) > (value(front[-1]) if front else 0.0) * (1 + 1e-12):
            front.append(item)
    return front
