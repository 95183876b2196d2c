"""Why a plan takes as long as it does, and why its stages are not laid out otherwise."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.lowering.step import Lowering, single_layout
from tangram_sim.parallelizers.layouts import choices, divisors, expert_degrees, objection
from tangram_sim.plans import LayerLayout, Plan
from tangram_sim.sim import fast
from tangram_sim.sim.critical import critical_path
from tangram_sim.studies.forecast import Forecast, Share, forecast
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
class WhyNot:
    """Another layout of a stage, and what speaks against it."""

    stage: int
    layout: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the step waits for, and why not otherwise; `forecast.inside` says what fills each stage."""

    forecast: Forecast
    path: tuple[Share, ...]  # by cause and stage, longest first; sums to the step
    why_not: tuple[WhyNot, ...]


def explain(plan: Plan, hwdb: Hwdb) -> Explanation:
    """Play a plan and take it apart."""
    lowering = Lowering.of(plan, hwdb)
    played = forecast(plan, hwdb, lowering=lowering)
    why_not = [
        entry
        for number in range(len(plan.pipelines[0].stages))
        for entry in _Otherwise(played, number, lowering).entries()
    ]
    return Explanation(played, _path(played), tuple(why_not))


def _path(played: Forecast) -> tuple[Share, ...]:
    found = critical_path(played.timeline)
    template, totals = played.step.template, dict[str, float]()
    spent = played.timeline.end_s - played.timeline.start_s
    for op in found.ops.tolist():
        kind = played.timeline.graph.kinds[played.timeline.graph.kind[op]]
        cause = f"stage {template.stage[op]}: {CAUSES.get(kind, kind)}"
        totals[cause] = totals.get(cause, 0.0) + float(spent[op])
    return tuple(
        Share(cause, seconds) for cause, seconds in sorted(totals.items(), key=lambda item: -item[1])
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    """One other layout of a stage with the rest of the plan unchanged."""

    layout: Layout
    objection: str = ""
    needed_bytes: float = 0.0
    capacity_bytes: float = 0.0
    step_s: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether it can be run at all."""
        return not self.objection and self.needed_bytes <= self.capacity_bytes


class _Otherwise:
    """One stage under other layouts: each is put into the plan, which is then lowered and played whole."""

    def __init__(self, played: Forecast, number: int, lowering: Lowering) -> None:
        self.played, self.number, self.lowering = played, number, lowering
        self.plan, self.pipeline = played.plan, played.plan.pipelines[0]
        self.stage = self.pipeline.stages[number]
        self.layout, self.gpus = single_layout(self.stage), len(self.stage.ranks)
        # Like is compared with like: without sharing of links, which costs little and takes long to play.
        self.step_s = fast.play(played.step.graph()).makespan_s
        pricer = lowering.prices.pricer(played.islands[number], self.layout, self.pipeline.microbatch)
        self.fused = bool(pricer.setting.rates.fused_attention)
        self._known: dict[Layout, _Tried] = {}

    def entries(self) -> Iterator[WhyNot]:
        """Every other tensor-parallel degree at its best, then every single change of the layout."""
        for tp in divisors(self.gpus):
            if tp != self.layout.tp:
                yield self._tensor_parallel(tp)
        for layout in self._single_changes():
            yield WhyNot(self.number, str(layout), self._verdict(self._try(layout)))

    def _single_changes(self) -> Iterator[Layout]:
        layout = self.layout
        if layout.dp * layout.cp > 1:
            yield from (replace(layout, zero_stage=zero) for zero in range(4) if zero != layout.zero_stage)
        yield from (replace(layout, recompute=kind) for kind in RECOMPUTE if kind != layout.recompute)
        if layout.tp > 1:
            yield replace(layout, sequence_parallel=not layout.sequence_parallel)

    def _tensor_parallel(self, tp: int) -> WhyNot:
        """The best that `tp` can do: memory savers as they are if that fits, else all of them."""
        shapes = [
            replace(self.layout, tp=tp, cp=cp, dp=self.gpus // tp // cp, ep=ep)
            for cp in divisors(self.gpus // tp)
            for ep in expert_degrees(self.plan.model, self.gpus // tp)
        ]
        kept = [replace(shape, sequence_parallel=shape.sequence_parallel and tp > 1) for shape in shapes]
        tried = [self._try(layout) for layout in kept]
        if not any(one.fits for one in tried):
            tried = [self._try(layout) for layout in self._all_savers(shapes)]
        fitting = [one for one in tried if one.fits]
        if fitting:
            best = min(fitting, key=lambda one: one.step_s)
            return WhyNot(self.number, f"tp{tp}", f"best as {best.layout}: {self._verdict(best)}")
        sound = [one for one in tried if not one.objection]
        if not sound:
            return WhyNot(self.number, f"tp{tp}", tried[0].objection)
        least = min(sound, key=lambda one: one.needed_bytes / one.capacity_bytes)
        return WhyNot(
            self.number,
            f"tp{tp}",
            f"no ZeRO stage or recompute makes it fit: at least {show_bytes(least.needed_bytes)} "
            f"({least.layout}), {show_bytes(least.capacity_bytes)} usable",
        )

    @staticmethod
    def _all_savers(shapes: Iterable[Layout]) -> Iterator[Layout]:
        for shape in shapes:
            for zero, recompute, sequence_parallel in choices(shape.dp * shape.cp, shape.tp):
                yield replace(
                    shape, zero_stage=zero, recompute=recompute, sequence_parallel=sequence_parallel
                )

    def _try(self, layout: Layout) -> _Tried:
        if layout not in self._known:
            self._known[layout] = self._play(layout)
        return self._known[layout]

    def _play(self, layout: Layout) -> _Tried:
        against = objection(self.plan.model, self.plan.job, layout, self.pipeline.microbatch, self.fused)
        if against:
            return _Tried(layout, against)
        part = self.stage.parts[0]
        runs = tuple(LayerLayout(run.layers, layout) for run in part.layouts)
        stage = replace(self.stage, parts=(replace(part, layouts=runs),))
        stages = (*self.pipeline.stages[: self.number], stage, *self.pipeline.stages[self.number + 1 :])
        step = self.lowering.lower(replace(self.pipeline, stages=stages))
        needed, capacity = step.peak_bytes(self.number), step.capacity_bytes(self.number)
        seconds = fast.play(step.graph()).makespan_s if needed <= capacity else 0.0
        return _Tried(layout, "", needed, capacity, seconds)

    def _verdict(self, tried: _Tried) -> str:
        if tried.objection:
            return tried.objection
        if not tried.fits:
            return f"needs {show_bytes(tried.needed_bytes)}, {show_bytes(tried.capacity_bytes)} usable"
        ratio = tried.step_s / self.step_s
        word = f"{(ratio - 1) * 100:+.1f} % step" if abs(ratio - 1) >= 5e-4 else "same step"
        seconds = show_seconds(ratio * self.played.step_s)
        return f"{word} ({seconds}); peak {show_bytes(tried.needed_bytes)}"
