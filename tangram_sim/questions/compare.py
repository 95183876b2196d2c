"""The question of `tangram compare`: plans of several planners for one model and cluster."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from tangram_sim.fields import SEARCH, described, option, part
from tangram_sim.planners.search_options import SearchOptions
from tangram_sim.questions.shared_fields import (
    OnCluster,
    dask_option,
    schedules,
)
from tangram_sim.training.job import Job
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from tangram_sim.planners.deadline import Deadline
    from tangram_sim.studies.comparison import Compared

_JOB = part(
    *("global_batch", "seq", "dtype", "optimizer", "schedule", "stack"), schedule={"suggested": schedules}
)
_SEARCH = part(
    *("time_limit_s", "memory_margin", "jobs"),
    time_limit_s={
        "help": "Seconds for all planners together, from the start of the command: each has an even share of "
        "what is left, and then takes its best plan so far."
    },
    jobs={"help": "Processes of the search of tangram (0: all cores); other planners use one."},
)


@described
@dataclass(frozen=True, slots=True)
class CompareQuestion(OnCluster):
    """Ask several planners for a plan of MODEL on CLUSTER, and simulate all plans with the same simulator.

    Exits with 2 if no planner has a plan.
    """

    VERB: ClassVar[str] = "compare"

    planners: tuple[str, ...] = option(
        (),
        "Planners, e.g. tangram,metis,sailor.",
        unset="all that are installed",
        reads=name_list,
        group=SEARCH,
        basic=True,
    )
    job: Job = field(default=Job(), metadata=_JOB)
    search: SearchOptions = field(default=SearchOptions(), metadata=_SEARCH)
    dask: str | None = dask_option()

    def answer(self, *, deadline: "Deadline | None" = None) -> "Compared":
        """Every planner's plan, simulated, or why there is none.

        Raises UnknownNameError for a planner that is not installed, BadInputError for one named twice,
        InfeasibleError where none has a plan.
        """
        from tangram_sim.errors import InfeasibleError
        from tangram_sim.hwdb import load_cluster, load_model
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.studies import comparison
        from tangram_sim.studies.dask_workers import processes

        database = self.hardware.load()
        with processes(self.dask, self.search.jobs) as jobs:
            answers = comparison.compare_planners(
                load_model(self.model),
                load_cluster(self.cluster, database),
                self.job,
                self.planners,
                hwdb=database,
                deadline=deadline or Deadline(self.search.time_limit_s),
                memory_margin=self.search.memory_margin,
                jobs=jobs,
            )
        if all(each.result is None for each in answers):
            reasons = "\n".join(f"{each.planner}: {each.status}: {each.reason}" for each in answers)
            raise InfeasibleError(f"no planner has a plan of {self.model} on {self.cluster}\n{reasons}")
        return comparison.Compared(self.with_answer(comparison.comparison(answers)), answers)
