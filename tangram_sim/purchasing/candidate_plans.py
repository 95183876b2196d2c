"""Plans of all candidates of a what-if: the fleet first, whose plan is one of every candidate's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tangram_sim.findings import Severity, declare
from tangram_sim.hwdb import Hwdb, ReadSet
from tangram_sim.models import Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing.cases import Case, PlanOutcome, outcome, overlays_of, simulate_case
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.purchasing.known import groups_within, known_on
from tangram_sim.studies import api
from tangram_sim.studies.cautions import cautions
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.forecast import document, forecast
from tangram_sim.studies.sweep import Sweep
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan

PLAN_OF_SMALLER_FLEET = declare("plan-of-smaller-fleet", Severity.NOTE, "the {whose}: {why}")


@dataclass
class CandidatePlans:
    """Fleets by name, of which the first `standing` buy nothing; the last of these is in every candidate."""

    model: Model
    job: Job
    candidates: Sequence[tuple[str, Fleet]]
    standing: int
    hwdb: Hwdb
    sweep: Sweep

    def planned(self, wishes: SearchOptions, deadline: Deadline) -> dict[int, PlanOutcome]:
        """Outcomes of all candidates, each with an even share of the time that is left.

        Searches start from the plan of the fleet that all contain.
        A candidate whose turn did not come before the `deadline` has none, but for that fleet: it has the
        plan that is found when a search is out of time.
        """
        found: dict[int, PlanOutcome] = {}
        last, every = self.standing - 1, range(len(self.candidates))
        for some in (every[: self.standing], every[self.standing :]):
            if not some:
                continue
            share = deadline.share(deadline.left_s() * len(some) / (len(every) - len(found)))
            own = found[last].document if last in found else None
            cases = [self._case(number, wishes, {last: own} if own else {}) for number in some]
            keys = [case.key(self.hwdb) for case in cases]
            answers = self.sweep.run(
                simulate_case, cases, keys, "candidate", before=some.start, of=len(every), deadline=share
            )
            found |= {
                number: outcome(answer)
                for number, answer in zip(some, answers, strict=True)
                if answer is not None
            }
            if last in some and last not in found:
                found[last] = outcome(simulate_case(cases[some.index(last)], share))
        return found

    def fastest_inside(self, number: int, told: Mapping[int, PlanDocument]) -> int | None:
        """Which of the other candidates with a plan in `told` that candidate `number` contains is fastest."""
        inside = [item for item in told if item != number and self._groups(item, number) is not None]
        return min(inside, key=lambda item: (told[item].step_s, item), default=None)

    def floor(self, number: int, inside: int, found: PlanDocument, why: str) -> PlanOutcome:
        """The plan `found` for candidate `inside` as that of a larger one, whose other nodes idle.

        `why` says what became of the larger one's own plans.
        """
        plan = self._moved(inside, number, found)
        reads = ReadSet()
        own = self.hwdb.read_into(reads)
        played = forecast(plan, own)
        bound_s = api.quick_bound(plan, own)
        whose = "fleet's own plan" if inside < self.standing else f"plan of {self.candidates[inside][0]}"
        findings = [*cautions(played), PLAN_OF_SMALLER_FLEET(whose=whose, why=why)]
        return PlanOutcome(document(played, own, reads, bound_s, findings))

    def _groups(self, inside: int, number: int) -> dict[int, int] | None:
        """Where candidate `number` has the groups of candidate `inside`; None where it does not."""
        if inside < self.standing <= number and inside < self.standing - 1:
            return None  # what is retired is in no candidate that buys
        return groups_within(self.candidates[inside][1].cluster, self.candidates[number][1].cluster)

    def _moved(self, inside: int, number: int, found: PlanDocument) -> Plan:
        """A plan of a candidate that is `inside` candidate `number` on that one's cluster."""
        groups = self._groups(inside, number)
        assert groups is not None
        small, large = (self.candidates[item][1].cluster for item in (inside, number))
        return known_on(found, small, large, groups, self.hwdb)

    def _case(self, number: int, wishes: SearchOptions, told: Mapping[int, PlanDocument]) -> Case:
        cluster = self.candidates[number][1].cluster
        moved = tuple(self._moved(item, number, told[item]) for item in told)
        return Case(self.model, cluster, self.job, wishes, overlays_of(self.hwdb), moved)


def is_slower(plan: PlanDocument, other: PlanDocument) -> bool:
    """Whether a plan's step is longer than another's, by more than rounding."""
    return plan.step_s > other.step_s * (1 + 1e-9)
