"""The memory margin that plans leave free on every GPU, and what happens where no plan leaves it."""

import math
from collections.abc import Callable
from dataclasses import replace

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.findings import Severity, declare
from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.api import Found
from tangram_sim.training.job import Job
from tangram_sim.training.step.intervals import Z90, worst_residual
from tangram_sim.units import percent

NO_MARGIN = declare(
    "no-memory-margin",
    Severity.WARNING,
    "warning: no plan leaves {margin:percent1} of the memory free, what the upper end of the peak's interval "
    "needs; this one may run out of memory (`memory_margin=0` asks for such plans at once)",
)
LARGEST = 0.9  # of the memory: more would leave less than the driver's context


def auto_margin(cluster: Cluster, job: Job, hwdb: Hwdb) -> float:
    """Share of memory to leave free for the error of predicted peaks.

    Under a fitted stack one peak in twenty exceeds the prediction by a factor above exp(1.645 r): 1 -
    exp(-1.645 r) is left free. Stacks never fitted have larger errors; the interval of the peak covers those.
    """
    known = [
        group.node.gpu for group in cluster.groups if group.node.gpu.peak_flop_per_s(job.precision.compute)
    ]
    gpus = known or [group.node.gpu for group in cluster.groups]
    return 1.0 - math.exp(-Z90 * worst_residual(gpus, job, hwdb).memory_plan)


def require_margin(margin: float | None) -> None:
    """Raise BadInputError unless the margin is None or a share of memory from 0 to LARGEST."""
    if margin is not None and not 0.0 <= margin <= LARGEST:
        raise BadInputError(
            f"`memory_margin={margin:g}`: give auto or a share of the memory to leave free, 0 to "
            f"{LARGEST:g}, e.g. 0.1"
        )


def kept(
    search: Callable[[Hwdb], Found], cluster: Cluster, job: Job, hwdb: Hwdb, margin: float | None
) -> tuple[Found, float]:
    """(what `search` finds with `margin` of memory left free, that margin); margin None: `auto_margin`.

    A plan that fits only without the default margin is returned with a warning and a margin of 0. Where only
    a margin given by the user prevents a plan, raises InfeasibleError that says so.
    """
    free = auto_margin(cluster, job, hwdb) if margin is None else margin
    if not free:
        return search(hwdb), 0.0
    try:
        return search(hwdb.filled_to(1.0 - free)), free
    except InfeasibleError:
        found = search(hwdb)  # says why not where the memory is too small with and without a margin
        if margin is not None:
            raise InfeasibleError(
                f"no plan leaves {percent(free, 1)} of every GPU's memory free; without a margin there is "
                f"one of {found.ranked[0].step_s:.4g} s: `memory_margin=0`"
            ) from None
        return replace(found, findings=[NO_MARGIN(margin=free), *found.findings]), 0.0
