"""Simulate a plan while parts of its cluster run slow: both engines, phases of steps, windows, pauses."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, inf

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.health import FULL_SPEED, Resizing, Slowdown, Speed, slowed
from tangram_sim.hwdb import Hwdb
from tangram_sim.opgraph import OpGraph
from tangram_sim.placement.slowing import Stages, with_slowdowns
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.forecast import Forecast, forecast
from tangram_sim.studies.resizing import ResizedGroup, resized
from tangram_sim.studies.sequence_lengths import with_lengths
from tangram_sim.studies.slow_documents import SlowDocument, SlowPhase
from tangram_sim.studies.slow_files import Slow
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import LoweredPlan, lower_plan
from tangram_sim.units import DAY_S

_MOST_PHASES = 100


def stages_of(plan: Plan) -> Stages:
    """Ranks of every stage of a plan, by (pipeline, stage)."""
    return {
        (number, place): stage.ranks
        for number, pipeline in enumerate(plan.pipelines)
        for place, stage in enumerate(pipeline.stages)
    }


def slow_plan(plan: Plan, slowdowns: Sequence[Slowdown]) -> Plan:
    """The plan on the cluster with its slowdowns applied, except those that last only part of a step."""
    lasting = [slowdown for slowdown in slowdowns if not slowdown.seconds]
    return replace(plan, cluster=with_slowdowns(plan.cluster, lasting, stages_of(plan)))


def play_slow(
    plan: Plan,
    slowdowns: Sequence[Slowdown],
    hwdb: Hwdb,
    engine: str = "fast",
    sequences: Sequence[Sequence[int]] = (),
    resizing: Resizing | None = None,
) -> Forecast:
    """Simulate a plan for the healthy cluster under slowdowns, with microbatches of these sequences.

    Lasting slowdowns slow the hardware they name, and the step is priced again. A slowdown of a window within
    the step slows the passes of the stages it affects during the window, by the same factor as if it lasted.
    With `resizing` tensor-parallel groups share their columns by speed.
    """
    slow = slow_plan(plan, slowdowns)
    if resizing is not None:
        slow, _ = resized(slow, resizing, hwdb)
    windows = [slowdown for slowdown in slowdowns if slowdown.seconds]
    if not windows and not sequences:
        return forecast(slow, hwdb, engine)
    full = forecast(slow, hwdb) if sequences else None
    lowering = Lowering.of(slow, hwdb)
    lowered = lower_plan(slow, lowering)

    def paced(graph: OpGraph) -> OpGraph:
        if full is not None:
            graph = with_lengths(graph, full, sequences)
        speeds = [FULL_SPEED] * len(graph.resources)
        for window in windows:
            hurt = lower_plan(_under(slow, window), Lowering.of(_under(slow, window), hwdb))
            for resource, factor in _pass_factors(lowered, hurt):
                if factor != 1.0:
                    speeds[resource] = speeds[resource].times(_window(factor, window))
        return graph.with_speeds(speeds)

    return forecast(slow, hwdb, engine, lowering, paced)


def _under(plan: Plan, slowdown: Slowdown) -> Plan:
    """The plan with one more slowdown applied to its cluster."""
    alone = with_slowdowns(plan.cluster, [replace(slowdown, seconds=None)], stages_of(plan)).health
    was = plan.cluster.health
    merged = {
        name: tuple(sorted(_product(getattr(was, name), getattr(alone, name)).items()))
        for name in ("compute", "memory", "network")
    }
    return replace(plan, cluster=replace(plan.cluster, health=replace(was, **merged)))


def _product(a: tuple[tuple[int, float], ...], b: tuple[tuple[int, float], ...]) -> dict[int, float]:
    found = dict(a)
    for key, factor in b:
        found[key] = found.get(key, 1.0) * factor
    return found


def _pass_factors(healthy: LoweredPlan, hurt: LoweredPlan) -> Iterator[tuple[int, float]]:
    """Yields (compute stream, factor by which its passes take longer) for every stage."""
    for number, (before, after) in enumerate(zip(healthy.steps, hurt.steps, strict=True)):
        for stage in range(len(before.prices)):
            took = [
                float(
                    (step.times.forward_s + step.times.backward_input_s + step.times.backward_weight_s)[
                        stage
                    ].sum()
                )
                for step in (before, after)
            ]
            yield healthy.compute_stream(number, stage), took[1] / took[0] if took[0] else 1.0


def _window(factor: float, slowdown: Slowdown) -> Speed:
    begin, end = slowdown.seconds or (0.0, inf)
    if not begin < end:
        raise BadInputError(f"slow {slowdown.where}: seconds {[begin, end]}: an empty window; give from, to")
    return slowed(factor, begin, end)


def slow_section(
    plan: Plan, played: Forecast, slow: Slow, healthy_step_s: float, hwdb: Hwdb, engine: str = "fast"
) -> SlowDocument:
    """Document section on slowdowns and their cost; each phase of steps is simulated."""
    step_s = played.step_s
    pause_s = slow.pause.mean_s(plan.gpus_used) if slow.pause else 0.0
    groups = tuple[ResizedGroup, ...]()
    if slow.resizing is not None:
        groups = resized(slow_plan(plan, slow.slowdowns), slow.resizing, hwdb)[1]
    phases = _phases(plan, slow, hwdb, engine)
    counts = [phase.last_step + 1 - phase.first_step for phase in phases if phase.last_step is not None]
    spent_s = sum(count * phase.step_s for count, phase in zip(counts, phases, strict=False))
    return SlowDocument(
        slowdowns=list(slow.slowdowns),
        pause=slow.pause,
        healthy_step_s=healthy_step_s,
        slowdown=(step_s + pause_s) / healthy_step_s,
        lossless_bound_step_s=lossless_bound_s(
            healthy_step_s, slow_plan(plan, slow.slowdowns).cluster, plan.job.precision.compute
        ),
        pause_step_s=pause_s,
        resizing=slow.resizing,
        resized=[group.document() for group in groups],
        pruned_share=max((group.shares.pruned_share for group in groups), default=0.0),
        sequences=[list(held) for held in slow.sequences],
        phases=phases,
        traffic_step_s=spent_s / sum(counts) if counts and any(o.period_s for o in slow.slowdowns) else 0.0,
    )


def lossless_bound_s(healthy_step_s: float, cluster: Cluster, dtype: str) -> float:
    """Seconds of the healthy step x N / sum(1 / x_i) over all GPUs, each weighted by its peak: lost work must
    be computed elsewhere. A bound for the plan at hand; another may have a faster healthy step."""
    healthy = slow = 0.0
    for node, group in enumerate(cluster.node_group):
        peak = cluster.groups[group].node.gpu.peak_flop_per_s(dtype)
        for rank in range(cluster.first_rank[node], cluster.first_rank[node + 1]):
            healthy += peak
            slow += cluster.gpu_of(node, (rank,)).peak_flop_per_s(dtype)
    return healthy_step_s * healthy / slow if slow else healthy_step_s


def _phases(plan: Plan, slow: Slow, hwdb: Hwdb, engine: str) -> list[SlowPhase]:
    """Runs of steps with the same slowdowns; [] where none begins or ends.

    A step keeps the background traffic at its start; the phases end with the longest period. Also [] where a
    traffic share lasts less than a step, since few steps begin in it.
    """
    slowdowns = slow.slowdowns
    borders = {b for one in slowdowns if one.steps for b in (one.steps[0], one.steps[1] + 1)} - {0}
    period_s = max((one.period_s for one in slowdowns), default=0.0)
    shortest = [one.shortest_s for one in slowdowns if one.period_s]
    known: dict[tuple[Slowdown, ...], float] = {}
    phases: list[SlowPhase] = []
    step, time_s, before = 0, 0.0, None
    while borders or period_s:
        ahead = [border - step for border in borders if border > step]
        if period_s and time_s >= period_s:
            break
        active = tuple(
            one.at(time_s) for one in slowdowns if not one.steps or one.steps[0] <= step <= one.steps[1]
        )
        if active not in known:
            known[active] = play_slow(plan, active, hwdb, engine, slow.sequences, slow.resizing).step_s
        step_s = known[active]
        if any(least_s < step_s for least_s in shortest):
            return []
        if period_s:
            ahead.append(max(1, ceil(min(one.lasts_s(time_s) for one in slowdowns) / step_s)))
        last = step + min(ahead) - 1 if ahead else None
        if active == before:
            phases[-1] = phases[-1].with_fields(last_step=last)
        else:
            phases.append(SlowPhase(first_step=step, last_step=last, step_s=step_s))
        if len(phases) > _MOST_PHASES:
            raise BadInputError(
                f"slow: more than {_MOST_PHASES} phases; give windows of steps with fewer borders, or "
                "background traffic as means of longer times, all of it of one period"
            )
        if last is None:
            break
        step, time_s, before = last + 1, time_s + (last + 1 - step) * step_s, active
    if late := [one.where for one in slowdowns if period_s and one.steps and one.steps[0] >= step]:
        raise BadInputError(
            f"slow: {late[0]}: beside background traffic give steps from 0 to {step - 1}: those of "
            f"{_period(period_s)}"
        )
    return phases


SLOWED = declare(
    "slow",
    Severity.NOTE,
    "slow: {what}: {slowdown:.3f} times the healthy step of {healthy_step_s:seconds}",
)
SLOWED_SPREAD = declare(
    "slow-and-spread-evenly",
    Severity.NOTE,
    "slow: {what}: {slowdown:.3f} times the healthy step of {healthy_step_s:seconds}; were the lost speed "
    "spread evenly over all GPUs, {lossless_bound_step_s:seconds}",
)
FASTER_THAN_ROW = declare(
    "slow-factor-below-one",
    Severity.WARNING,
    "slow: a factor below 1 makes its rank faster than its row says: 0.5 is twice the speed, 2 half of it",
)
PAUSES = declare("slow-pauses", Severity.NOTE, "slow: pauses add {pause_step_s:seconds} to the mean step")
RESIZED = declare(
    "slow-resized",
    Severity.NOTE,
    "slow: stage {stage}, ranks {first} to {last} share columns by speed: {pace:.3f} times slower instead of "
    "{pace_before:.3f}, {pruned_share:percent1} of their columns pruned, {sent_bytes:bytes} sent",
)
PRUNED = declare(
    "slow-pruned", Severity.WARNING, "slow: pruned columns are a risk to accuracy, which is not simulated"
)
TRAFFIC = declare(
    "background-traffic",
    Severity.NOTE,
    "background traffic: other jobs use {used:percent1} of the bandwidth of {where}, {over}: the step is "
    "that of this share",
)
TRAFFIC_PLAYED = declare(
    "background-traffic-played",
    Severity.NOTE,
    "background traffic, played over {over}: steps of {least_s:seconds} to {most_s:seconds}, "
    "{mean_s:seconds} on average",
)
TRAFFIC_WITHIN_STEPS = declare(
    "background-traffic-within-steps",
    Severity.NOTE,
    "background traffic changes within a step: only its mean share is played",
)
PHASE = declare("slow-phase", Severity.NOTE, "slow: steps {first} {until}: {step_s:seconds}")


def slow_findings(document: PlanDocument) -> list[Finding]:
    """Findings on the slowdowns and their cost."""
    slow = document.slow
    if slow is None:
        return []
    named = ", ".join(
        f"{one.where} " + ("under background traffic" if one.used else f"{one.factor:g} x {one.what}")
        for one in slow.slowdowns[:4]
    )
    more = f" and {len(slow.slowdowns) - 4} more" if len(slow.slowdowns) > 4 else ""
    if slow.sequences:
        named = f"{named}{', ' if named else ''}sequences of {len(slow.sequences)} microbatches"
    kind = SLOWED_SPREAD if slow.lossless_bound_step_s < document.step_s else SLOWED
    findings = [
        kind(
            what=f"{named or 'pauses'}{more}",
            slowdown=slow.slowdown,
            healthy_step_s=slow.healthy_step_s,
            lossless_bound_step_s=slow.lossless_bound_step_s,
        )
    ]
    if any(slowdown.factor < 1 for slowdown in slow.slowdowns):
        findings.append(FASTER_THAN_ROW())
    if slow.pause_step_s:
        findings.append(PAUSES(pause_step_s=slow.pause_step_s))
    for group in slow.resized[:4]:
        findings.append(
            RESIZED(
                stage=group.stage,
                first=group.ranks[0],
                last=group.ranks[-1],
                pace=group.pace,
                pace_before=group.pace_before,
                pruned_share=group.pruned_share,
                sent_bytes=group.sent_bytes,
            )
        )
    if slow.pruned_share:
        findings.append(PRUNED())
    for one in slow.slowdowns:
        if one.used:
            mean = f"its mean over {_period(one.period_s)}" if one.period_s else "throughout"
            if one.steps:
                mean = f"in steps {one.steps[0]} to {one.steps[1]}"
            findings.append(TRAFFIC(used=1 - 1 / one.factor, where=one.where, over=mean))
    if slow.traffic_step_s:
        took = [phase.step_s for phase in slow.phases]
        times = {"least_s": min(took), "most_s": max(took), "mean_s": slow.traffic_step_s}
        over = _period(max(one.period_s for one in slow.slowdowns))
        findings.append(TRAFFIC_PLAYED(over=over, **times))
        if not any(one.steps for one in slow.slowdowns):
            return findings
    elif any(one.period_s for one in slow.slowdowns):
        findings.append(TRAFFIC_WITHIN_STEPS())
    for phase in slow.phases:
        until = "on" if phase.last_step is None else f"to {phase.last_step}"
        findings.append(PHASE(first=phase.first_step, until=until, step_s=phase.step_s))
    return findings


def _period(period_s: float) -> str:
    return "the day" if period_s == DAY_S else f"{period_s:g} s"
