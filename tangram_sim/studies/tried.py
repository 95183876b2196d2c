"""`--schedule auto`, `--parallelizer auto`: plan with the first combination, and see what the others gain.

The first is searched in full. The others start from its plan, in its number format, with a quick search (a
glance) over whole islands; over parts of islands, too, where that plan is not valid for them. If a glance is
far behind, the combination is dropped; otherwise it is searched in full, another parallelizer only where a
glance, in the end over parts of islands, beats the plan it started from. Schedules of several chunks per
stage search nothing of their own: they cut the plans that the first search ranked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from tangram_sim.clusters import Cluster
from tangram_sim.errors import InfeasibleError
from tangram_sim.findings import Severity, behind_stops, declare
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import Progress, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.chunked import CUT
from tangram_sim.studies import api
from tangram_sim.studies.launch_choice import may_be_slower_by
from tangram_sim.studies.results import Result
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules import chunked
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import lower_plan
from tangram_sim.units import show_seconds

TRIED = declare("options-tried", Severity.NOTE, "tried: {tried:listed}; this is {best}{left}")
AUTO = "auto"
# gpipe holds more than 1f1b and is faster where transfers are long: all forwards pass before anything waits.
SIMPLE = "1f1b"  # whose plans those of several chunks are cut from
SCHEDULES = ("1f1b", "zb-h1", "interleaved", "zb-v", "gpipe")
PARALLELIZERS = ("grid", "galvatron")  # one layout per stage, a strategy per layer
_GLANCE = "quick"  # effort of a glance
_NEAR = 1.02  # of the best step: what a glance finds further behind is not searched in full
_FIRST = 0.5  # of a time limit
_SAME = 1e-9  # relative


@dataclass(frozen=True, slots=True)
class _Try:
    """One schedule with one parallelizer and the result; `glanced`: only a quick search was made."""

    name: str
    schedule: str
    parallelizer: str
    result: Result | None = None
    glanced: bool = False
    same: bool = False  # nothing was found that is faster than the plan at which it began

    @property
    def words(self) -> str:
        """Its name and step."""
        came_to = show_seconds(self.result.step_s) if self.result else "no plan"
        came_to = "nothing faster" if self.same else came_to
        return f"{self.name} {came_to}{' at a glance' * self.glanced}"


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
    """As `api.plan`, but the job's schedule and the parallelizer may be `auto`: all of them are tried.

    The first, 1f1b with grid, is what is planned without `auto`. Another replaces it if it is faster; one
    that no framework can launch must be faster by more than `simple_within`. A note gives the result of each.
    The first gets half of a time limit. Raises InfeasibleError with the first one's reason where none has a
    plan.
    """
    schedules: Sequence[str] = SCHEDULES if job.schedule == AUTO else (job.schedule,)
    # Frameworks have one layout in a stage, whoever proposes strategies of layers.
    several = PARALLELIZERS[:1] if wishes.frameworks else PARALLELIZERS
    parallelizers: Sequence[str] = several if wishes.parallelizer == AUTO else (wishes.parallelizer,)
    hwdb, deadline = hwdb or Hwdb.load(), deadline or Deadline(wishes.time_limit_s)
    if len(schedules) == len(parallelizers) == 1:
        ask = partial(api.plan, model, cluster, hwdb=hwdb, progress=progress, deadline=deadline)
        return ask(job, wishes=wishes)
    tries = [
        _Try(
            " with ".join(
                word
                for word, known in ((schedule, schedules), (parallelizer, parallelizers))
                if len(known) > 1
            ),
            schedule,
            parallelizer,
        )
        for schedule, parallelizer in product(schedules, parallelizers)
    ]
    done, reasons = list[_Try](), list[InfeasibleError]()
    for number, attempt in enumerate(tries):
        best = _best(done, wishes)
        if best and (deadline.over() or best.result.step_s <= _least_s(best.result)):
            break
        share = deadline.share(deadline.left_s() * (_FIRST if number == 0 else 1 / (len(tries) - number)))
        told = _named(progress, attempt.name)
        ask = partial(api.plan, model, cluster, hwdb=hwdb, progress=told, deadline=share)
        asked = replace(wishes, parallelizer=attempt.parallelizer)
        simple = [each.result.ranked for each in done if each.result and each.schedule == SIMPLE]
        try:
            if best is None:
                cut = CUT if any(chunked(each.schedule) for each in tries) else 0
                found = ask(replace(job, schedule=attempt.schedule), wishes=replace(asked, kept=cut))
                done.append(replace(attempt, result=found))
            elif chunked(attempt.schedule) and simple:
                done.append(_cut(ask, attempt, job, asked, best.result, simple[0]))
            else:
                done.append(
                    _beside(ask, attempt, job, asked, best.result, _known(best.result, attempt, hwdb))
                )
        except InfeasibleError as error:
            reasons.append(error)
            done.append(attempt)
    best = _best(done, wishes)
    if best is None:
        raise reasons[0]
    unseen = [attempt.name for attempt in tries[len(done) :]]
    why = "for lack of time" if deadline.over() else "since the bound says that none is faster"
    left = f"; not looked at {why}: {', '.join(unseen)}" if unseen else ""
    document, compared = (
        best.result.document,
        TRIED(tried=[each.words for each in done], best=best.name, left=left),
    )
    late = deadline.over() and deadline.asked_s > 0
    findings = behind_stops(compared, document.findings, deadline.findings() if late else ())
    return replace(best.result, document=document.with_findings(findings))


@dataclass(frozen=True, slots=True)
class _Best:
    """The combination whose plan is the best so far."""

    name: str
    result: Result


def _best(done: Sequence[_Try], wishes: SearchOptions) -> _Best | None:
    """The fastest plan; one that no framework can launch must be faster by more than `simple_within`.

    Never slower than the first one found, which is what is planned without `auto`. Of those equal to rounding
    the first is taken.
    """
    prefers = wishes.beside and not wishes.frameworks

    def weighed_s(best: _Best) -> float:
        free = prefers and not best.result.document.launchable_with
        within = may_be_slower_by(best.result.forecast.plan.cluster, wishes) if free else 0.0
        return best.result.step_s * (1.0 + within)

    best: _Best | None = None
    for attempt in done:
        own = _Best(attempt.name, attempt.result) if attempt.result else None
        # One that can be launched does not take the place of a faster one that cannot: nobody asked for it.
        faster = own and (best is None or own.result.step_s < best.result.step_s * (1.0 - _SAME))
        if own and faster and (best is None or weighed_s(own) < weighed_s(best) * (1.0 - _SAME)):
            best = own
    return best


def _least_s(result: Result) -> float:
    """Lower bound on the step, seconds, for every schedule, with room for rounding."""
    return result.document.work_bound_step_s * (1 + _SAME)


def _beside(
    ask: "partial[Result]", attempt: _Try, job: Job, wishes: SearchOptions, best: Result, known: list[Plan]
) -> _Try:
    """The result of one combination: a quick search, then a full one if its step is near the best plan's."""
    own = replace(job, schedule=attempt.schedule, dtype=best.forecast.plan.job.dtype)
    parts = wishes.sub_islands and not known
    quick = replace(wishes, effort=_GLANCE, sub_islands=parts, beside=False)
    # A plan under another schedule says little of what is best under this one, under the same one a lot.
    alike = any(plan.job.schedule == best.forecast.plan.job.schedule for plan in known)
    try:
        glance = ask(own, wishes=quick, known=known)
        if alike and wishes.sub_islands and _same(glance, known):
            glance = ask(own, wishes=replace(quick, sub_islands=True), known=known)
    except InfeasibleError:
        return replace(attempt, glanced=True)
    same = alike and _same(glance, known)
    if same or glance.step_s > _NEAR * best.step_s:
        return replace(attempt, result=glance, glanced=True, same=same)
    # It knows the plan of the glance: what it shows is slower only where that one cannot be launched.
    return replace(attempt, result=ask(own, wishes=wishes, known=[*known, glance.forecast.plan]))


def _cut(
    ask: "partial[Result]",
    attempt: _Try,
    job: Job,
    wishes: SearchOptions,
    best: Result,
    simple: Sequence[Plan],
) -> _Try:
    """Result of cutting plans of one chunk per stage into chunks; near the best, launchable ones too."""
    own = replace(job, schedule=attempt.schedule, dtype=simple[0].job.dtype)
    found = ask(own, wishes=replace(wishes, beside=False), known=simple)
    if wishes.beside and found.step_s <= _NEAR * best.step_s:
        found = ask(own, wishes=wishes, known=[*simple, found.forecast.plan])
    return replace(attempt, result=found)


def _same(glance: Result, known: Sequence[Plan]) -> bool:
    """Whether a quick search found nothing but a plan it started from."""
    return glance.forecast.plan in known


def _known(best: Result, attempt: _Try, hwdb: Hwdb) -> list[Plan]:
    """The best plan under another schedule, if both have one chunk per stage and memory suffices; else []."""
    made = best.forecast.plan
    if chunked(made.job.schedule) or chunked(attempt.schedule):
        return []
    other = replace(made, job=replace(made.job, schedule=attempt.schedule))
    return [other] if fullness(other, hwdb) <= 1.0 - best.document.memory_margin else []


def fullness(made: Plan, hwdb: Hwdb) -> float:
    """Peak memory of the fullest GPU over its capacity."""
    return lower_plan(made, Lowering.of(made, hwdb)).fullness()


def _named(progress: Progress | None, name: str) -> Progress | None:
    """A progress callback that adds the name of the combination."""
    if progress is None:
        return None
    tell = progress
    return lambda done, total, what: tell(done, total, f"{name}: {what}")
