"""One case to plan and simulate (model, cluster, job, search options), and its answer."""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from tangram_sim.clusters import Cluster
from tangram_sim.digests import content_key
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, cluster_to_dict
from tangram_sim.hwdb.model_section import model_to_dict
from tangram_sim.models import Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.search_memory import SearchMemory
from tangram_sim.studies import api
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.power_choice import plan_under_power
from tangram_sim.studies.results import Result
from tangram_sim.studies.sweep import STOPPED, Answer
from tangram_sim.studies.training_power import PowerTerms
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan


@dataclass(frozen=True)
class Case:
    """One case to plan; `overlays` are the user's folders of hardware rows.

    The search starts from the plans in `known`, found for smaller fleets, so its answer is no slower.
    `power`: limits on power for the plan, as far as they concern its GPU kinds.
    """

    model: Model
    cluster: Cluster
    job: Job
    wishes: SearchOptions
    overlays: tuple[Path, ...]
    known: tuple[Plan, ...] = ()
    power: PowerTerms | None = None

    def key(self, hwdb: Hwdb) -> str:
        """A hash of everything that the answer depends on; the number of processes is not part of it."""
        wishes = asdict(self.wishes)
        wishes["time_limit_s"] = str(wishes["time_limit_s"])  # may be infinite, which JSON cannot say
        del wishes["jobs"]
        return content_key(
            {
                "study": "plan",
                "model": model_to_dict(self.model),
                "cluster": cluster_to_dict(self.cluster),
                "job": asdict(self.job),
                "wishes": wishes,
                "hwdb": hwdb_digest(hwdb),
                "known": [repr(plan.pipelines) for plan in self.known],
                "power": repr(self.power),
            }
        )


@dataclass(frozen=True)
class PlanOutcome:
    """The plan found, or the reason why none was; `cut_short`: the search ran out of time."""

    document: PlanDocument | None
    reason: str = ""
    cut_short: bool = False


@lru_cache(maxsize=1)
def _memory() -> SearchMemory:
    """Search memory of this process, shared by its candidates, as they have most islands in common."""
    return SearchMemory()


@lru_cache(maxsize=8)
def _database(overlays: tuple[Path, ...]) -> Hwdb:
    return Hwdb.load(overlays)


@lru_cache(maxsize=8)
def hwdb_digest(hwdb: Hwdb) -> str:
    """A hash of all hardware tables (they never change once loaded, so it is computed once)."""
    return hwdb.digest_of_tables()


def forget() -> None:
    """Drop loaded tables and computed costs, after hardware data in a folder has changed."""
    _database.cache_clear()
    _memory.cache_clear()


def overlays_of(hwdb: Hwdb) -> tuple[Path, ...]:
    """The user's folders that the hardware tables were read from, besides the shipped ones."""
    return tuple(path.absolute() for path in hwdb.folders[1:])


def simulate_case(case: Case, deadline: Deadline) -> Answer:
    """Plan and simulate one case, in any process; the answer may say that there is no plan."""
    hwdb = _database(case.overlays)

    def planned(cluster: Cluster) -> Result:
        return api.plan(
            case.model,
            cluster,
            case.job,
            wishes=replace(case.wishes, only_shown=True),
            hwdb=hwdb,
            deadline=deadline,
            known=[replace(plan, cluster=cluster) for plan in case.known],
        )

    try:
        with _memory().in_use():
            if case.power is None:
                found = planned(case.cluster)
            else:
                found = plan_under_power(case.cluster, case.power.on(case.cluster), hwdb, planned)
    except InfeasibleError as error:
        answer: Answer = {"infeasible": str(error)}
    else:
        dumped = found.document.model_dump(mode="json", exclude={"planning_s", "planning_cpu_s"})
        answer = {"document": dumped}
    return answer | {STOPPED: True} if deadline.stopped else answer


def outcome(answer: Answer) -> PlanOutcome:
    """The plan, or the reason for none, in an answer of `simulate_case`."""
    cut_short = bool(answer.get(STOPPED))
    if "infeasible" in answer:
        return PlanOutcome(None, answer["infeasible"], cut_short)
    return PlanOutcome(PlanDocument.model_validate(answer["document"]), "", cut_short)
