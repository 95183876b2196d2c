"""`--schedule auto`, `--parallelizer auto`: the same question under each, the fastest plan shown."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from tangram_sim.clusters import Cluster
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import Progress, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.studies import api
from tangram_sim.studies.results import Result
from tangram_sim.training.job import Job
from tangram_sim.units import show_seconds

AUTO = "auto"
# gpipe holds more than 1f1b and is faster where transfers are long: all forwards pass before anything waits.
SCHEDULES = ("1f1b", "zb-h1", "interleaved", "zb-v", "gpipe")
PARALLELIZERS = ("grid", "galvatron")  # one layout per stage, a strategy per layer


def plan(
    model: Model | str,
    cluster: Cluster | str,
    job: Job,
    *,
    wishes: SearchOptions,
    hwdb: Hwdb | None = None,
    progress: Progress | None = None,
    deadline: Deadline | None = None,
) -> Result:
    """As `api.plan`, where the job's schedule and the parallelizer may be `auto`: all of them are tried.

    Each gets an equal share of the time that is left. A note says what each came to. Raises InfeasibleError
    with the first one's reason where none has a plan.
    """
    schedules: Sequence[str] = SCHEDULES if job.schedule == AUTO else (job.schedule,)
    parallelizers: Sequence[str] = PARALLELIZERS if wishes.parallelizer == AUTO else (wishes.parallelizer,)
    asked, deadline = list(product(schedules, parallelizers)), deadline or Deadline(wishes.time_limit_s)
    found: list[tuple[str, Result]] = []
    reasons: list[InfeasibleError] = []
    for number, (schedule, parallelizer) in enumerate(asked):
        if found and deadline.over():
            break
        share_s = deadline.left_s() / (len(asked) - number)
        name = " with ".join(
            word for word, known in ((schedule, schedules), (parallelizer, parallelizers)) if len(known) > 1
        )
        try:
            one = api.plan(
                model,
                cluster,
                replace(job, schedule=schedule),
                wishes=replace(wishes, parallelizer=parallelizer, time_limit_s=share_s),
                hwdb=hwdb,
                progress=progress,
                deadline=deadline.share(share_s) if len(asked) > 1 else deadline,
            )
        except InfeasibleError as error:
            reasons.append(error)
            continue
        found.append((name, one))
    if not found:
        raise reasons[0]
    name, best = min(found, key=lambda pair: pair[1].document.step_s)
    if len(asked) > 1:
        told = ", ".join(f"{other} {show_seconds(one.document.step_s)}" for other, one in found)
        best.document.notes.insert(0, f"tried: {told}; this is {name}")
    return best
