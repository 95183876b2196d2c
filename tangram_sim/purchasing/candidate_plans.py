"""Plans for all candidates of a what-if: the fleet first, as its plan is valid for every candidate."""

from collections.abc import Sequence
from dataclasses import dataclass

from tangram_sim.findings import Severity, declare
from tangram_sim.hwdb import Hwdb, ReadSet
from tangram_sim.models import Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing.cases import Case, PlanOutcome, outcome, overlays_of, simulate_case
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.purchasing.known import known_on
from tangram_sim.studies import api
from tangram_sim.studies.cautions import cautions
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.forecast import document, forecast
from tangram_sim.studies.sweep import Sweep
from tangram_sim.studies.training_power import PowerTerms
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan

PLAN_OF_SMALLER_FLEET = declare("plan-of-smaller-fleet", Severity.NOTE, "the {whose}: {why}")


@dataclass
class CandidatePlans:
    """Plans fleets by name. The first `standing` buy nothing; the last of these is in every candidate."""

    model: Model
    job: Job
    candidates: Sequence[tuple[str, Fleet]]
    standing: int
    hwdb: Hwdb
    sweep: Sweep
    power: PowerTerms | None = None  # the limits that candidates are planned under

    def planned(self, wishes: SearchOptions, deadline: Deadline) -> dict[int, PlanOutcome]:
        """Outcomes of all candidates by number, each planned in an even share of the time left.

        Searches start from the plan of the fleet that all candidates contain. A candidate not reached before
        the `deadline` has no outcome, except that fleet: it gets the plan found when a search runs out of
        time.
        """
        found: dict[int, PlanOutcome] = {}
        last, every = self.standing - 1, range(len(self.candidates))
        for some in (every[: self.standing], every[self.standing :]):
            if not some:
                continue
            share = deadline.share(deadline.left_s() * len(some) / (len(every) - len(found)))
            own = found[last].document if last in found else None
            cases = [self._case(number, wishes, own) for number in some]
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

    def floor(self, number: int, found: PlanDocument, why: str) -> PlanOutcome:
        """The fleet's plan `found` as a candidate's, whose other nodes idle; `why` states the reason."""
        plan = self._moved(number, found)
        reads = ReadSet()
        own = self.hwdb.read_into(reads)
        played = forecast(plan, own)
        findings = [*cautions(played), PLAN_OF_SMALLER_FLEET(whose="fleet's own plan", why=why)]
        return PlanOutcome(document(played, own, reads, api.quick_bound(plan, own), findings))

    def _moved(self, number: int, found: PlanDocument) -> Plan:
        """The fleet's plan transferred to a candidate's cluster, whose first groups are the fleet's."""
        small, large = (self.candidates[item][1].cluster for item in (self.standing - 1, number))
        return known_on(found, small, large, {place: place for place in range(len(small.groups))}, self.hwdb)

    def _case(self, number: int, wishes: SearchOptions, own: PlanDocument | None) -> Case:
        known = (self._moved(number, own),) if own else ()
        cluster = self.candidates[number][1].cluster
        return Case(self.model, cluster, self.job, wishes, overlays_of(self.hwdb), known, power=self.power)
