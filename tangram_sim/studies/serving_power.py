"""Watts and joules of an estimated service, their intervals, and the uncertainty under a power cap."""

from math import hypot, log

from tangram_sim.cost.energy import CURVE_SPREAD
from tangram_sim.serving.energy import ReplicaPower
from tangram_sim.studies.serving_answer import INTERVAL, ServeEstimateDocument, interval

SLOWER_IS_DEARER = 0.6  # power that flows whatever runs makes a slower token dearer, by more than half


def with_power(answer: ServeEstimateDocument, power: ReplicaPower) -> ServeEstimateDocument:
    """The answer with watts and joules per token, their intervals and sources.

    Intervals of watts end at the most that boards and caps let all GPUs draw together.
    """
    watts = float(power.gpu_w[0])
    low, high = answer.intervals["output_tok_s"]
    slower = SLOWER_IS_DEARER * log(high / low) / (2.0 * INTERVAL)
    values, intervals = dict[str, float](), dict[str, tuple[float, float]]()
    for name, value, spread, most in (
        ("gpu_w", watts, 0.0, power.most_w),
        ("joules_per_output_token", watts / answer.output_tok_s, slower, power.most_w / low),
    ):
        least, greatest = interval(value, hypot(power.sigma, spread))
        values[name], intervals[name] = value, (least, min(greatest, most))
    return answer.model_copy(
        update={
            **values,
            "host_w": power.host_w,
            "intervals": answer.intervals | intervals,
            "assumptions": answer.assumptions | {"power": power.basis},
        }
    )


def under_cap(
    answer: ServeEstimateDocument, free: ServeEstimateDocument, cap_w: float
) -> ServeEstimateDocument:
    """The answer under a power cap, with intervals widened for the uncertainty of the assumed clocks.

    `free`: the same replica without the cap. A cap that slows nothing widens nothing.
    """
    intervals, slowed = dict(answer.intervals), False
    for name, (low, high) in answer.intervals.items():
        value, before = getattr(answer, name), getattr(free, name)
        moved = CURVE_SPREAD * abs(log(value / before))
        if moved > 0.0:
            intervals[name] = interval(value, hypot(log(high / low) / (2.0 * INTERVAL), moved))
            slowed = True
    if slowed:
        note = (
            f"under the power cap of {cap_w:g} W clocks follow a curve that is assumed, not measured: joules "
            "of an operation go with the square of the clock"
        )
    else:
        note = f"the power cap of {cap_w:g} W lowers no clock: no GPU draws more under this load"
    return answer.model_copy(update={"intervals": intervals, "notes": [*answer.notes, note]})
