"""Figures of plans as text for tables and printed lines."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tangram_sim.units import percent, show_amount, show_seconds

if TYPE_CHECKING:
    from tangram_sim.studies.documents import PlanDocument, RunDocument, StageForecast
    from tangram_sim.studies.power_documents import PowerDocument

_CHUNKS = 4  # of an interleaved stage that are shown
_CURVE = 5  # points of a curve that are put into words


def count(number: int, what: str) -> str:
    """A number with its noun: `1 microbatch`, `2 microbatches`."""
    plural = f"{what}es" if what.endswith(("ch", "s", "x")) else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def step_words(document: "PlanDocument") -> str:
    """The step with its 90 % interval: `13.7 s (12.9 to 14.6)`, the unit only once if it is the same."""
    step = show_seconds(document.step_s)
    if not document.step_s_high:
        return step
    low, high = show_seconds(document.step_s_low), show_seconds(document.step_s_high)
    unit = step.partition(" ")[2]
    if low.endswith(f" {unit}") and high.endswith(f" {unit}"):
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return f"{step} ({low} to {high})"


def run_words(run: "RunDocument") -> str:
    """Days, dollars and megawatt hours of training the requested tokens, with intervals, in words."""

    def span(value: float, low: float, high: float) -> str:
        return f"{_short(value)} ({_short(low)} to {_short(high)})"

    words = [f"{show_amount(run.tokens)} tokens: {span(run.days, run.days_low, run.days_high)} days"]
    if run.finish_within_days is not None:
        within = "within" if run.in_time else "NOT within"
        words[-1] += f", {within} the {_short(run.finish_within_days)} asked for"
    million = run.usd_per_million_tokens
    if run.usd is None or million is None:
        words.append(next((line for line in run.basis if line.startswith("no dollars")), "no dollars"))
    else:
        low, high = run.usd_per_million_tokens_low or million, run.usd_per_million_tokens_high or million
        words.append(f"${span(run.usd, run.usd_low or run.usd, run.usd_high or run.usd)} of rent")
        words.append(f"${span(million, low, high)} per million tokens")
    if run.mwh is not None:
        words.append(f"{span(run.mwh, run.mwh_low or run.mwh, run.mwh_high or run.mwh)} MWh")
    if run.co2_t is not None:
        words.append(f"{_short(run.co2_t)} t CO2e")
    return "   ".join([*words, f"goodput {run.goodput * 100:.1f} %"])


def power_words(power: "PowerDocument") -> Iterator[str]:
    """Lines on a plan's power: watts, capped GPUs, their cost in time and saving of energy."""
    words = [
        f"power of the site: {_short(power.chosen.site_kw)} kW ({_short(power.site_kw_low)} to "
        f"{_short(power.site_kw_high)}), {_short(power.site_kw_most)} kW at most"
    ]
    if power.site_limit_kw is not None:
        words[-1] += f", {_short(power.site_limit_kw)} kW allowed"
        words[-1] += ", which does not bind" if power.reference.site_kw <= power.site_limit_kw else ""
    words.append(f"{_short(power.chosen.joules_per_token)} J per token")
    if power.chosen.usd_per_million_tokens is not None and "cost" in power.objective:
        words.append(f"${_short(power.chosen.usd_per_million_tokens)} per million tokens")
    if power.co2_g_per_million_tokens is not None:
        words.append(f"{_short(power.co2_g_per_million_tokens)} g CO2e per million tokens")
    yield "   ".join(words)
    capped = [kind for kind in power.kinds if kind.capped]
    if not capped:
        yield "no GPU is capped below its board's own limit"
        return
    named = ", ".join(
        f"{kind.gpus} x {kind.gpu} at {kind.cap_w:,.0f} W ({percent(kind.clock)} of the clock)"
        for kind in capped
    )
    yield f"capped: {named}"
    span = f"{percent(power.slower_low, 1)} to {percent(power.slower_high, 1)}"
    yield (
        f"next to no caps ({show_seconds(power.reference.step_s)}, {_short(power.reference.site_kw)} kW): "
        f"step {percent(power.slower, 1, signed=True)} ({span}), "
        f"energy {percent(-power.saved, 1, signed=True)}"
    )


def curve_words(power: "PowerDocument") -> Iterator[str]:
    """One line on throughput against the site's power at a few points, if there are two or more."""
    shown = power.curve[:: max((len(power.curve) + _CURVE - 2) // (_CURVE - 1), 1)]
    if len(shown) > 1:
        points = [f"{at.tokens_per_s:,.0f} tokens/s at {_short(at.site_kw)} kW" for at in shown]
        yield f"throughput against power: {', '.join(points)}"


def _short(value: float) -> str:
    """A figure to three digits, without powers of ten."""
    return f"{float(f'{value:.3g}'):,g}" if value >= 1e-4 else f"{value:.2g}"


def batch_words(document: "PlanDocument") -> str:
    """How the global batch is cut: `32 microbatches of 1 sequence`; if pipelines differ, for each kind."""
    kinds: dict[tuple[int, int], int] = {}
    for pipeline in document.pipelines:
        kinds[pipeline.microbatches, pipeline.microbatch] = (
            kinds.get((pipeline.microbatches, pipeline.microbatch), 0) + 1
        )
    words = [f"{count(number, 'microbatch')} of {count(size, 'sequence')}" for number, size in kinds]
    if len(document.pipelines) == 1:
        return words[0]
    if len(kinds) == 1:
        return f"{len(document.pipelines)} pipelines side by side, {words[0]} each"
    each = [
        f"{number} of them {word}" if number > 1 else word
        for word, number in zip(words, kinds.values(), strict=True)
    ]
    return f"{len(document.pipelines)} pipelines side by side: {', '.join(each)}"


def layer_words(stage: "StageForecast") -> str:
    """The blocks of a stage, first and last of each chunk, with the embedding or head that it holds."""
    runs = stage.chunks or [stage.layers]
    shown = [_blocks(*run) for run in (runs if len(runs) <= _CHUNKS else (*runs[: _CHUNKS - 1], runs[-1]))]
    if len(runs) > _CHUNKS:
        shown.insert(-1, "...")
    blocks = ",".join(shown)
    ends = ("embedding" if stage.embedding else "", blocks, "head" if stage.head else "")
    return "+".join(part for part in ends if part)


def _blocks(start: int, stop: int) -> str:
    return "" if stop == start else f"{start}-{stop - 1}" if stop - start > 1 else f"{start}"


def limit_words(stage: "StageForecast", slowest: bool) -> str:
    """What takes most of a stage's time, whether it is the slowest, and whether its memory is nearly full."""
    words = ["slowest"] if slowest else []
    used = stage.peak_memory_bytes / stage.memory_capacity_bytes
    if used > 1:
        words.append("too full")
    elif used > 0.95:
        words.append("nearly full")
    words.append(f"{stage.limited_by} {stage.limited_by_share * 100:.0f} %")
    return ", ".join(words)


def layout_words(stage: "StageForecast") -> str:
    """The layout of a stage in one cell."""
    degrees = (("tp", stage.tp), ("dp", stage.dp), ("cp", stage.cp), ("ep", stage.ep))
    words = [f"{name}{value}" for name, value in degrees if value > 1]
    if stage.zero_stage:
        words.append(f"zero{stage.zero_stage}")
    if stage.recompute != "none":
        words.append(f"recompute {stage.recompute}")
    if stage.sequence_parallel:
        words.append("sp")
    return " ".join(words) or "-"
