"""The contract of every parallelizer, as a check that third parties run on their own parallelizers.

In a plug-in's tests, with any test runner:

    from tangram_sim.parallelizers.contract import check_parallelizer

    def test_contract():
        check_parallelizer(MyParallelizer(), [request, another_request])

Give requests of several kinds: a part of a node, several nodes, one that fits easily, one that fits barely,
one that does not fit. See `tangram_sim.parallelizers.api.Request`.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

from tangram_sim.errors import InfeasibleError
from tangram_sim.layers.atoms import Slice
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Answer, Parallelizer, Request
from tangram_sim.training.job import RECIPES
from tangram_sim.training.plan import UNLIMITED, PartialPlan
from tangram_sim.training.schedules import counted_beside, in_flight

_ROUNDING = 1e-9
_REJECTIONS_READ = 200


def check_parallelizer(parallelizer: Parallelizer, requests: Iterable[Request]) -> None:
    """Check a parallelizer's contract on each request; raises AssertionError naming the broken clause.

    1. Equal requests get equal answers, also from a new instance (constructed without arguments).
    2. A partial plan covers the requested slice, satisfies the user's constraints, and occupies at most
       the island's GPUs; `reprice` (for one layout: `price`) of its decisions gives the same partial plan.
       Runs of layers with layouts of their own tile the slice and occupy the same GPUs.
    3. `stages_behind` is the largest number at which every inner stage fits its memory.
    4. No partial plan is dominated by another; no layout is given twice.
    5. Every layout considered is in the answer, dominated, or rejected with a reason (and its numbers,
       when memory is the reason); pricing a rejected layout says that it does not fit.
    6. Infeasible is an answer: a GPU without the dtype gives a rejection, not an exception.
    7. Prices follow the request: longer sequences, larger microbatches and longer slices are not
       cheaper; fewer microbatches per step never fit worse.
    8. Slices requested together get the answers they get one by one (but for rounding), and no partial
       plan takes less than `least_seconds` of its atoms: whole searches are pruned by it.
    """
    asked = 0
    for request in requests:
        asked += 1
        answer = parallelizer.parallelize(request)
        _check_repeatable(parallelizer, request, answer)
        _check_together(parallelizer, request, answer)
        for partial in answer.partials:
            _check_partial(parallelizer, request, partial)
            _check_stages_behind(request, partial)
        _check_pareto(request, answer)
        _check_accounted(parallelizer, request, answer)
        _check_missing_dtype(parallelizer, request)
        _check_least(parallelizer, request, answer)
        for partial in answer.partials:
            _check_follows_question(parallelizer, request, partial)
    _require(asked > 0, "no request given: nothing was checked")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(f"parallelizer contract: {message}")


def _where(request: Request) -> str:
    return (
        f"{request.slice.model.name}[{request.slice.start}:{request.slice.stop}] on "
        f"{request.island.nodes} x {request.island.gpus_per_node} {request.island.gpu.name}, "
        f"microbatch {request.microbatch}"
    )


def _check_repeatable(parallelizer: Parallelizer, request: Request, answer: Answer) -> None:
    again, elsewhere = parallelizer.parallelize(request), type(parallelizer)().parallelize(request)
    for other, who in ((again, "the same instance"), (elsewhere, "a new instance")):
        _require(_same(other, answer), f"{who} answers the same question differently ({_where(request)})")


def _same(answer: Answer, other: Answer) -> bool:
    return (
        answer.partials == other.partials
        and (answer.considered, answer.dominated) == (other.considered, other.dominated)
        and len(answer.rejected) == len(other.rejected)
    )


def _alike(one: Any, other: Any) -> bool:
    """Whether two answers are equal except for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_ROUNDING)
    if isinstance(one, Answer) and isinstance(other, Answer):
        alike = _alike(one.partials, other.partials) and len(one.rejected) == len(other.rejected)
        return alike and (one.considered, one.dominated) == (other.considered, other.dominated)
    if is_dataclass(one) and type(one) is type(other):
        return all(_alike(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def _check_together(parallelizer: Parallelizer, request: Request, answer: Answer) -> None:
    if type(parallelizer).parallelize_many is Parallelizer.parallelize_many:
        return  # one by one
    part, asked, alone = request.slice, [request], [answer]
    if len(part) > 1:
        asked.insert(0, replace(request, slice=Slice(part.model, part.start, part.stop - 1)))
        alone.insert(0, parallelizer.parallelize(asked[0]))
    together = type(parallelizer)().parallelize_many(asked)
    _require(
        len(together) == len(alone) and all(map(_alike, together, alone)),
        f"parallelize_many answers otherwise than parallelize ({_where(request)})",
    )


def _check_least(parallelizer: Parallelizer, request: Request, answer: Answer) -> None:
    least, part = parallelizer.least_seconds(request), request.slice
    _require(
        least.shape == (part.model.layers + 2,) and bool((least >= 0).all()),
        f"least_seconds must be a number of GPU-seconds for every atom, 0 or more ({_where(request)})",
    )
    least_s = float(least[part.start : part.stop].sum()) * request.microbatch / request.island.gpus
    for partial in answer.partials:
        _require(
            partial.slowest_s >= least_s * (1 - _ROUNDING),
            f"{partial.layout} takes {partial.slowest_s:g} s for {_where(request)}, less than the "
            f"{least_s:g} s that least_seconds gives its atoms",
        )


def _check_partial(parallelizer: Parallelizer, request: Request, partial: PartialPlan) -> None:
    layout, island = partial.layout, request.island
    what = f"{layout} for {_where(request)}"
    _require(
        (partial.start, partial.stop) == (request.slice.start, request.slice.stop),
        f"{what} covers atoms [{partial.start}, {partial.stop})",
    )
    _require(layout.gpus <= island.gpus, f"{what} occupies {layout.gpus} GPUs of {island.gpus}")
    _require(partial.nodes <= island.nodes, f"{what} occupies {partial.nodes} nodes of {island.nodes}")
    _require(
        (partial.island, partial.microbatch) == (island.name, request.microbatch),
        f"{what} names island {partial.island!r} and microbatch {partial.microbatch}",
    )
    for used in (layout, *(run.layout for run in partial.runs)):
        _require(request.constraints.allows(used, request.microbatch), f"{what} breaks {request.constraints}")
    _check_runs(partial, what)
    _require(
        len(partial.stages) == layout.pp == len(partial.cuts) - 1
        and (partial.cuts[0], partial.cuts[-1]) == (partial.start, partial.stop)
        and all(low < high for low, high in pairwise(partial.cuts)),
        f"{what} has pp={layout.pp}, {len(partial.stages)} inner stages and cuts {partial.cuts}",
    )
    for stage in partial.stages:
        figures = (
            stage.backward_weight_s,
            stage.gradient_sync_s,
            stage.optimizer_s,
            stage.static_bytes,
            stage.activation_bytes,
            stage.transient_bytes,
        )
        _require(
            all(math.isfinite(figure) and figure >= 0 for figure in figures)
            and 0 < stage.forward_s < math.inf
            and stage.backward_weight_s <= stage.backward_s < math.inf,
            f"{what} has a negative or infinite price, or more weight gradient than backward: {stage}",
        )
    _require(partial.hop_s >= 0 and partial.boundary_bytes > 0, f"{what} has no boundary: {partial}")
    priced = parallelizer.reprice(request, partial)
    _require(priced == partial, f"price({what}) is {priced}, the answer holds {partial}")
    if not partial.runs:
        _require(parallelizer.price(request, layout) == partial, f"price({what}) and reprice differ")


def _check_runs(partial: PartialPlan, what: str) -> None:
    runs, layout = partial.runs, partial.layout
    if not runs:
        return
    ends = [partial.start, *(run.stop for run in runs)]
    _require(
        ends[:-1] == [run.start for run in runs] and ends[-1] == partial.stop and ends == sorted(set(ends)),
        f"{what} has runs of layers that do not tile it: {runs}",
    )
    _require(
        runs[0].layout == layout
        and all((run.layout.gpus, run.layout.pp) == (layout.gpus, layout.pp) for run in runs),
        f"{what} has runs on other GPUs or at another depth: {runs}",
    )


def _fits(request: Request, partial: PartialPlan, behind: int) -> bool:
    others = counted_beside(request.job.schedule, len(partial.stages))
    for stage, beside in zip(partial.stages, others, strict=True):
        later = behind + beside
        held = in_flight(request.job.schedule, later, later + 1, 1, request.microbatches)
        if stage.peak_bytes(held) > stage.capacity_bytes * (1 + _ROUNDING):
            return False
    return True


def _check_stages_behind(request: Request, partial: PartialPlan) -> None:
    behind, what = partial.stages_behind, f"{partial.layout} for {_where(request)}"
    _require(behind >= 0, f"{what} is in the answer with stages_behind={behind}: it never fits")
    most = min(behind, request.microbatches)  # nothing changes once all microbatches are in flight
    _require(_fits(request, partial, most), f"{what} does not fit with {behind} stages behind")
    if behind < UNLIMITED:
        _require(
            not _fits(request, partial, behind + 1), f"{what} still fits with {behind + 1} stages behind"
        )


def _criteria(request: Request, partial: PartialPlan) -> tuple[float, ...]:
    forward = sum(stage.forward_s for stage in partial.stages) + partial.hop_s * (len(partial.stages) - 1)
    return (
        partial.slowest_s,
        partial.latency_s,
        forward,
        partial.tail_s,
        len(partial.stages),
        -partial.stages_behind,
        partial.end_copies if request.slice.lone_end else 0,
    )


def _check_pareto(request: Request, answer: Answer) -> None:
    found = [
        (
            (str(partial.layout), partial.runs, partial.cuts if partial.runs else ()),
            _criteria(request, partial),
        )
        for partial in answer.partials
    ]
    _require(
        len({layout for layout, _ in found}) == len(found),
        f"a layout is answered twice for {_where(request)}",
    )
    for layout, costs in found:
        for other, others in found:
            worse = all(
                mine >= theirs * (1 + _ROUNDING) for mine, theirs in zip(costs[:4], others[:4], strict=True)
            )
            worse = worse and all(mine >= theirs for mine, theirs in zip(costs[4:], others[4:], strict=True))
            _require(
                other == layout or not worse,
                f"{layout} is in the answer for {_where(request)}, though {other} beats it in everything",
            )


def _check_accounted(parallelizer: Parallelizer, request: Request, answer: Answer) -> None:
    total = len(answer.partials) + answer.dominated + len(answer.rejected)
    _require(
        answer.considered == total,
        f"{answer.considered} layouts considered for {_where(request)}, but {len(answer.partials)} answered, "
        f"{answer.dominated} dominated and {len(answer.rejected)} rejected",
    )
    _require(
        bool(answer.partials) or len(answer.rejected) > 0,
        f"no partial plan and no reason for {_where(request)}",
    )
    answered = {partial.layout for partial in answer.partials if not partial.runs}
    for rejection in answer.rejected[:_REJECTIONS_READ]:
        what = f"{rejection.layout} for {_where(request)}"
        _require(bool(rejection.reason.strip()), f"{what} is rejected without a reason")
        _require(rejection.layout not in answered, f"{what} is both answered and rejected")
        _require(
            rejection.needed_bytes == 0 or rejection.needed_bytes > rejection.capacity_bytes,
            f"{what} is rejected for {rejection.needed_bytes:.0f} bytes of {rejection.capacity_bytes:.0f}",
        )
        _require(
            not _priced(parallelizer, request, rejection.layout), f"{what} is rejected, yet price() fits it"
        )
    larger = Layout(dp=2 * request.island.gpus)
    _require(
        not _priced(parallelizer, request, larger),
        f"price() accepts {larger.gpus} GPUs on {request.island.gpus} ({_where(request)})",
    )


def _priced(parallelizer: Parallelizer, request: Request, layout: Layout) -> PartialPlan | None:
    """The partial plan of a layout; None where the layout fits nowhere."""
    return _fitting(lambda: parallelizer.price(request, layout))


def _fitting(price: Callable[[], PartialPlan]) -> PartialPlan | None:
    try:
        partial = price()
    except InfeasibleError:
        return None
    return partial if partial.stages_behind >= 0 else None


def _check_missing_dtype(parallelizer: Parallelizer, request: Request) -> None:
    gpu = request.island.gpu
    for dtype, recipe in RECIPES.items():
        if all(gpu.peak_flop_per_s(column) for column in (recipe.precision.compute, recipe.precision.vector)):
            continue
        answer = parallelizer.parallelize(replace(request, job=replace(request.job, dtype=dtype)))
        _require(
            not answer.partials and len(answer.rejected) > 0,
            f"{gpu.name} has no {dtype} units: the answer must be empty, with a reason",
        )
        return


def _check_follows_question(parallelizer: Parallelizer, request: Request, partial: PartialPlan) -> None:
    layout, job, part = partial.layout, request.job, request.slice
    if layout.pp > 1:  # inner stages are cut anew for another question, so single stages do not compare
        return
    now, what = partial.stages[0], f"{layout} for {_where(request)}"

    def first_stage(**changes: object) -> PartialPlan | None:
        other = replace(request, **changes)  # type: ignore[arg-type]  # fields by name
        return _fitting(lambda: parallelizer.reprice(other, partial))

    longer = first_stage(job=replace(job, seq=2 * job.seq))
    _require(
        longer is None or longer.stages[0].forward_s > now.forward_s,
        f"{what}: sequences of {2 * job.seq} tokens are no slower than of {job.seq}",
    )
    larger = first_stage(microbatch=2 * request.microbatch)
    _require(
        larger is None
        or (
            larger.stages[0].forward_s >= now.forward_s
            and larger.stages[0].activation_bytes >= now.activation_bytes
        ),
        f"{what}: a microbatch of {2 * request.microbatch} is cheaper than one of {request.microbatch}",
    )
    if len(part) > 1:
        shorter = first_stage(slice=Slice(part.model, part.start, part.stop - 1))
        _require(
            shorter is not None
            and shorter.stages[0].forward_s <= now.forward_s * (1 + _ROUNDING)
            and shorter.stages[0].static_bytes <= now.static_bytes * (1 + _ROUNDING),
            f"{what}: the slice without its last atom is not cheaper",
        )
    fewer = first_stage(microbatches=1)
    _require(
        fewer is not None and fewer.stages_behind >= partial.stages_behind,
        f"{what}: fits worse with one microbatch per step than with {request.microbatches}",
    )
