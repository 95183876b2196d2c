"""Planners side by side: each answers the same question, all plans are played by the same simulator."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pydantic import Field

from tangram_sim import registry
from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError, TangramError
from tangram_sim.fields import HasDocument
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.hwdb import Hwdb, ReadSet
from tangram_sim.models import Model
from tangram_sim.placement.domains import idle_in_groups
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.planner import Tangram
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner
from tangram_sim.studies import tried
from tangram_sim.studies.api import lower_bound, quick_bound, require_stack
from tangram_sim.studies.cautions import cautions
from tangram_sim.studies.documents import AnswerDocument, Document, PlanDocument
from tangram_sim.studies.forecast import document, forecast
from tangram_sim.studies.margin import auto_margin, require_margin
from tangram_sim.studies.number_formats import formats
from tangram_sim.studies.planner_formats import in_best_format
from tangram_sim.studies.results import Result
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules import chunked

FIRST = "tangram"  # of planners that are compared
OK, CANNOT, FAILED = "ok", "cannot answer", "failed"


class PlannerDocument(Document):
    """What one planner achieved; figures are null unless `status` is ok."""

    status: str = Field(description="ok, cannot answer (its stated limits, or nothing fits), or failed")
    step_s: float | None = None
    step_s_low: float | None = Field(None, description="90 % interval of step_s")
    step_s_high: float | None = None
    mfu: float | None = None
    gpus_used: int | None = None
    planning_cpu_s: float = Field(description="CPU seconds until the planner answered")
    lower_bound_step_s: float | None = Field(None, description="no plan on this cluster can beat this")
    plan: PlanDocument | None = Field(None, description="to be saved and given to `tangram simulate`")
    reason: str = Field("", description="why there is no plan")


class ComparisonDocument(AnswerDocument):
    """`compare --json`."""

    planners: dict[str, PlannerDocument]


@dataclass(frozen=True)
class PlannerAnswer:
    """One planner's plan, played; or why there is none."""

    planner: str
    status: str
    planning_s: float
    planning_cpu_s: float
    result: Result | None = None
    reason: str = ""


@dataclass(frozen=True)
class Compared(HasDocument):
    """Planners side by side: the document, and their plans."""

    document: ComparisonDocument
    answers: list[PlannerAnswer]


def answer(
    planner: WholeClusterPlanner,
    price: Price,
    margin: float | None = 0.0,
    others: Sequence[Price] = (),
) -> PlannerAnswer:
    """Ask one planner for a plan within the memory margin; an exception becomes an answer, too.

    `others`: the same question in further number formats; the plan may be in any of them.
    """
    wall, cpu = time.perf_counter(), time.process_time()

    def ended(status: str, reason: str = "", result: Result | None = None) -> PlannerAnswer:
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
        if result is not None:
            seconds, cpu_seconds = result.document.planning_s or 0.0, result.document.planning_cpu_s or 0.0
        return PlannerAnswer(planner.name, status, seconds, cpu_seconds, result, reason)

    try:
        if type(planner) is Tangram:
            return ended(OK, result=_shown(margin, price, auto=bool(others)))
        return ended(OK, "", in_best_format(partial(_result, planner, margin), [price, *others]))
    except InfeasibleError as error:
        return ended(CANNOT, str(error))
    except _UnlawfulPlanError as error:
        return ended(FAILED, str(error))
    except Exception as error:  # a plug-in may raise anything; the comparison goes on without it
        return ended(FAILED, f"{type(error).__name__}: {error}")


def _shown(margin: float | None, price: Price, *, auto: bool) -> Result:
    """The plan that `plan` shows; `auto`: in the number format that it chooses."""
    job = replace(price.job, dtype="auto") if auto else price.job
    wishes = SearchOptions(jobs=price.jobs, memory_margin=margin, only_shown=True)
    asked = price.model, price.cluster, job
    return tried.plan(*asked, wishes=wishes, hwdb=price.hwdb, deadline=price.deadline)


class _UnlawfulPlanError(TangramError):
    """A planner's plan is for another model, cluster or job, or does not fit in memory."""


PLANNED_BY = declare("planned-by", Severity.NOTE, "planned by {planner}: {limits}")
LESS_THAN_MARGIN = declare(
    "less-than-memory-margin",
    Severity.WARNING,
    "warning: its plan leaves less than {margin:percent1} of the memory free",
)


def _result(
    planner: WholeClusterPlanner, margin: float | None, price: Price, by: Sequence[Finding] = ()
) -> Result:
    """One planner's plan in one number format, simulated; `by` names the planner. Raises its errors."""
    wall, cpu = time.perf_counter(), time.process_time()
    made, warned = _planned(planner, price, margin)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    reads = ReadSet()
    own = price.hwdb.read_into(reads)
    played = forecast(made, own)
    if (made.model, made.cluster, made.job) != (price.model, price.cluster, price.job):
        raise _UnlawfulPlanError("planned another model, cluster or job than it was asked about")
    if not played.lowered.fits():
        raise _UnlawfulPlanError(f"its plan does not fit memory ({played.lowered.fullness() * 100:.0f} %)")
    findings = [*price.deadline.findings(), *cautions(played, idle=_idle(made)), *by, *warned]
    bound_s = quick_bound(made, own) if price.deadline.over() else lower_bound(made, own)
    written = document(played, own, reads, bound_s, findings)
    return Result(written.with_fields(planning_s=wall, planning_cpu_s=cpu), played)


def _idle(made: Plan) -> list[Finding]:
    """Findings on the GPUs that a planner's plan leaves idle; whether they could help is not checked."""
    return idle_in_groups(made.cluster, made.ranks, made.job.precision.compute)


def _planned(planner: WholeClusterPlanner, price: Price, margin: float | None) -> tuple[Plan, list[Finding]]:
    """(A planner's plan that leaves the margin of memory free, warnings); margin None: `auto_margin`.

    If the plan fits only without the default margin, that margin is dropped, as `api.plan` does.
    """
    free = auto_margin(price.cluster, price.job, price.hwdb) if margin is None else margin

    def within(share: float) -> Plan:
        asked = replace(price, hwdb=price.hwdb.filled_to(share))
        return planner.plan(price.model, price.cluster, price.job, asked)

    if margin is not None or not free:
        return within(1.0 - free), []
    try:
        return within(1.0 - free), []
    except InfeasibleError:
        if price.deadline.over():
            raise
        return within(1.0), [LESS_THAN_MARGIN(margin=free)]


def plan_with(
    name: str,
    model: Model,
    cluster: Cluster,
    job: Job | None = None,
    *,
    hwdb: Hwdb | None = None,
    deadline: Deadline | None = None,
    memory_margin: float | None = None,
) -> Result:
    """The plan of one planner by name, the best so far when the deadline is over.

    Raises what the planner raises, or UnknownNameError.
    """
    require_margin(memory_margin)
    planner = registry.planner(name)()
    prices = questions(model, cluster, job, hwdb, deadline)
    ask = partial(_result, planner, memory_margin, by=[PLANNED_BY(planner=name, limits=planner.limits)])
    return in_best_format(ask, prices)


def questions(
    model: Model,
    cluster: Cluster,
    job: Job | None = None,
    hwdb: Hwdb | None = None,
    deadline: Deadline | None = None,
) -> list[Price]:
    """Questions to planners, one per number format, prices fresh, deadline running. Raises as `api.plan`."""
    hwdb, deadline = hwdb or Hwdb.load(), deadline or Deadline()
    asked = formats(job or Job(), cluster)
    require_stack(asked[0], hwdb)
    if chunked(asked[0].schedule):
        raise BadInputError("planners compose 1f1b, gpipe and zb-h1 pipelines; give `schedule=` one of these")
    return [Price(model, cluster, item, hwdb, deadline) for item in asked]


def compare_planners(
    model: Model,
    cluster: Cluster,
    job: Job | None = None,
    planners: Sequence[str] = (),
    *,
    hwdb: Hwdb | None = None,
    deadline: Deadline | None = None,
    memory_margin: float | None = None,
    jobs: int = 1,
) -> list[PlannerAnswer]:
    """The answers of planners (all installed ones by default), in the order given, each with fresh prices.

    Tangram's answer is the plan that `plan` shows, from the same search. Each plan is in the number format
    that suits its planner best, as `plan` chooses one. Each planner gets an even share of the time that the
    `deadline` leaves, keeps `memory_margin` (see `margin.kept`) free, and may search on `jobs` processes (0:
    all cores). Without a time limit `tangram` runs first, so that an interrupted comparison has its plan.
    With a limit it also gets time that other planners left unused. Once time is over, by the clock or by
    Ctrl-C, the remaining planners are skipped, unless there is no plan yet. Raises UnknownNameError for a
    planner that is not installed, BadInputError for one named twice.
    """
    require_margin(memory_margin)
    names = list(planners or registry.names(registry.PLANNERS))
    if len(set(names)) != len(names):
        raise BadInputError(f"`planners=` names one twice: {','.join(names)}; name each once")
    loaded = [registry.planner(name)() for name in names]
    loaded = [item for item in loaded if planners or item.compared]
    names = [item.name for item in loaded]
    asked = questions(model, cluster, job, hwdb)
    whole = deadline or Deadline()
    answers = dict[int, PlannerAnswer]()
    turns = [*range(len(loaded))]
    if whole.left_s() == float("inf"):
        turns.sort(key=lambda place: names[place] != FIRST)
    with whole.hearing_interrupts():
        for number, place in enumerate(turns):
            item = loaded[place]
            late = whole.left_s() <= 0
            if late and any(each.result for each in answers.values()):
                reason = f"not asked: {whole.why()}"
                answers[place] = PlannerAnswer(item.name, CANNOT, 0.0, 0.0, reason=reason)
                continue
            left = len(loaded) - number
            share = whole if late or left == 1 else whole.share(whole.left_s() / left)
            first, *others = [replace(each, deadline=share, jobs=jobs) for each in asked]
            answers[place] = answer(item, first, memory_margin, others)
    return [answers[place] for place in range(len(loaded))]


def comparison(answers: Sequence[PlannerAnswer]) -> ComparisonDocument:
    """The answers as a document, planners in their order."""
    return ComparisonDocument(
        planners={planner_answer.planner: _document(planner_answer) for planner_answer in answers}
    )


def _document(planner_answer: PlannerAnswer) -> PlannerDocument:
    plan = planner_answer.result.document if planner_answer.result is not None else None
    return PlannerDocument.from_objects(planner_answer, plan, plan=plan)
