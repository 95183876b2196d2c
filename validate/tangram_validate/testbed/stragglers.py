"""The suite `stragglers`: one rank slowed for real, remedies run for real, against what was predicted.

A pipeline with even layers, with layers moved away from the slow rank and (for the order) towards it;
replicas with even shares of microbatches, with shares by speed, and without the slow replica. Slowdowns are
over the group's own healthy run, predicted over predicted and measured over measured.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch.distributed as dist

from tangram_sim.clusters import Cluster
from tangram_sim.health import Slowdown
from tangram_sim.hwdb import Hwdb, cluster_from_dict
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.reliability.stragglers.replicas import MeasuredPipeline, split_microbatches
from tangram_sim.studies import api
from tangram_sim.studies.slow_files import Slow
from tangram_sim.studies.slow_plans import replayed
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Share, pipeline_of_shares
from tangram_validate.testbed.calibration import Calibration, calibrate, overlay_of
from tangram_validate.testbed.emulated import Speed
from tangram_validate.testbed.errors import TestbedError
from tangram_validate.testbed.launch import Ranks
from tangram_validate.testbed.network import Network, missing_means
from tangram_validate.testbed.runner import RankReport, RunReport, RunRequest, on_rank
from tangram_validate.testbed.scenario import Scenario, load_scenario
from tangram_validate.testbed.suite import WAIT_S, settle

SCENARIO = "slow-rank"
FACTORS = (1.5, 2.5)
SLOW_RANK = 1
RUNS = 5
CALIBRATIONS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """One way of running the work under a slow rank, and its step as predicted before anything runs."""

    group: str
    name: str
    factor: float  # of the slow rank; 1: nothing slow
    predicted_s: float
    requests: tuple[RunRequest, ...]  # of each rank


@dataclass(frozen=True, slots=True)
class Held:
    """A case, predicted and measured; slowdowns are over its group's healthy run."""

    case: Case
    measured_s: float
    spread: float
    predicted_slowdown: float
    measured_slowdown: float

    @property
    def error(self) -> float:
        """Predicted over measured slowdown, less 1."""
        return self.predicted_slowdown / self.measured_slowdown - 1


def run_stragglers(
    folder: Path, *, loopback: bool = False, say: Callable[[str], None] = lambda _: None
) -> tuple[Held, ...]:
    """Calibrate, predict all cases, then run them all. Raises TestbedError where no testbed can be built."""
    scenario = load_scenario(SCENARIO)
    why = missing_means()
    if why and not loopback:
        raise TestbedError(f"no testbed: {why}. Loopback mode runs everywhere: add --loopback")
    with (
        nullcontext() if loopback else Network(scenario.network) as network,
        Ranks(len(scenario.kinds), network) as ranks,
    ):
        settle(say, WAIT_S)
        # Load only adds: of several calibrations the one whose links were the least disturbed.
        found = min((calibrate(ranks, scenario) for _ in range(CALIBRATIONS)), key=_reduction_s)
        cases = list(_cases(scenario, _hwdb(scenario, found, folder)))
        measured: list[RunReport] = []
        for case in cases:
            report = _run(ranks, case)
            measured.append(report)
            say(
                f"  {case.group}, {case.name}, {case.factor:g} x: predicted {case.predicted_s:.3f} s, "
                f"measured "
                f"{report.step_s:.3f} s (spread {report.spread * 100:.1f} %)"
            )
    return _held(cases, measured)


def order_is_right(held: Sequence[Held], within: float = 0.03) -> bool:
    """Whether predictions rank the ways of each group and slowdown as measured.

    Measured times that differ by no more than the share `within` count as ties.
    """
    for held_row in held:
        for other in held:
            same = (held_row.case.group, held_row.case.factor) == (other.case.group, other.case.factor)
            told = held_row.measured_s < other.measured_s * (1 - within)
            if same and told and held_row.case.predicted_s > other.case.predicted_s:
                return False
    return True


def on_its_own_request(requests: Sequence[RunRequest]) -> RankReport | None:
    """Each rank runs its own request: they differ in the number of microbatches (task for ranks)."""
    return on_rank(requests[dist.get_rank()])


def _reduction_s(found: Calibration) -> float:
    """Rough seconds to all-reduce 1 MB once over a link of every rate, from the calibration."""
    return found.data_exposed * sum(line.latency_s + 1e6 / line.bytes_per_s for line in found.links.values())


def _held(cases: Sequence[Case], measured: Sequence[RunReport]) -> tuple[Held, ...]:
    healthy = {
        case.group: (case.predicted_s, _step_s(report))
        for case, report in zip(cases, measured, strict=True)
        if case.factor == 1
    }
    return tuple(
        Held(
            case,
            _step_s(report),
            report.spread,
            case.predicted_s / healthy[case.group][0],
            _step_s(report) / healthy[case.group][1],
        )
        for case, report in zip(cases, measured, strict=True)
    )


def _step_s(report: RunReport) -> float:
    """The quickest of all runs: work is waited for, and other work on the machine only adds."""
    return min(report.steps_s)


def _hwdb(scenario: Scenario, found: Calibration, folder: Path) -> Hwdb:
    overlay = folder / scenario.name
    overlay_of(found, scenario, overlay)
    return Hwdb.load((overlay,))


def _cases(scenario: Scenario, hwdb: Hwdb) -> Iterator[Case]:
    cluster = cluster_from_dict(scenario.cluster(), hwdb, scenario.name)
    for work, cases in zip(scenario.facts.work, (_pipelines, _replicas), strict=True):
        yield from cases(scenario, scenario.model(work.model), cluster, scenario.job(work), hwdb)


def _pipelines(scenario: Scenario, model: Model, cluster: Cluster, job: Job, hwdb: Hwdb) -> Iterator[Case]:
    ranks = cluster.gpus
    even = (model.layers // ranks,) * ranks
    plans = {cut: _cut(model, cluster, job, cut, hwdb) for cut in _cuts(model.layers, ranks)}
    healthy_s = _predicted(plans[even], 1.0, hwdb)
    yield Case("pipeline", "even layers", 1.0, healthy_s, _uniform(scenario, plans[even], 1.0))
    for factor in FACTORS:
        predicted = {cut: _predicted(plan, factor, hwdb) for cut, plan in plans.items()}
        best = min(predicted, key=lambda cut: predicted[cut])
        wrong = tuple(best[-1 - place] for place in range(ranks))
        for name, cut in (("even layers", even), ("layers moved", best), ("layers moved wrongly", wrong)):
            requests = _uniform(scenario, plans[cut], factor)
            yield Case("pipeline", f"{name} {'-'.join(map(str, cut))}", factor, predicted[cut], requests)


def _replicas(scenario: Scenario, model: Model, cluster: Cluster, job: Job, hwdb: Hwdb) -> Iterator[Case]:
    """Cases with different shares of microbatches per replica, priced as in `tangram stragglers`.

    Only the passes get slower; the rest of the step takes as long as in the healthy run.
    """
    ranks = tuple(range(cluster.gpus))
    even = (job.global_batch // len(ranks),) * len(ranks)
    item = np.ones((len(ranks), 1))

    @cache
    def healthy(replicas: int) -> MeasuredPipeline:
        """The healthy pipeline of that many replicas with even shares: seconds of passes and of the step."""
        some = replace(job, global_batch=even[0] * replicas)
        priced = api.estimate(model, cluster, some, Uniform(dp=replicas), hwdb=hwdb).document
        passes = priced.stages[0].forward_s * item, priced.stages[0].backward_s * item
        return MeasuredPipeline(*passes, 0.0, 0.0, even[0], priced.step_s)

    def case(name: str, factor: float, used: Sequence[int], counts: Sequence[int]) -> Case:
        by_rank = dict(zip(used, counts, strict=True))
        slow = np.array([[factor if rank == SLOW_RANK else 1.0] for rank in ranks])
        shares = [by_rank.get(rank, 0) for rank in ranks]
        base = healthy(len(used))
        seconds = base.changed_step_s(base.forward_s * slow, base.backward_s * slow, shares)
        requests = _by_share(scenario, model, cluster, job, used, counts, factor)
        return Case("replicas", f"{name} {'-'.join(map(str, counts))}", factor, seconds, requests)

    yield case("even shares", 1.0, ranks, even)
    for factor in FACTORS:
        speeds = [factor if rank == SLOW_RANK else 1.0 for rank in ranks]
        others = tuple(rank for rank in ranks if rank != SLOW_RANK)
        yield case("even shares", factor, ranks, even)
        by_speed = split_microbatches(speeds, job.global_batch, least=1)
        yield case("shares by speed", factor, ranks, by_speed)
        without = split_microbatches([1.0] * len(others), job.global_batch)
        yield case("without the slow replica", factor, others, without)


def _predicted(plan: Plan, factor: float, hwdb: Hwdb) -> float:
    slow = Slow((Slowdown(f"r{SLOW_RANK}", factor),))
    return replayed(plan, slow, hwdb).document.step_s


def _cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut so many layers into so many stages of one or more."""
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        for rest in _cuts(layers - first, stages - 1):
            yield (first, *rest)


def _cut(model: Model, cluster: Cluster, job: Job, cut: tuple[int, ...], hwdb: Hwdb) -> Plan:
    return api.estimate(model, cluster, job, Uniform(pp=len(cut), layers=cut), hwdb=hwdb).forecast.plan


def _uniform(scenario: Scenario, plan: Plan, factor: float) -> tuple[RunRequest, ...]:
    request = RunRequest(plan, RUNS, speeds=_speeds(scenario, factor))
    return (request,) * len(scenario.kinds)


def _by_share(
    scenario: Scenario,
    model: Model,
    cluster: Cluster,
    job: Job,
    ranks: Sequence[int],
    counts: Sequence[int],
    factor: float,
) -> tuple[RunRequest, ...]:
    """A request per rank: data parallelism over `ranks`, each going through its own number of
    microbatches.
    """
    dp = len(ranks)
    enough = replace(job, global_batch=max(counts) * dp)
    by_rank = dict(zip(ranks, counts, strict=True))
    share = Share("g0", tuple(ranks), dp, Layout(dp=dp))
    return tuple(
        RunRequest(
            Plan(
                model,
                cluster,
                enough,
                (pipeline_of_shares(by_rank.get(rank, max(counts)), (0, model.layers), ((share,),)),),
            ),
            RUNS,
            speeds=_speeds(scenario, factor),
        )
        for rank in range(len(scenario.kinds))
    )


def _speeds(scenario: Scenario, factor: float) -> tuple[Speed, ...]:
    return tuple(
        Speed(speed.flop_per_s / factor, speed.memory_bytes_per_s / factor, speed.overhead_s * factor)
        if rank == SLOW_RANK
        else speed
        for rank, speed in enumerate(scenario.speeds)
    )


def _run(ranks: Ranks, case: Case) -> RunReport:
    reports = [report for report in ranks.run(on_its_own_request, case.requests) if report is not None]
    return RunReport(case.requests[0].plan, tuple(reports), emulated=True)
