"""Number formats to plan with under `dtype=auto`, given that old GPUs lack bf16."""

from dataclasses import replace

from tangram_sim.clusters import Cluster
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS
from tangram_sim.training.job import MOST_SEQUENCES, Job, require_whole
from tangram_sim.training.schedules import schedule_named

_BETTER, _OLD = "bf16", "fp16"


def resolve(job: Job, cluster: Cluster, wishes: SearchOptions | None = None) -> Job:
    """The job with dtype `auto` settled: bf16 if every group that could be used has it, else fp16.

    Raises UnknownNameError for schedules not installed, BadInputError for an impossible global batch.
    """
    schedule_named(job.schedule)
    require_whole("global_batch", job.global_batch, MOST_SEQUENCES)
    if job.dtype == "auto":
        lacking = _lacking(cluster, wishes or SearchOptions())
        return replace(job, dtype=_OLD if any(lacking) else _BETTER)
    return job


def formats(job: Job, cluster: Cluster, wishes: SearchOptions | None = None) -> tuple[Job, ...]:
    """The jobs that dtype `auto` stands for: fp16 on all GPUs, bf16 without the old ones.

    One job where a dtype is given, where all or none of the usable GPUs have bf16, and where the frameworks
    requested have only one of the formats. An `order`, which may leave islands idle, gets the same formats as
    the search without it. Errors as `resolve`.
    """
    wishes, settled = wishes or SearchOptions(), resolve(job, cluster, wishes)
    lacking = _lacking(cluster, wishes)
    if job.dtype != "auto" or all(lacking) or not any(lacking):
        return (settled,)
    both = (settled, replace(settled, dtype=_BETTER))
    spoken = {dtype for name in wishes.frameworks for dtype in FRAMEWORKS[name].dtypes}
    able = tuple(item for item in both if not spoken or item.dtype in spoken)
    return able or (settled,)


def _lacking(cluster: Cluster, wishes: SearchOptions) -> list[bool]:
    """For every usable group (all groups, if none is usable), whether its GPUs lack bf16."""
    usable = [group.node.gpu for group in cluster.groups if _could_be_used(group.name, wishes)]
    usable = usable or [group.node.gpu for group in cluster.groups]
    return [not gpu.peak_flop_per_s(_BETTER) for gpu in usable]


def _could_be_used(group: str, wishes: SearchOptions) -> bool:
    """Whether `order` and `exclude` allow (a piece of) a node group; joint islands list their groups."""
    named = [name.split("+") for name in wishes.order]
    ordered = not named or any(part.split(".")[0] == group for parts in named for part in parts)
    return ordered and not any(group in name.split("+") for name in wishes.exclude)
