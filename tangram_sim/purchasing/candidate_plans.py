"""Plans of all candidates of a what-if: the fleet first, whose plan is one of every candidate's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan


@dataclass
class CandidatePlans:
    """Fleets by name, of which the first `standing` buy nothing; the last of these is in every candidate.

    `most` is how many plans are to be made in all, for the progress; `made` counts those that were.
    """

    model: Model
    job: Job
    candidates: Sequence[tuple[str, Fleet]]
    standing: int
    hwdb: Hwdb
    sweep: Sweep
    most: int
    made: int = field(default=0, init=False)

    def planned(
        self,
        chosen: Sequence[int],
        wishes: SearchOptions,
        deadline: Deadline,
        before: Mapping[int, PlanDocument],
    ) -> dict[int, PlanOutcome]:
        """Outcomes of the candidates `chosen`, each with an even share of the time that is left.

        Searches start from the candidate's plan in `before`, and from that of the fleet that all contain.
        A candidate whose turn did not come before the `deadline` has none, but for that fleet: where nothing
        is known of it, it has the plan that is found when a search is out of time.
        """
        found: dict[int, PlanOutcome] = {}
        if deadline.over() and self.standing - 1 in before:
            return found
        bare = [number for number in chosen if number < self.standing]
        bought = [number for number in chosen if number >= self.standing]
        for some, left in ((bare, len(chosen)), (bought, len(bought))):
            if not some:
                continue
            share = deadline.share(deadline.left_s() * len(some) / left)
            own = found.get(self.standing - 1)
            standing = own.document if own else before.get(self.standing - 1)
            cases = [self._case(number, wishes, before.get(number), standing) for number in some]
            keys = [case.key(self.hwdb) for case in cases]
            answers = self.sweep.run(
                simulate_case, cases, keys, "candidate", before=self.made, of=self.most, deadline=share
            )
            self.made += len(some)
            found |= {
                number: outcome(answer)
                for number, answer in zip(some, answers, strict=True)
                if answer is not None
            }
            last = self.standing - 1
            if last in some and last not in found and last not in before:
                found[last] = outcome(simulate_case(cases[some.index(last)], share))
        return found

    def floor(self, number: int, standing: PlanDocument, why: str) -> PlanOutcome:
        """A `standing` plan of the fleet that all contain as that of a candidate, whose other nodes idle.

        `why` says what became of the candidate's own plans.
        """
        plan = self._moved(self.standing - 1, number, standing)
        reads = ReadSet()
        own = self.hwdb.read_into(reads)
        played = forecast(plan, own)
        bound_s = api.quick_bound(plan, own)
        notes = [*cautions(played), f"the fleet's own plan: {why}"]
        return PlanOutcome(document(played, own, reads, bound_s, notes))

    def _moved(self, inside: int, number: int, found: PlanDocument) -> Plan:
        """A plan of a candidate that is `inside` candidate `number` on that one's cluster."""
        small, cluster = (self.candidates[one][1].cluster for one in (inside, number))
        groups = {group: group for group in range(len(cluster.groups))}
        return known_on(found, small, cluster, groups, self.hwdb)

    def _case(
        self, number: int, wishes: SearchOptions, own: PlanDocument | None, standing: PlanDocument | None
    ) -> Case:
        cluster = self.candidates[number][1].cluster
        told = [(number, own)] if own else []
        if standing and number >= self.standing:
            told.append((self.standing - 1, standing))
        known = tuple(self._moved(inside, number, one) for inside, one in told)
        return Case(self.model, cluster, self.job, wishes, overlays_of(self.hwdb), known)
