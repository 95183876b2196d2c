"""What limits a step and what to try next, in one sentence, from the figures of a plan document."""

from tangram_sim.studies.documents import PlanDocument, StageForecast
from tangram_sim.studies.stage_names import stage_names
from tangram_sim.units import show_bytes

_SAME = 1e-9  # relative
_NEAR = 1.05  # step over what no plan beats, from which another layout is worth asking for
_FEW = 8  # microbatches per stage from which waiting is no longer the batch's fault
_CLASSES = {
    "gemm": "matrix products",
    "attention": "attention",
    "memory": "memory-bound kernels",
    "tensor_parallel": "tensor-parallel traffic",
    "expert_parallel": "traffic between experts",
    "context_parallel": "context-parallel traffic",
    "data_parallel": "gathering sharded weights",
    "dispatch": "launching kernels",
}


def advice(document: PlanDocument) -> str:
    """`limited by ...; to go faster: ...`; for a plan that does not fit in memory, what would make it fit."""
    if not document.feasible:
        return _to_fit(document)
    limit, remedy = max(_limits(document), key=lambda item: item[0])[1:]
    return f"limited by {limit}; to go faster: {remedy}"


def _to_fit(document: PlanDocument) -> str:
    stage = max(
        document.stages,
        key=lambda stage_forecast: stage_forecast.peak_memory_bytes / stage_forecast.memory_capacity_bytes,
    )
    over = stage.peak_memory_bytes - stage.memory_capacity_bytes
    ways = []
    if stage.recompute != "full":
        ways.append("`recompute=full`")
    if stage.zero_stage < 3 and stage.dp * stage.cp > 1:
        ways.append("`zero_stage=3`")
    if stage.microbatch_per_rank > 1:
        ways.append("fewer sequences per microbatch")
    ways.append("more stages or tensor-parallel ranks")
    return (
        f"does not fit: stage {_name(document, stage)} lacks {show_bytes(over)}; to make it fit: "
        f"{', '.join(ways)}, or let `tangram plan` look"
    )


def _name(document: PlanDocument, stage: StageForecast) -> str:
    return stage_names(document.stages)[document.stages.index(stage)]


def tail_s(stage: StageForecast) -> float:
    """Seconds per step that a stage waits for gradient synchronisation, tied embedding included."""
    return stage.gradient_sync_s + stage.tied_embeddings_s


def gap_words(document: PlanDocument, bound_s: float) -> str:
    """Words for the step's gap to `bound_s`, a lower bound on some kinds of plan; others may be faster."""
    above = document.step_s / bound_s - 1.0
    if above >= -_SAME:
        return f"optimality gap {max(above, 0.0) * 100:.1f} %"
    several = len(document.pipelines) > 1
    which = f", of {len(document.pipelines)} pipelines," if several else ", which is none of these,"
    return f"this plan{which} takes {-above * 100:.1f} % less"


def _limits(document: PlanDocument) -> list[tuple[float, str, str]]:
    """(share of the step, what takes it, what to try) of every cause that can limit a step."""
    stages = document.stages
    slowest = max(stages, key=lambda stage: stage.forward_s + stage.backward_s)
    longest_tail = max(stages, key=tail_s)
    tail = min(tail_s(longest_tail) / document.step_s, 1.0)
    waits = max(document.bubble_fraction - tail, 0.0)
    busy = max(1.0 - document.bubble_fraction, 0.0)
    twice = f"`global_batch={2 * document.job.global_batch}`"
    found = [
        (
            tail,
            f"gradients on the network after the last microbatch of stage {_name(document, longest_tail)} "
            f"({tail * 100:.0f} % of the step)",
            f"a larger batch ({twice}) spreads them over more work, faster links shorten them",
        ),
        _waiting(document, waits, twice),
    ]
    share = busy * slowest.limited_by_share
    what = _CLASSES.get(slowest.limited_by, slowest.limited_by or "its kernels")
    where = f"{what} on stage {_name(document, slowest)} ({slowest.limited_by_share * 100:.0f} % of its time)"
    return [*found, (share, where, _for_kernels(document, slowest, twice))]


def _waiting(document: PlanDocument, waits: float, twice: str) -> tuple[float, str, str]:
    """(share of the step, cause, remedy) for stages that wait: too few microbatches or unequal speeds."""
    # `or 1`: pipelines of one stage wait for other pipelines alone
    fewest = min(
        (pipeline.microbatches / (len(pipeline.stages) - 1 or 1) for pipeline in document.pipelines),
        default=1.0,
    )
    words = f"waiting ({waits * 100:.0f} % of the GPUs' time)"
    if max(len(pipeline.stages) for pipeline in document.pipelines) == 1:
        return waits, f"{words} for pipelines that take longer", f"another share of the batch, or {twice}"
    if fewest < _FEW:
        few = min(pipeline.microbatches for pipeline in document.pipelines)
        schedule = " or a schedule that waits less (`schedule=zb-h1`)" if document.schedule == "1f1b" else ""
        return (
            waits,
            f"{words}, as {few} microbatches fill the stages badly",
            f"a larger batch ({twice}){schedule}",
        )
    return waits, f"{words} for slower stages", _otherwise(document)


def _for_kernels(document: PlanDocument, slowest: StageForecast, twice: str) -> str:
    if slowest.limited_by == "data_parallel":
        return f"a larger batch ({twice}), so that weights are gathered less often per sequence"
    if slowest.limited_by == "dispatch":
        return _larger_kernels(slowest, twice)
    if slowest.limited_by.endswith("_parallel"):
        return f"faster links between its GPUs, or {_otherwise(document)}"
    return _otherwise(document)


def _larger_kernels(slowest: StageForecast, twice: str) -> str:
    """Remedy where kernels are shorter than their launch: longer kernels help, faster GPUs do not."""
    split = " or less tensor parallelism" if slowest.tp > 1 else ""
    return f"a larger batch ({twice}){split} for longer kernels; faster GPUs would not help"


def _otherwise(document: PlanDocument) -> str:
    """Remedy where no cause dominates: other hardware, or a search if the layout was given by hand."""
    idle = document.gpus_total - document.gpus_used
    searched = document.partial_plans is not None or document.liveput is not None
    if not searched and document.work_bound_step_s:
        above = document.step_s / document.work_bound_step_s
        if above > _NEAR:
            return (
                f"`tangram plan` looks for another layout ({(above - 1) * 100:.0f} % above what none beats)"
            )
    beside = f" ({idle} of those there are left out)" if idle else ""
    return f"more or faster GPUs{beside}: `tangram what-if` says which pay"
