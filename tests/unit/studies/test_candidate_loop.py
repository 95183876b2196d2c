"""The loop of what-ifs and purchases: nothing included is lost, pruning loses no front, time ends it."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.errors import InfeasibleError, OutOfTimeError
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies.candidate_loop import (
    BOUNDED_AWAY,
    INFEASIBLE,
    STOPPED,
    CandidateJudge,
    judged_in_turn,
    pareto,
)

Fleet = tuple[int, int]  # nodes of two kinds
FLEETS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8)
LUCK = st.lists(st.integers(1, 4), min_size=8, max_size=8)


@dataclass
class Lottery(CandidateJudge[Fleet, float]):
    """A search that finds a quarter to all of what a fleet can do; of an empty fleet it finds nothing."""

    luck: list[int]
    looked_at: list[Fleet] = field(default_factory=list)

    def planned(self, subject: Fleet, deadline: Deadline) -> float:
        self.looked_at.append(subject)
        if not any(subject):
            raise InfeasibleError("there are no GPUs")
        return self.bound(subject) * self.luck[len(self.looked_at) - 1] / 4

    def value(self, found: float) -> float:
        return found

    def bound(self, subject: Fleet) -> float:
        return subject[0] + 3.0 * subject[1]

    def includes(self, subject: Fleet, other: Fleet) -> bool:
        return subject[0] >= other[0] and subject[1] >= other[1]


def _named(fleets: list[Fleet]) -> list[tuple[str, Fleet]]:
    return [(f"{a}+{b}", (a, b)) for a, b in fleets]


class Slow(Lottery):
    """A search whose time is over before it finds anything."""

    def planned(self, subject: Fleet, deadline: Deadline) -> float:
        raise OutOfTimeError("the time limit was over")


def test_a_candidate_whose_time_was_over_is_stopped_not_infeasible() -> None:
    judged = list(judged_in_turn(_named([(1, 0), (2, 0)]), Slow([1]), Deadline()))
    assert [item.status for item in judged] == [STOPPED] * 2 and judged[0].reason == "the time limit was over"


@given(FLEETS, LUCK)
def test_a_fleet_that_includes_another_is_worth_no_less(fleets: list[Fleet], luck: list[int]) -> None:
    judge = Lottery(luck)
    judged = list(judged_in_turn(_named(fleets), judge, Deadline()))
    assert judge.looked_at == fleets == [item.subject for item in judged]
    for number, item in enumerate(judged):
        assert (item.status == INFEASIBLE) == (not any(item.subject)) == (item.found is None)
        for earlier in judged[:number]:
            if judge.includes(item.subject, earlier.subject):
                assert (item.found or 0.0) >= (earlier.found or 0.0)


@given(FLEETS, LUCK)
def test_what_is_pruned_could_not_have_reached_the_front(fleets: list[Fleet], luck: list[int]) -> None:
    best, judge = 0.0, Lottery(luck)
    for item in judged_in_turn(_named(fleets), judge, Deadline(), prunes=True):
        assert (item.status == BOUNDED_AWAY) == (judge.bound(item.subject) <= best)
        best = max(best, item.found or 0.0)


def test_without_time_only_the_first_is_planned_and_of_a_purchase_none() -> None:
    fleets = _named([(1, 0), (2, 0), (2, 1)])
    late = list(judged_in_turn(fleets, Lottery([4] * 3), Deadline(0.0)))
    assert [item.status for item in late] == ["planned", STOPPED, STOPPED]
    none = judged_in_turn(fleets, Lottery([4] * 3), Deadline(0.0), prunes=True)
    assert {item.status for item in none} == {STOPPED}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_a_front_holds_what_no_other_beats_and_nothing_else(items: list[tuple[int, int]]) -> None:
    """An item is (worth, cost); beaten: another is worth as much for less, or more for no more."""

    def beaten(item: tuple[int, int]) -> bool:
        worth, cost = item
        return any((w >= worth and c < cost) or (w > worth and c <= cost) for w, c in items)

    front = pareto(items, lambda item: float(item[0]), lambda item: item[1])
    assert front == sorted({item for item in items if item[0] and not beaten(item)}, key=lambda item: item[1])
