"""The testbed suite: calibrate a testbed, predict plans, then run them, and keep everything.

Order matters and is kept: scenario file, microbenchmarks, all predictions (written down), runs. A run never
reads a prediction.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tangram_sim.errors import InfeasibleError, TangramError, unknown_name
from tangram_sim.hwdb import Hwdb, cluster_from_dict
from tangram_sim.models import Model
from tangram_sim.planners.uniform.layouts import Uniform, chunk_bounds
from tangram_sim.studies import api
from tangram_sim.studies.results import Result
from tangram_sim.training.job import Job
from tangram_validate.testbed import overlap
from tangram_validate.testbed.calibration import Calibration, calibrate, overlay_of
from tangram_validate.testbed.errors import TestbedError
from tangram_validate.testbed.launch import Ranks
from tangram_validate.testbed.network import Network, missing_means
from tangram_validate.testbed.runner import RunReport, RunRequest, run_plan
from tangram_validate.testbed.scenario import PlanIn, Scenario, load_scenario
from tangram_validate.testbed.scoring import Point

SUITES: dict[str, tuple[str, ...]] = {
    "minute": ("two-speeds",),
    "small": ("two-speeds", "three-islands", "wide-and-narrow", "eight-ranks", "pair"),
    "full": ("two-speeds", "three-islands", "wide-and-narrow", "eight-ranks", "pair", "real-pair"),
}
RUNS = {"minute": 3, "small": 3, "full": 5}
MOST_PLANS = {"minute": 5}
MOST_TIED = 0.02  # of a step: runs that scatter more were disturbed, which excuses no wrong order
MOST_LOAD = 1.0  # running processes per core; above it runs wait for a while
WAIT_S, WAIT_AGAIN_S = 45.0, 4.0  # for real kernels; timed waits care little, their runs begin at once


@dataclass(frozen=True)
class Candidate:
    """A plan and its prediction, made before anything ran."""

    scenario: str
    model: str
    global_batch: int
    name: str
    result: Result
    predicted_s: float  # of a step

    @property
    def group(self) -> str:
        """Plans of one group do the same work on the same cluster."""
        return f"{self.scenario}/{self.model}/{self.global_batch}"


@dataclass(frozen=True)
class Outcome:
    """A plan, predicted and measured."""

    candidate: Candidate
    report: RunReport
    load: float  # one-minute load average when its runs began
    emulated: bool

    @property
    def waiting(self) -> float:
        """Share of the step that the ranks used spend in bubbles and exposed communication."""
        ranks, stages = self.report.ranks, range(len(self.report.plan.pipelines[0].stages))
        size = {stage: sum(rank.stage == stage for rank in ranks) for stage in stages}
        busy = sum(self.report.of_stage(stage, "compute_s") * size[stage] for stage in stages)
        return max(0.0, 1 - busy / (len(ranks) * self.report.step_s))

    @property
    def point(self) -> Point:
        """This outcome as `score` takes it."""
        null = self.report.slowest_work_s or max(
            self.report.of_stage(stage, "compute_s")
            for stage in range(len(self.report.plan.pipelines[0].stages))
        )
        spread = min(self.report.spread, MOST_TIED) * self.report.step_s
        predicted = self.candidate.predicted_s
        return Point(self.candidate.group, predicted, self.report.step_s, null, self.waiting, spread)


@dataclass
class SuiteRun:
    """The outcomes of all plans of a suite, and notes for the report."""

    suite: str
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run_suite(
    suite: str,
    folder: Path,
    *,
    loopback: bool = False,
    scenarios: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> SuiteRun:
    """Run a suite; overlays go to `folder`. Predictions of a scenario are made before any of its runs."""
    if suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    made = SuiteRun(suite)
    why = missing_means()
    if why and not loopback:
        raise TestbedError(f"no testbed: {why}. Loopback mode runs everywhere: add --loopback")
    for name in scenarios or SUITES[suite]:
        scenario = load_scenario(name)
        say(f"{scenario.name}: {len(scenario.kinds)} ranks in {len(scenario.network)} islands")
        _run_scenario(scenario, suite, folder, loopback, made, say)
    if loopback:
        made.notes.append("loopback: links are not shaped, so communication is not what was calibrated for")
    return made


def _run_scenario(
    scenario: Scenario,
    suite: str,
    folder: Path,
    loopback: bool,
    made: SuiteRun,
    say: Callable[[str], None],
) -> None:
    count = len(scenario.kinds)
    cores = () if scenario.emulated else tuple(sorted(os.sched_getaffinity(0)))
    with (
        nullcontext() if loopback else Network(scenario.network) as network,
        Ranks(count, network, cores=cores) as ranks,
    ):
        patience = 0.0 if scenario.emulated else WAIT_S
        if settle(say, patience) > MOST_LOAD * (os.cpu_count() or 1):
            patience = min(patience, WAIT_AGAIN_S)  # it does not get quiet: ask again, but not for long
        found = calibrate(ranks, scenario)
        if not scenario.emulated:
            made.notes.append(f"{scenario.name}: compute hides {found.hidden:.0%} of a gradient reduction")
        candidates = distinct(predict(scenario, found, folder / scenario.name, made.notes))
        candidates = candidates[: MOST_PLANS.get(suite, len(candidates))]
        for candidate in candidates:
            load = settle(say, patience)
            request = RunRequest(
                candidate.result.forecast.plan,
                RUNS[suite],
                speeds=scenario.speeds,
                repeats=() if scenario.emulated else scenario.repeats,
                memory=not scenario.emulated,
            )
            outcome = Outcome(candidate, run_plan(ranks, request), load, scenario.emulated)
            made.outcomes.append(outcome)
            predicted, measured = candidate.predicted_s, outcome.report.step_s
            say(
                f"  {candidate.name}: predicted {predicted:.3f} s, measured {measured:.3f} s "
                f"({(predicted / measured - 1) * 100:+.1f} %, spread {outcome.report.spread * 100:.1f} %, "
                f"waiting {outcome.waiting * 100:.0f} %)"
            )


def settle(say: Callable[[str], None], patience: float) -> float:
    """Wait until other processes leave the machine idle, at most `patience` seconds; returns the load.

    Counts processes running right now: averages remember our own last run for minutes.
    """
    cores = os.cpu_count() or 1
    begun = time.monotonic()
    while (load := _running()) > MOST_LOAD * cores and time.monotonic() - begun < patience:
        time.sleep(0.5)
    if load > MOST_LOAD * cores and patience > 0:
        say(f"  load {load:.1f} on {cores} cores: runs begin all the same; the CSV keeps the load")
    return load


def _running() -> float:
    """Runnable processes beside this one, the mean of a few looks (without /proc: the load average)."""
    path = Path("/proc/loadavg")
    if not path.exists():
        return os.getloadavg()[0]
    seen = []
    for _ in range(8):
        seen.append(int(path.read_text().split()[3].split("/")[0]) - 1)
        time.sleep(0.01)
    return sum(seen) / len(seen)


def predict(scenario: Scenario, found: Calibration, overlay: Path, notes: list[str]) -> Iterable[Candidate]:
    """Every plan of the scenario with its prediction, from the overlay that calibration gave."""
    extra = overlay_of(found, scenario, overlay)
    hwdb = Hwdb.load((overlay,))
    facts = scenario.cluster()
    for part in (*facts["nodes"], *facts["network"]["between"]):
        part |= {key: value for key, value in extra.items() if (key == "latency_us") == ("groups" in part)}
    cluster = cluster_from_dict(facts, hwdb, scenario.name)
    for work in scenario.facts.work:
        model, job = scenario.model(work.model), scenario.job(work)
        made = [(name, _planned(name, model, cluster, job, hwdb)) for name in work.planners]
        for plan in work.plans:
            try:
                made.append(
                    (plan.name, _estimated(plan, model, cluster, scenario.job(work, plan.schedule), hwdb))
                )
            except TangramError as error:
                notes.append(f"{scenario.name}: {plan.name}: {error}")
        for name, result in made:
            seconds = result.document.step_s
            if found.hidden < 1:
                seconds = overlap.step_s(result.forecast.plan, seconds, found.hidden, hwdb)
            yield Candidate(scenario.name, model.name, work.global_batch, name, result, seconds)


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Every plan once: where a planner's is one of the written ones, both names stand for one run."""
    found: dict[tuple[str, Any], Candidate] = {}
    for candidate in candidates:
        key = (candidate.group, candidate.result.forecast.plan)
        known = found.get(key)
        found[key] = candidate if known is None else replace(known, name=f"{known.name} = {candidate.name}")
    return list(found.values())


def _planned(planner: str, model: Model, cluster: Any, job: Job, hwdb: Hwdb) -> Result:
    """A planner's plan: `tangram`, or `uniform`, the best even layout over all ranks."""
    from tangram_sim.parallelizers.api import Constraints
    from tangram_sim.planners.api import SearchOptions

    if planner == "tangram":
        # gloo on CPU overlaps nothing of ZeRO or sequence parallelism: see the docs.
        fixed = (("cp", 1), ("ep", 1), ("zero_stage", 0))
        constraints = Constraints(fixed, ("none",), 0, False)
        return api.plan(model, cluster, job, wishes=SearchOptions(constraints=constraints), hwdb=hwdb)
    if planner != "uniform":
        raise unknown_name("planner", planner, ("tangram", "uniform"))
    found = []
    gpus = cluster.gpus
    for pp in (n for n in range(1, gpus + 1) if gpus % n == 0 and n <= model.layers):
        for micro in (1, 2, 4):
            try:
                found.append(
                    api.estimate(
                        model, cluster, job, Uniform(pp=pp, dp=gpus // pp, micro_batch=micro), hwdb=hwdb
                    )
                )
            except TangramError:  # degrees that do not divide the batch
                continue
    if not found:
        raise InfeasibleError(f"no uniform layout of {model.name} on {cluster.name}")
    return min(found, key=lambda result: result.document.step_s)


def _estimated(plan: PlanIn, model: Model, cluster: Any, job: Job, hwdb: Hwdb) -> Result:
    layout = Uniform(
        tp=plan.tp,
        pp=plan.pp,
        dp=plan.dp,
        vpp=plan.vpp,
        zero_stage=plan.zero_stage,
        micro_batch=plan.micro_batch,
        recompute=plan.recompute,
        layers=plan.layers,
        order=plan.order,
    )
    if plan.vpp > 1:
        job = replace(job, schedule="interleaved")
        chunk_bounds(model, layout)
    return api.estimate(model, cluster, job, layout, hwdb=hwdb)
