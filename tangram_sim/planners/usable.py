"""Islands that a planner may use: not excluded by the user, and with units for the job's number format."""

from collections.abc import Sequence

from tangram_sim.clusters import Cluster, Island
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.hwdb import Hwdb
from tangram_sim.placement.islands import DEFAULT_TOLERANCES, find_islands
from tangram_sim.planners.api import SearchOptions
from tangram_sim.training.job import Job

AS_ASKED = declare("island-left-out-as-asked", Severity.NOTE, "{island} ({gpu}) left out as asked")
NO_UNITS = declare("island-without-units", Severity.NOTE, "{island} ({gpu}) left out: no {dtype} units")


def usable_islands(
    cluster: Cluster, job: Job, hwdb: Hwdb, wishes: SearchOptions
) -> tuple[tuple[Island, ...], list[Finding]]:
    """Islands the planner may use, and findings on those it may not.

    Raises InfeasibleError when none is left, UnknownNameError for names in `order` or `exclude` that are not
    islands.
    """
    islands = find_islands(
        cluster, job.precision.compute, wishes.tolerances or DEFAULT_TOLERANCES, hwdb, job.stack
    )
    names = [island.name for island in islands]
    for wish, given in (("order", wishes.order), ("exclude", wishes.exclude)):
        for name in given:
            if name not in names:
                raise unknown_name("island", name, names, _hint(wish, name, islands))
    both = sorted(set(wishes.order) & set(wishes.exclude))
    if both:
        raise BadInputError(f"`order=` and `exclude=` both name {', '.join(both)}; drop it from one of them")
    if len(set(wishes.order)) != len(wishes.order):
        raise BadInputError(f"`order=` names an island twice: {','.join(wishes.order)}; name each once")
    findings, usable = list[Finding](), list[Island]()
    for island in islands:
        if island.name in wishes.exclude or (wishes.order and island.name not in wishes.order):
            findings.append(AS_ASKED(island=island.name, gpu=island.gpu.name))
        elif not island.gpu.peak_flop_per_s(job.precision.compute):
            findings.append(NO_UNITS(island=island.name, gpu=island.gpu.name, dtype=job.dtype))
        else:
            usable.append(island)
    if not usable:
        why = "; ".join(map(str, findings))
        raise InfeasibleError(f"no island of {cluster.name} is left to plan on: {why}")
    return tuple(usable), findings


def _hint(wish: str, name: str, islands: Sequence[Island]) -> str:
    """Advice for a name that is not an island: the islands with such GPUs, if any."""
    held = [
        f"{island.name} ({island.gpu.name})"
        for island in islands
        if name and name.lower() in island.gpu.name.lower()
    ]
    which = f" Such GPUs are in {', '.join(held)}." if held else ""
    return f"`{wish}=` takes names that `tangram islands` prints.{which}"
