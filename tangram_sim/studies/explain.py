"""Why a plan takes as long as it does, and why its stages are not laid out otherwise."""

from dataclasses import dataclass, replace

from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.lowering.chain import chain_graph
from tangram_sim.lowering.step import Lowering, atom_runs, single_layout
from tangram_sim.parallelizers.layouts import divisors, objection
from tangram_sim.plans import Plan, Stage
from tangram_sim.sim import fast
from tangram_sim.sim.critical import critical_path
from tangram_sim.studies.forecast import Forecast, forecast
from tangram_sim.units import show_bytes, show_seconds

CAUSES = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradients",
    "SEND_F": "activations to the next stage",
    "SEND_B": "gradients to the stage before",
    "SYNC": "gradient synchronisation",
    "TIED": "tied embeddings",
    "OPTIMIZER": "optimizer",
}


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of the step's critical path with one cause."""

    cause: str
    seconds: float


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Another layout of a stage, and what speaks against it."""

    stage: int
    layout: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the step waits for, what fills each stage, and why not otherwise."""

    forecast: Forecast
    path: tuple[Share, ...]  # by cause and stage, longest first; sums to the step
    inside: tuple[tuple[Share, ...], ...]  # per stage: critical path of one forward and backward by kernel class
    why_not: tuple[WhyNot, ...]


def explain(plan: Plan, hwdb: Hwdb) -> Explanation:
    """Play a plan and take it apart."""
    lowering = Lowering.of(plan, hwdb)
    played = forecast(plan, hwdb, lowering=lowering)
    stages = plan.pipelines[0].stages
    return Explanation(
        played,
        _path(played),
        tuple(_inside(plan, stage, lowering) for stage in stages),
        tuple(entry for number in range(len(stages)) for entry in _alternatives(played, number, lowering)),
    )


def _path(played: Forecast) -> tuple[Share, ...]:
    found = critical_path(played.timeline)
    template, totals = played.step.template, dict[str, float]()
    spent = played.timeline.end_s - played.timeline.start_s
    for op in found.ops.tolist():
        kind = played.timeline.graph.kinds[played.timeline.graph.kind[op]]
        cause = f"stage {template.stage[op]}: {CAUSES[kind]}"
        totals[cause] = totals.get(cause, 0.0) + float(spent[op])
    return tuple(Share(cause, seconds) for cause, seconds in sorted(totals.items(), key=lambda item: -item[1]))


def _inside(plan: Plan, stage: Stage, lowering: Lowering) -> tuple[Share, ...]:
    """Critical path of one microbatch through a stage, by kernel class."""
    island = lowering.placement.island(stage.ranks)
    pricer = lowering.prices.pricer(island, single_layout(stage), plan.pipelines[0].microbatch)
    totals: dict[str, float] = {}
    for start, stop in atom_runs(stage, plan.model.layers):
        for direction in ("forward", "backward"):
            atoms = pricer.atoms[start:stop] if direction == "forward" else pricer.atoms[start:stop][::-1]
            graph = chain_graph([pricer.program(atom, direction) for atom in atoms], [""] * len(atoms))
            for kind, seconds in critical_path(fast.play(graph)).seconds_by_kind().items():
                totals[kind] = totals.get(kind, 0.0) + seconds
    return tuple(Share(kind, seconds) for kind, seconds in sorted(totals.items(), key=lambda item: -item[1]))


def _neighbours(layout: Layout, gpus: int) -> list[Layout]:
    """Layouts that differ in one decision: another tp, ZeRO stage, recompute, sequence parallelism."""
    found = []
    for tp in divisors(gpus // layout.cp):
        if tp != layout.tp:
            found.append(replace(layout, tp=tp, dp=gpus // layout.cp // tp, ep=1, sequence_parallel=tp > 1 and layout.sequence_parallel))
    found += [replace(layout, zero_stage=zero) for zero in range(4) if zero != layout.zero_stage and layout.dp * layout.cp > 1]
    found += [replace(layout, recompute=kind) for kind in RECOMPUTE if kind != layout.recompute]
    if layout.tp > 1:
        found.append(replace(layout, sequence_parallel=not layout.sequence_parallel))
    return found


def _alternatives(played: Forecast, number: int, lowering: Lowering) -> list[WhyNot]:
    plan, pipeline = played.plan, played.plan.pipelines[0]
    stage = pipeline.stages[number]
    layout, island = single_layout(stage), lowering.placement.island(stage.ranks)
    runs, held = atom_runs(stage, plan.model.layers), played.step.in_flight[number]
    pricer = lowering.prices.pricer(island, layout, pipeline.microbatch)
    now = sum(chunk.forward_s + chunk.backward_s for chunk in played.step.prices[number])
    found = []
    for other in _neighbours(layout, len(stage.ranks)):
        reason = objection(plan.model, plan.job, other, pipeline.microbatch, pricer.setting.rates.fused_attention)
        if not reason:
            prices = [lowering.prices.price(island, other, pipeline.microbatch, start, stop) for start, stop in runs]
            needed = sum(price.static_bytes for price in prices) + max(
                held * price.activation_bytes + price.transient_bytes for price in prices
            )
            seconds = sum(price.forward_s + price.backward_s for price in prices)
            change = (seconds / now - 1) * 100
            if needed > prices[0].capacity_bytes:
                reason = f"needs {show_bytes(needed)}, {show_bytes(prices[0].capacity_bytes)} usable"
            elif abs(change) < 0.05:
                reason = f"as fast per microbatch ({show_seconds(seconds)}); peak {show_bytes(needed)}"
            else:
                word = "slower" if change > 0 else "faster here, but not for the whole step"
                reason = f"{abs(change):.1f} % {word} ({show_seconds(seconds)} per microbatch); peak {show_bytes(needed)}"
        found.append(WhyNot(number, str(other), reason))
    return found


