"""Plans ranked by liveput: the speed expected after the losses of the next hour, not the step alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import inf

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.findings import Severity, behind_stops, declare
from tangram_sim.hwdb import Hwdb, ReadSet
from tangram_sim.models import Model
from tangram_sim.placement.domains import idle_in_groups
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.reliability.survivors import liveput_share, replicas_on_nodes
from tangram_sim.studies import api
from tangram_sim.studies.batch_estimates import Estimate
from tangram_sim.studies.cautions import cautions
from tangram_sim.studies.copies import copies_side_by_side
from tangram_sim.studies.documents import LiveputDocument
from tangram_sim.studies.forecast import document, forecast
from tangram_sim.studies.number_formats import resolve
from tangram_sim.studies.results import Result
from tangram_sim.studies.tried import AUTO, SCHEDULES
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.schedules import chunked

_LEFT = (
    "liveput {liveput_tokens_per_s:,.0f} tokens/s: after {losses_per_hour:g} {losses} in an hour "
    "{share_left:percent1} of the speed is left; "
)
LIVEPUT_OF_FASTEST = declare("liveput-of-fastest", Severity.NOTE, _LEFT + "no plan compared has more")
LIVEPUT_OF_ANOTHER = declare(
    "liveput-of-another",
    Severity.NOTE,
    _LEFT + "the plan made for speed alone, {fastest_step_s:seconds} a step, has "
    "{fastest_liveput_tokens_per_s:,.0f}",
)
_MOST_DEGREE = 64
_KEPT = 12  # uniform layouts that are played and compared, the fastest of each number of replicas first
_FINALISTS = 12  # of the search of the fastest plan
_WORTH = 1e-9


def plan_for_losses(
    cluster: Cluster,
    losses_per_hour: float,
    model: Model,
    job: Job,
    hwdb: Hwdb,
    planned: Callable[[Cluster], Result],
    deadline: Deadline | None = None,
    shown: int = 1,
    redrawn: Callable[[Result], Result] = lambda result: result,
) -> Result:
    """The plan with the highest liveput among the fastest plan, uniform layouts of every width, and copies.

    Liveput is the speed expected after an hour's node losses: a Poisson number of nodes, every set equally
    likely, none replaced; replicas that lost a node stop, the others go on. Copies of pipelines on few nodes
    each lose least, and do not depend on which plan is the fastest. All candidates leave as much memory free
    as the fastest plan. At most `shown` - 1 alternatives of the chosen plan are listed. Under limits on power
    the candidates run at the clocks of the fastest: `redrawn` adds their power, and those above the site's
    limit are dropped. Raises BadInputError for a rate below 0.
    """
    if not 0 <= losses_per_hour < inf:
        raise BadInputError(f"{losses_per_hour:g} losses per hour: give a number, 0 or more")
    fastest = planned(cluster)
    margin = fastest.document.memory_margin
    timed = deadline or Deadline()
    cluster = fastest.forecast.plan.cluster  # at the clocks that limits on power leave
    ran = fastest.forecast.plan.job.schedule
    if job.schedule == AUTO and chunked(ran):  # copies, and layouts of every width, have one chunk per stage
        ran = SCHEDULES[0]
    plain = resolve(replace(job, schedule=ran), cluster)
    candidates = [fastest, *_uniform(model, cluster, plain, hwdb, margin)]
    if not timed.over():
        candidates += [_played(other.plan, hwdb) for other in fastest.others]
    for made in copies_side_by_side(model, cluster, plain, hwdb, margin, timed):
        if (result := _played(made, hwdb)).forecast.lowered.fullness() <= 1.0 - margin:
            candidates.append(result)
    if power := fastest.document.power:
        others = [replace(one, document=one.document.with_fields(power=power)) for one in candidates[1:]]
        candidates = [fastest, *filter(_is_fed, map(redrawn, others))]
    shares = [share_left(candidate.forecast.plan, losses_per_hour, hwdb) for candidate in candidates]
    liveputs = [candidate.tokens_per_s * share for candidate, share in zip(candidates, shares, strict=True)]
    best = max(range(len(candidates)), key=lambda at: (liveputs[at] * (1 + _WORTH * (at == 0)), -at))
    chosen = candidates[best]
    found = LiveputDocument(
        losses_per_hour=losses_per_hour,
        liveput_tokens_per_s=liveputs[best],
        share_left=shares[best],
        fastest_step_s=fastest.step_s,
        fastest_liveput_tokens_per_s=liveputs[0],
        compared=len(candidates),
    )
    kind = LIVEPUT_OF_FASTEST if best == 0 else LIVEPUT_OF_ANOTHER
    finding = kind(**found.model_dump(), losses="loss" if losses_per_hour == 1 else "losses")
    written = chosen.document.with_fields(
        liveput=found,
        alternatives=chosen.document.alternatives[: max(shown - 1, 0)],
        memory_margin=margin,
    )
    return replace(chosen, document=written.with_findings(behind_stops(finding, written.findings)))


def _is_fed(result: Result) -> bool:
    """Whether the plan's power is within the site's limit, if there is one."""
    power = result.document.power
    return power is None or power.site_limit_kw is None or power.chosen.site_kw <= power.site_limit_kw


def lasting(wishes: SearchOptions) -> SearchOptions:
    """Search options for `plan_for_losses`: also return slower plans that lose less with a node."""
    return replace(wishes, top=max(wishes.top, _FINALISTS), lasting=True)


def share_left(plan: Plan, losses_per_hour: float, hwdb: Hwdb) -> float:
    """Expected share of a plan's speed left after an hour of node losses on its whole cluster."""
    node_of = Placement(plan.cluster, hwdb).node_of
    return liveput_share(replicas_on_nodes(plan, node_of), len(plan.cluster.node_group), losses_per_hour)


def _played(made: Plan, hwdb: Hwdb) -> Result:
    """Simulate a plan that did not come from a search, and return it as a result."""
    reads = ReadSet()
    own = hwdb.read_into(reads)
    played = forecast(made, own)
    idle = idle_in_groups(made.cluster, made.ranks, made.job.precision.compute)
    findings = cautions(played, idle=idle)
    return Result(document(played, own, reads, api.lower_bound(made, own), findings), played)


def _uniform(model: Model, cluster: Cluster, job: Job, hwdb: Hwdb, margin: float) -> Iterator[Result]:
    """The fastest uniform layout for each number of replicas that leaves `margin` of memory free."""
    within = hwdb.filled_to(1.0 - margin)
    found = api.estimate_many(model, cluster, job, list(_layouts(cluster)), hwdb=within)
    fitting = [item for item in found if isinstance(item, Estimate) and item.feasible]
    by_width: dict[int, list[tuple[float, Uniform]]] = {}
    for estimate in fitting:
        width = estimate.gpus_used // (estimate.layout.tp * estimate.layout.pp)
        by_width.setdefault(width, []).append((estimate.step_s, estimate.layout))
    first = sorted((min(each, key=lambda pair: pair[0]) for each in by_width.values()), key=lambda p: p[0])
    for _, layout in first[:_KEPT]:
        try:
            result = api.estimate(model, cluster, job, layout, hwdb=hwdb)
        except (InfeasibleError, BadInputError):
            continue
        if result.document.feasible:
            yield result


def _layouts(cluster: Cluster) -> Iterator[Uniform]:
    """Uniform layouts to try: powers of two, full or no recomputation, ZeRO 0 or 1."""
    powers = [2**k for k in range(_MOST_DEGREE.bit_length()) if 2**k <= min(cluster.gpus, _MOST_DEGREE)]
    inside = [tp for tp in powers if tp <= max(group.node.gpus for group in cluster.groups)]
    for tp, pp, recompute, zero in product(inside, powers, ("none", "full"), (0, 1)):
        if tp * pp <= cluster.gpus:
            yield Uniform(tp=tp, pp=pp, recompute=recompute, zero_stage=zero)
