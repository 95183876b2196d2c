"""One planned and simulated case of a sweep: model, cluster, job, wishes; and its answer."""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from tangram_sim.clusters import Cluster
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, cluster_to_dict
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Parallelizer
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.registry import parallelizer
from tangram_sim.studies import api
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.planfile import model_to_dict
from tangram_sim.studies.sweep import STOPPED, Answer, content_key
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan


@dataclass(frozen=True)
class Case:
    """What is planned; `overlays` are the user's folders of hardware rows.

    Plans `known` for it, from smaller fleets, are where the search begins: none slower is the answer.
    """

    model: Model
    cluster: Cluster
    job: Job
    wishes: SearchOptions
    overlays: tuple[Path, ...]
    known: tuple[Plan, ...] = ()

    def key(self, hwdb: Hwdb) -> str:
        """What the answer depends on, as a digest; how many processes look for it is no part of that."""
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
            }
        )


@dataclass(frozen=True)
class PlanOutcome:
    """The plan found, or why there is none; `cut_short`: time was over before the search was."""

    document: PlanDocument | None
    reason: str = ""
    cut_short: bool = False


@lru_cache(maxsize=1)
def _parallelizer(name: str) -> Parallelizer:
    """One for all cases of a process: candidates share most of their islands, which are priced once."""
    shared: Parallelizer = parallelizer(name)()
    return shared


@lru_cache(maxsize=8)
def _database(overlays: tuple[Path, ...]) -> Hwdb:
    return Hwdb.load(overlays)


@lru_cache(maxsize=8)
def hwdb_digest(hwdb: Hwdb) -> str:
    """Fingerprint of all tables (a database never changes, so it is made once)."""
    return hwdb.digest_of_tables()


def forget() -> None:
    """Read tables anew and price anew for later cases: the hardware data behind a folder has changed."""
    _database.cache_clear()
    _parallelizer.cache_clear()


def overlays_of(hwdb: Hwdb) -> tuple[Path, ...]:
    """The user's folders of a database."""
    return tuple(path.absolute() for path in hwdb.folders[1:])


def simulate_case(case: Case, deadline: Deadline) -> Answer:
    """Plan and simulate one case in whatever process; a case without a plan is an answer too."""
    try:
        found = api.plan(
            case.model,
            case.cluster,
            case.job,
            wishes=replace(case.wishes, beside=False),
            hwdb=_database(case.overlays),
            parallelizer=_parallelizer(case.wishes.parallelizer),
            deadline=deadline,
            known=case.known,
        )
    except InfeasibleError as error:
        answer: Answer = {"infeasible": str(error)}
    else:
        dumped = found.document.model_dump(mode="json", exclude={"planning_s", "planning_cpu_s"})
        answer = {"document": dumped}
    return answer | {STOPPED: True} if deadline.stopped else answer


def outcome(answer: Answer) -> PlanOutcome:
    """The outcome that an answer of `simulate_case` holds."""
    cut_short = bool(answer.get(STOPPED))
    if "infeasible" in answer:
        return PlanOutcome(None, answer["infeasible"], cut_short)
    return PlanOutcome(PlanDocument.model_validate(answer["document"]), "", cut_short)
