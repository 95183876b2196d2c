"""Plans for clusters with slow parts: planned anew, replayed, estimated; never worse than staying."""

from collections.abc import Callable
from dataclasses import replace

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.findings import Severity, declare
from tangram_sim.hwdb import Hwdb, ReadSet, cluster_to_dict
from tangram_sim.placement.slowing import with_slowdowns
from tangram_sim.studies import api
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.forecast import document, forecast
from tangram_sim.studies.results import Result
from tangram_sim.studies.sequence_lengths import StepShares, step_shares
from tangram_sim.studies.slow_files import Slow
from tangram_sim.studies.slowness import lossless_bound_s, play_slow, slow_findings, slow_section
from tangram_sim.training.plan import Plan

_WAS = "slow: the healthy cluster's plan takes {unchanged_step_s:seconds} as things are, "
PLANNED_ANEW = declare("slow-planned-anew", Severity.NOTE, _WAS + "this one {step_s:seconds}: {gain:.3f} x")
STAY = declare("slow-stay", Severity.NOTE, _WAS + "and nothing better was found: stay with it")
_SEARCH = ("partial_plans", "planning_s", "planning_cpu_s")
_BOUNDS = ("lower_bound_step_s", "lower_bound_covers", "work_bound_step_s", "pipeline_bound_step_s")


def replayed(made: Plan, slow: Slow, hwdb: Hwdb, engine: str = "fast") -> Result:
    """A plan for the healthy cluster, simulated under slowdowns; the document has the cost of these."""
    reads = ReadSet()
    hwdb = hwdb.read_into(reads)
    healthy = forecast(made, hwdb, engine)
    played = play_slow(made, slow.slowdowns, hwdb, engine, slow.sequences, slow.resizing)
    # Lengths scale what is in proportion to the work; one sequence's passage is not.
    shorter = any(length < made.job.seq for line in slow.sequences for length in line)
    bound = api.least_work_s if shorter else api.lower_bound
    written = document(played, hwdb, reads, bound(played.plan, hwdb))
    if slow.sequences:
        written = _with_lengths(written, step_shares(made, slow.sequences, hwdb))
    section = slow_section(made, played, slow, healthy.step_s, hwdb, engine)
    # The cluster's own links: slow ones are slowed again when the plan's file is played.
    written = written.with_fields(slow=section, cluster=cluster_to_dict(made.cluster))
    return Result(written.with_findings(slow_findings(written)), played)


def _with_lengths(document: PlanDocument, shares: StepShares) -> PlanDocument:
    """The document with rates and bounds scaled to sequences that are shorter than the job's."""
    return document.with_fields(
        tokens_per_s=document.tokens_per_s * shares.tokens,
        tokens_per_s_per_gpu=document.tokens_per_s_per_gpu * shares.tokens,
        mfu=document.mfu * shares.flop,
        mfu_cluster=document.mfu_cluster * shares.flop,
        lower_bound_step_s=document.lower_bound_step_s * shares.least_work,
        work_bound_step_s=document.work_bound_step_s * shares.least_work,
    )


def _anew(
    hurt: Cluster, planned: Callable[[Cluster], Result], around: Callable[[Cluster], Result] | None
) -> Result:
    """The faster of both planners' plans; lower bounds proven by `planned` are kept where they still hold."""
    found = planned(hurt)
    if around is None or not hurt.health.compute:
        return found
    try:
        other = around(hurt)
    except InfeasibleError:
        return found
    if other.document.step_s >= found.document.step_s:
        return found
    taken = {key: getattr(found.document, key) for key in (*_BOUNDS, *_SEARCH)}
    if taken["lower_bound_step_s"] > other.document.step_s:  # it covers only what `planned` may answer
        taken = {}
    return replace(other, document=other.document.with_fields(**taken))


def plan_slow(
    cluster: Cluster,
    slow: Slow,
    hwdb: Hwdb,
    planned: Callable[[Cluster], Result],
    around: Callable[[Cluster], Result] | None = None,
) -> Result:
    """The best plan for a cluster with slowdowns: newly planned, or the healthy cluster's plan continued.

    `planned` plans a cluster; `around` is a second planner for clusters with slow ranks. Slowdowns within a
    step are ignored in planning; those of some steps are planned for as if they lasted. Without slowdowns the
    answer is the healthy cluster's plan.
    """
    with_slowdowns(cluster, slow.slowdowns)  # refuses what the cluster has not before anything is planned
    if slow.sequences:
        raise BadInputError(
            "plan `slow=`: lengths of sequences suit one plan's microbatches; give them to simulate"
        )
    lasting = [slowdown for slowdown in slow.slowdowns if not slowdown.seconds]
    hurt = with_slowdowns(cluster, lasting)
    healthy = planned(cluster)
    if slow.is_nothing:
        return healthy
    unchanged = replayed(healthy.forecast.plan, slow, hwdb)
    anew = _anew(hurt, planned, around)
    # The healthy cluster, at the clocks that limits on power leave.
    own = replace(anew.forecast.plan.cluster, health=cluster.health, network=cluster.network)
    plan = replace(anew.forecast.plan, cluster=own)
    best = replayed(plan, slow, hwdb)
    changed = best.document.step_s < unchanged.document.step_s
    if not changed:
        best = unchanged
    section = best.document.slow
    if section is None:  # `replayed` always writes one
        raise AssertionError
    healthy_s, now = healthy.document.step_s, anew.forecast.plan.cluster
    section = section.with_fields(
        healthy_step_s=healthy_s,
        slowdown=(best.document.step_s + section.pause_step_s) / healthy_s,
        lossless_bound_step_s=lossless_bound_s(healthy_s, now, plan.job.precision.compute),
        unchanged_step_s=unchanged.document.step_s,
    )
    written = best.document.with_fields(slow=section)
    times = {"unchanged_step_s": unchanged.document.step_s, "step_s": best.document.step_s}
    times["gain"] = times["unchanged_step_s"] / times["step_s"]
    verdict = (PLANNED_ANEW if changed else STAY)(**times)
    searched = anew.document if changed else healthy.document
    taken = {key: getattr(searched, key) for key in _SEARCH}
    if searched.power and anew.document.power:  # next to the cluster as it runs now
        beside = {key: getattr(anew.document.power, key) for key in ("reference", "tried", "curve")}
        taken["power"] = searched.power.with_fields(**beside)
    # Of the cluster as it runs now, whichever of the two plans is shown.
    if lasting == list(slow.slowdowns) and anew.document.lower_bound_step_s <= best.document.step_s:
        taken |= {key: getattr(anew.document, key) for key in _BOUNDS}
    written = written.with_fields(**taken).with_findings([*slow_findings(written), verdict])
    return replace(best, document=written)
