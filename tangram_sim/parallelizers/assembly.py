"""Builds partial plans from chosen runs: menus for a request, priced partial plans, their Pareto set."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tangram_sim.cost.collectives import transfer_s
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.inner_cuts import balanced_cuts
from tangram_sim.parallelizers.laws import first_broken
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.parallelizers.menu import Menu, Run
from tangram_sim.training.plan import LayoutRun, PartialPlan, passage
from tangram_sim.training.schedules import counted_beside, holding, in_flight
from tangram_sim.training.stage.setting import Setting


def inner_gpus(request: Request, depth: int) -> int:
    """GPUs of one inner stage."""
    return request.island.gpus // depth


def depths_allowed(request: Request) -> tuple[int, ...]:
    """Inner pipeline depths: divisors of a node's GPUs on a single node, else only 1."""
    return divisors(request.island.gpus_per_node) if request.island.nodes == 1 else (1,)


def menu_of(request: Request, depth: int, layouts: Iterable[Layout]) -> Menu:
    """The menu of layouts (pp = 1) for inner stages of a pipeline of `depth`.

    Leaves out layouts that the constraints forbid; invalid layouts become objections. Raises InfeasibleError
    where the GPU has no units for the dtype.
    """
    model, job, island = request.slice.model, request.job, request.island
    part = island if depth == 1 else island.part(island.nodes, island.gpus_per_node // depth)
    rates = Setting(model, part, job, request.microbatch, (), request.hwdb).rates
    admitted, objections = list[Layout](), list[tuple[Layout, str]]()
    for layout in dict.fromkeys(layouts):
        outer = deep(layout, depth)
        if not request.constraints.allows(outer, request.microbatch):
            continue
        broken = first_broken(model, job.seq, outer, request.microbatch, rates.fused_attention)
        if broken:
            objections.append((outer, str(broken)))
        else:
            admitted.append(layout)
    setting = Setting(model, part, job, request.microbatch, tuple(admitted), request.hwdb)
    rate = island.intra.bytes_per_s * request.hwdb.link_efficiency(island.intra).value * part.gpus
    hop = transfer_s(request.boundary_bytes, rate, island.intra.latency_s) if depth > 1 else 0.0
    return Menu(setting, hop, depth, tuple(objections))


def partial_of(
    request: Request, menu: Menu, cuts: Sequence[int], stages: Sequence[Sequence[Run]]
) -> PartialPlan:
    """The priced partial plan with inner stages cut at `cuts`, each of consecutive runs."""
    priced = tuple(menu.stage(runs) for runs in stages)
    held = holding(request.job.schedule, request.microbatches)
    behind = min(
        held.most_behind(stage.in_flight_limit(), beside)
        for stage, beside in zip(priced, counted_beside(request.job.schedule, menu.depth), strict=True)
    )
    runs = _joined([run for stage in stages for run in stage])
    layouts = [deep(menu.layouts[index], menu.depth) for _, _, index in runs]
    usual = len(runs) == 1 and (
        menu.depth == 1
        or tuple(cuts) == balanced_cuts(menu.pricer, request.slice.start, request.slice.stop, menu.depth)
    )
    named = () if usual else zip(runs, layouts, strict=True)
    return PartialPlan(
        start=request.slice.start,
        stop=request.slice.stop,
        island=request.island.name,
        nodes=request.island.nodes,
        layout=layouts[0],
        microbatch=request.microbatch,
        cuts=tuple(cuts),
        stages=priced,
        hop_s=menu.hop_s,
        stages_behind=behind,
        boundary_bytes=request.boundary_bytes,
        measured=request.island.gpu.measured,
        runs=tuple(LayoutRun(low, high, layout) for (low, high, _), layout in named),
    )


def held_in(request: Request, depth: int, behind: int) -> list[int]:
    """Number of microbatches that each inner stage holds in flight when `behind` stages follow the slice."""
    others = [behind + beside for beside in counted_beside(request.job.schedule, depth)]
    return [in_flight(request.job.schedule, other, other + 1, 1, request.microbatches) for other in others]


def deep(layout: Layout, depth: int) -> Layout:
    """The layout with `depth` inner stages (pp)."""
    return layout if depth == 1 else replace(layout, pp=depth)


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Runs with adjacent runs of the same strategy merged."""
    joined: list[Run] = []
    for start, stop, index in runs:
        if joined and joined[-1][2] == index:
            joined[-1] = (joined[-1][0], stop, index)
        else:
            joined.append((start, stop, index))
    return joined


def undominated(request: Request, partials: Sequence[PartialPlan]) -> list[PartialPlan]:
    """Partial plans within the request's pace that are not dominated by another one."""
    from tangram_sim.parallelizers.kernels import pareto

    partials = [partial_plan for partial_plan in partials if partial_plan.slowest_s <= request.pace_s]
    if not partials:
        return []
    costs = []
    for partial in partials:
        stages = partial.stages
        latency, forward, closing = passage(
            [stage.forward_s for stage in stages],
            [stage.backward_s for stage in stages],
            [stage.gradient_sync_s + stage.optimizer_s for stage in stages],
            partial.hop_s,
        )
        copies = partial.end_copies if request.slice.lone_end else 0
        costs.append(
            (partial.slowest_s, latency, forward, closing, len(stages), copies, -partial.stages_behind)
        )
    kept = pareto(np.array(costs, dtype=np.float64), np.ones(len(costs), dtype=bool))
    return [partial for partial, keep in zip(partials, kept, strict=True) if keep]
