"""What each pruning policy is worth: the same question planned with policies switched on and off."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import POLICIES, Counts, SearchOptions
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.studies.number_formats import resolve
from tangram_sim.training.job import Job
from tangram_sim.units import percent

WINDOWS = (4.0, 2.0)  # fixed imbalance windows beside the automatic one


@dataclass(frozen=True, slots=True)
class Ablated:
    """One planning run: which policies were on, what it cost, how good its plan is."""

    case: str
    counts: Counts
    cpu_s: float
    step_s: float
    loads: tuple[float, float]  # the window that was in effect: of the pairs asked about
    lost: float  # at most this share of the step was lost to a fixed window


def cases() -> Iterator[tuple[str, tuple[str, ...], float]]:
    """(name, policies, window): none, policies added as in the paper, all but one each, fixed windows."""
    yield "none", (), 0.0
    for count, policy in enumerate(POLICIES[:-1], start=1):
        yield f"+ {policy}", POLICIES[:count], 0.0
    yield f"+ {POLICIES[-1]} (all)", POLICIES, 0.0
    for policy in POLICIES:
        yield f"all but {policy}", tuple(item for item in POLICIES if item != policy), 0.0
    for window in WINDOWS:
        yield f"all, window {window:g}", POLICIES, window


def ablation(model: Model, cluster: Cluster, job: Job, hwdb: Hwdb, wishes: SearchOptions) -> list[Ablated]:
    """One row per case of `cases`; the first case runs once beforehand, uncounted, to warm caches.

    Raises InfeasibleError as planning does. Single pipelines only: replication requests no partial plans.
    """
    job, wishes = resolve(job, cluster, wishes), replace(wishes, replicate=False)
    tangram(model, cluster, job, hwdb, wishes)
    return [_run(model, cluster, job, hwdb, wishes, *case) for case in cases()]


def _run(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    wishes: SearchOptions,
    case: str,
    policies: Sequence[str],
    window: float,
) -> Ablated:
    began = time.process_time()
    found = tangram(model, cluster, job, hwdb, replace(wishes, policies=tuple(policies), window=window))
    cpu_s = time.process_time() - began
    return Ablated(case, found.counts, cpu_s, found.ranked[0].step_s, found.loads, found.lost)


COLUMNS = (
    *("policies", "asked", "redundant", "imbalanced", "windowed", "infeasible"),
    *("CPU-s", "step s", "loads asked", "lost at most"),
)


def table(rows: Sequence[Ablated]) -> list[tuple[str, ...]]:
    """The cells of a table, a row per case, under COLUMNS."""
    return [
        (
            row.case,
            f"{row.counts.asked:,}",
            f"{row.counts.redundant:,}",
            f"{row.counts.imbalanced:,}",
            f"{row.counts.windowed:,}",
            f"{row.counts.infeasible:,}",
            f"{row.cpu_s:.1f}",
            f"{row.step_s:.3f}",
            f"{row.loads[0]:.2f}-{row.loads[1]:.2f}",
            percent(row.lost, 1),
        )
        for row in rows
    ]
