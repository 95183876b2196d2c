"""Search every number format that `dtype=auto` allows, and choose the one for the plan."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from tangram_sim.clusters import Cluster, Island
from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.placement.islands import DEFAULT_TOLERANCES, find_islands
from tangram_sim.planners.api import Counts, Found, NothingBelowError, Progress, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.chunked import chunked
from tangram_sim.planners.tangram.engine import QUICK, tangram
from tangram_sim.planners.tangram.findings import KNOWN_IS_BEST, MICROBATCHES_LEFT_OUT
from tangram_sim.planners.usable import usable_islands
from tangram_sim.studies.launchable import launchable_plans
from tangram_sim.studies.margin import kept
from tangram_sim.studies.number_formats import formats
from tangram_sim.studies.search_options import named_groups, named_islands, require_possible
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules import chunked as has_chunks
from tangram_sim.units import percent, show_seconds

# Of a second format plans of whole islands and halves are looked at first. They come some per cent behind
# all that a search finds: one that is further behind than this is not worth a search in full.
_NEAR = 1.15
# Where the search in full of the first format left the halves further behind, so much further: islands that
# are many sizes apart have poor halves in both. Up to this many times.
_GAINED = 2.0
# bf16 needs no loss scaling: where no old GPU is used it is taken if its step is longer by no more than this,
# which no prediction can tell apart. The faster is taken beyond: with thousands of GPUs fp32 gradients were
# seen to cost a third.
_ALIKE = 1.02


@dataclass(frozen=True, slots=True)
class FormatQuestion:
    """The question in one number format: job, options by island name, islands, bound in seconds."""

    job: Job
    wishes: SearchOptions
    islands: tuple[Island, ...]
    bound_s: float


@dataclass(frozen=True, slots=True)
class Searched:
    """Result of one search: its job, options, islands, plans and memory margin.

    `glanced`: only plans on whole and half islands. `compared`: a finding on the other number format.
    """

    job: Job
    wishes: SearchOptions
    islands: tuple[Island, ...]
    found: Found
    margin: float
    glanced: bool = False
    compared: Finding | None = None

    @property
    def step_s(self) -> float:
        """Seconds of the fastest step."""
        return self.found.ranked[0].step_s


def search_formats(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    wishes: SearchOptions,
    progress: Progress | None,
    deadline: Deadline,
    known: Sequence[Plan],
) -> Searched:
    """The fastest plan over the number formats of a job; arguments as of `tangram`.

    If the best fp16 plan uses no GPU without bf16, a bf16 plan is taken if its step is at most 2 % longer.
    First the fp16 plan is converted to bf16; where neither that nor a quick search (a glance) comes that
    close, but comes near, bf16 is searched in full. A format is skipped if its bound exceeds the step of
    another format's plan, and only glanced at where that decides. Schedules of several chunks are always
    searched in full, since few plans of a glance can be cut into chunks, and so are plans for a framework
    (`launchable_plans`). If no format has a plan, raises what the search of the first format raises (fp16 on
    all GPUs, where old ones force it).
    """
    wishes = named_groups(wishes, cluster)
    asked = formats(job, cluster, wishes)
    errors: dict[Job, TangramError] = {}
    questions: list[FormatQuestion] = []
    for each in asked:
        if questions and deadline.over() and not _at_hand(each, known):
            continue
        if item := _question(model, cluster, each, hwdb, wishes, errors):
            questions.append(item)
    done: dict[Job, Searched] = {}
    behind = set[Job]()  # formats of which a glance found nothing near the best plan
    counts = Counts()
    for number, item in enumerate(sorted(questions, key=lambda question: question.bound_s)):
        best = min(done.values(), key=lambda each: each.step_s, default=None)
        hopeless = best and item.bound_s >= longest_s(best.found.ranked[0].plan, best.step_s)
        late = deadline.over() and not _at_hand(item.job, known)
        if best and (hopeless or late):  # a plan at hand is taken, time over or not
            continue
        left = len(questions) - number
        share = deadline.share(deadline.left_s() / left) if left > 1 else deadline
        at_hand = [*known, *([replace(best.found.ranked[0].plan, job=item.job)] if best else [])]
        search = partial(_search, model, cluster, item, progress, deadline=share, known=at_hand)
        within = cluster, item.job, hwdb, wishes.memory_margin
        glance = None
        try:
            if best and not (has_chunks(item.job.schedule) or item.wishes.frameworks):
                glance = _deciding_glance(search, within, best, counts, at_hand)
            found, margin = glance or kept(search, *within)
            if glance is None:
                counts.add(found.counts)
        except NothingBelowError as nothing:
            counts.add(nothing.counts)
            behind.add(item.job)
            continue
        except TangramError as error:
            errors[item.job] = error
            continue
        if found.ranked[0].plan not in known:  # but of the other format, or of a glance
            known_best = KNOWN_IS_BEST.among(found.findings)
            found = replace(found, findings=[each for each in found.findings if each not in known_best])
        glanced = glance is not None
        done[item.job] = Searched(item.job, item.wishes, item.islands, found, margin, glanced)
    if not done:
        raise errors[asked[0]]
    best = min(done.values(), key=lambda each: each.step_s)
    alike = [
        each for each in done.values() if each.step_s <= longest_s(best.found.ranked[0].plan, best.step_s)
    ]
    best = min(alike, key=lambda each: (_leaves_old_out(each), each.step_s))
    if len(asked) == 1:
        return best
    return replace(
        best,
        found=replace(best.found, counts=counts),
        compared=_compared(best, asked, questions, done, behind, errors),
    )


def _at_hand(job: Job, known: Sequence[Plan]) -> bool:
    """Whether a plan of this job, number format and all, is known."""
    return any(plan.job == job and has_units(plan) for plan in known)


def _question(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    wishes: SearchOptions,
    errors: dict[Job, TangramError],
) -> FormatQuestion | None:
    """The question of a job in one number format; None, with its error in `errors`, if there is none."""
    try:
        cut = find_islands(
            cluster, job.precision.compute, wishes.tolerances or DEFAULT_TOLERANCES, hwdb, job.stack
        )
        named = named_islands(wishes, cut)
        islands, _ = usable_islands(cluster, job, hwdb, named)
        require_possible(model, job, named, islands, hwdb)
    except TangramError as error:
        errors[job] = error
        return None
    return FormatQuestion(job, named, islands, WorkBound(model, job, islands, hwdb, cluster).step_s())


def _search(
    model: Model,
    cluster: Cluster,
    format_question: FormatQuestion,
    progress: Progress | None,
    within: Hwdb,
    *,
    deadline: Deadline,
    known: Sequence[Plan],
    glance: bool = False,
    below_s: float = inf,
) -> Found:
    """Search one number format within the memory limits of `within`; `glance`: whole and half islands only.

    A glance may be limited to plans below `below_s` seconds (NothingBelowError: there is none).
    """
    # Of other schedules, too: those of several chunks per stage are cut from plans of one.
    able = [
        plan
        for plan in known
        if replace(plan.job, schedule=format_question.job.schedule) == format_question.job and has_units(plan)
    ]
    if format_question.wishes.frameworks:
        asked = model, cluster, format_question.job, within, format_question.wishes
        return launchable_plans(*asked, progress=progress, deadline=deadline, known=able)
    plan = chunked if has_chunks(format_question.job.schedule) else tangram
    if glance:
        plan = partial(tangram, below_s=below_s, halves=True)
    search = partial(plan, deadline=deadline, known=able)
    return search(model, cluster, format_question.job, within, format_question.wishes, progress)


def _deciding_glance(
    search: "partial[Found]",
    within: tuple[Cluster, Job, Hwdb, float | None],
    best: Searched,
    counts: Counts,
    at_hand: list[Plan],
) -> tuple[Found, float] | None:
    """(plans of a glance at a second format, memory margin); None if the glance does not settle the choice.

    It settles the choice if its plan is far behind the `best` plan, or if that one is to be replaced and the
    plan is about as good (`_ALIKE`); the glance starts from the same plan in bf16, unless that does not fit.
    A plan that settles nothing is added to `at_hand`, from which the full search starts. Raises what the
    search raises, and NothingBelowError where every plan is far behind.
    """
    try:
        found, margin = kept(partial(search, glance=True, below_s=_near_s(best)), *within)
    except InfeasibleError:
        if _leaves_old_out(best):
            return None
        raise
    counts.add(found.counts)
    step_s = found.ranked[0].step_s
    alike = _leaves_old_out(best) and step_s <= longest_s(best.found.ranked[0].plan, best.step_s)
    if alike or step_s >= _near_s(best):
        return _without_its_limits(found), margin
    at_hand.append(found.ranked[0].plan)
    return None


def _without_its_limits(glance: Found) -> Found:
    """The plans of a glance without its pipeline bound and its findings about quick effort.

    The bound covers parts of islands only, but the plans may use more; and microbatch sizes left out at quick
    effort were tried in the format that was searched in full.
    """
    quick = [each for each in MICROBATCHES_LEFT_OUT.among(glance.findings) if each.figures["effort"] == QUICK]
    findings = [each for each in glance.findings if each not in quick]
    return replace(glance, pipeline_bound_s=0.0, findings=findings)


def _near_s(best: Searched) -> float:
    """Step in seconds at or above which a glance's plan does not justify a full search."""
    return _NEAR * min(best.found.gained, _GAINED) * best.step_s


def longest_s(plan: Plan, step_s: float) -> float:
    """Longest step, seconds, for which a plan in another format replaces `plan`, of `step_s`."""
    return step_s * (_ALIKE if for_nothing(plan) else 1.0)


def _leaves_old_out(searched: Searched) -> bool:
    """Whether the fastest plan uses fp16 although all its GPUs have bf16."""
    return for_nothing(searched.found.ranked[0].plan)


def for_nothing(plan: Plan) -> bool:
    """Whether a plan uses fp16 although all its GPUs have bf16."""
    return plan.job.dtype == "fp16" and has_units(replace(plan, job=replace(plan.job, dtype="bf16")))


def has_units(plan: Plan) -> bool:
    """Whether all GPUs that a plan uses have units for its job's number format."""
    return all(gpu.peak_flop_per_s(plan.job.precision.compute) for gpu in plan.gpu_kinds)


FP16_FOR_NOTHING = declare(
    "fp16-for-short-gradients",
    Severity.NOTE,
    "fp16 with loss scaling, though all GPUs used have bf16: 2-byte gradients; bf16 {came_to}",
)
FP16_FOR_OLD_GPUS = declare(
    "fp16-for-old-gpus",
    Severity.NOTE,
    "fp16 with loss scaling, as {old:listed} have no bf16; bf16 without them {came_to}",
)
BF16_WITHOUT_OLD_GPUS = declare(
    "bf16-without-old-gpus",
    Severity.NOTE,
    "bf16, which leaves out {old:listed}; fp16 with loss scaling {where} {came_to}",
)


def _compared(
    best: Searched,
    asked: Sequence[Job],
    questions: Sequence[FormatQuestion],
    done: dict[Job, Searched],
    behind: Collection[Job],
    errors: dict[Job, TangramError],
) -> Finding:
    """Finding: how the plan in the other number format compares, and which GPUs lack bf16."""
    other = next(job for job in asked if job != best.job)
    gpus = {island.gpu.name: island.gpu for question in questions for island in question.islands}
    old = [name for name, gpu in gpus.items() if not gpu.peak_flop_per_s("bf16")]
    step_s: float | None = None  # of the other format, at least
    if other in done:
        step_s = done[other].step_s
        longer = done[other].step_s / best.step_s - 1.0
        than = "longer" if longer >= 0 else "less"
        about, glance = ("about ", ", at a glance") if done[other].glanced else ("", "")
        came = f"takes {about}{show_seconds(done[other].step_s)}, {100 * abs(longer):.1f} % {than}{glance}"
    elif other in behind:
        came = f"takes {percent(_near_s(best) / best.step_s - 1.0)} longer or more, at a glance"
    elif other in errors:
        came = "was found no plan for"
    else:
        bound_s = next((question.bound_s for question in questions if question.job == other), 0.0)
        hopeless = bound_s >= best.step_s
        came = f"takes {show_seconds(bound_s)} or more" if hopeless else "was not looked at for lack of time"
    figures = {"old": old, "came_to": came, "step_s": best.step_s, "other_step_s": step_s}
    if _leaves_old_out(best):
        return FP16_FOR_NOTHING(**figures)
    if best.job.dtype == "fp16":
        return FP16_FOR_OLD_GPUS(**figures)
    where = "without them, too," if other in done and _leaves_old_out(done[other]) else "on all"
    return BF16_WITHOUT_OLD_GPUS(**figures, where=where)
