"""Choice of the number format of a planner's plan under `dtype=auto`, by the rules of `plan`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tangram_sim.findings import Severity, declare
from tangram_sim.planners.whole_cluster import CannotAnswerError, Price
from tangram_sim.studies.api import lower_bound
from tangram_sim.studies.format_choice import for_nothing, has_units, longest_s
from tangram_sim.studies.results import Result
from tangram_sim.units import show_seconds

FORMATS_TRIED = declare("planner-formats-tried", Severity.NOTE, "in {dtype}; {others:listed}")


def in_best_format(ask: Callable[[Price], Result], prices: Sequence[Price]) -> Result:
    """The fastest plan over number formats.

    `prices` holds the question in each, the one that suits all GPUs first. An fp16 plan whose GPUs all have
    bf16 is replaced by a bf16 plan of about the same speed. A format is skipped if its bound exceeds the best
    plan so far or time is over; each gets an even share of the time left. A plan on GPUs without units for
    its format does not count. Without any plan, raises the error of the first format.
    """
    found: list[Result] = []
    errors: list[Exception] = []
    others: list[str] = []
    for number, price in enumerate(prices):
        best = min(found, key=lambda item: item.step_s, default=None)
        dtype, left = price.job.dtype, len(prices) - number
        if best is not None:
            if price.deadline.over():
                others.append(f"{dtype} was not looked at for lack of time")
                continue
            bound_s = lower_bound(replace(best.forecast.plan, job=price.job), price.hwdb)
            if bound_s >= longest_s(best.forecast.plan, best.step_s):
                others.append(f"{dtype} takes {show_seconds(bound_s)} or more")
                continue
        share = price.deadline if left == 1 else price.deadline.share(price.deadline.left_s() / left)
        try:
            result = ask(replace(price, deadline=share))
            if not has_units(result.forecast.plan):
                raise CannotAnswerError(f"its plan is on GPUs without {dtype} units")
            found.append(result)
        except Exception as error:  # a plug-in may raise anything; a plan in another format stands
            errors.append(error)
            others.append(f"there is no plan in {dtype}")
    if not found:
        raise errors[0]
    fastest = min(found, key=lambda item: item.step_s)
    alike = [item for item in found if item.step_s <= longest_s(fastest.forecast.plan, fastest.step_s)]
    best = min(alike, key=lambda item: (for_nothing(item.forecast.plan), item.step_s))
    took = [
        f"{item.forecast.plan.job.dtype} takes {show_seconds(item.step_s)}"
        for item in found
        if item is not best
    ]
    tried = FORMATS_TRIED(dtype=best.forecast.plan.job.dtype, others=[*took, *others])
    written = best.document.with_fields(
        planning_s=sum(item.document.planning_s or 0.0 for item in found),
        planning_cpu_s=sum(item.document.planning_cpu_s or 0.0 for item in found),
    ).with_findings([*([tried] if len(prices) > 1 else []), *best.document.findings])
    return replace(best, document=written)
