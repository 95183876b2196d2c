"""Why a plan takes as long as it does, and why its stages are not laid out otherwise."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import isclose
from typing import TypeVar

from pydantic import Field

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.parallelizers.laws import first_broken
from tangram_sim.parallelizers.layouts import choices, divisors, expert_degrees
from tangram_sim.sim.critical import critical_path
from tangram_sim.studies.advice import advice
from tangram_sim.studies.documents import AnswerDocument, Document, PlanDocument
from tangram_sim.studies.forecast import Forecast, PathShare, forecast, longest_run
from tangram_sim.studies.results import Result
from tangram_sim.training.plan import LayerLayout, Plan
from tangram_sim.training.schedules.step import OP_WORDS
from tangram_sim.training.stage.peaks import capacity_bytes, device_bytes
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import lower_plan
from tangram_sim.units import show_bytes, show_seconds


class KernelDocument(Document):
    """Seconds of one kernel class in one microbatch's forward and backward pass through a stage."""

    kernel: str
    seconds: float


class WhyNot(Document):
    """Another layout of a stage, and why it was not chosen."""

    stage: int
    layout: str
    verdict: str
    pipeline: int
    part: int
    name: str = Field("", description="of the stage or part, as tables show it")


class ExplainDocument(AnswerDocument):
    """`explain --json`. Seconds."""

    step_s: float
    limited_by: str = Field("", description="what limits the step and what to try next, one sentence")
    critical_path: list[PathShare] = Field(description="longest first; sums to the step")
    stages: list[list[KernelDocument]]
    stage_names: list[str]
    why_not: list[WhyNot]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Critical path, verdicts on other layouts; `forecast.inside` splits stage times by kernel class."""

    forecast: Forecast
    path: tuple[PathShare, ...]  # by cause and stage, longest first; sums to the step
    why_not: tuple[WhyNot, ...]


def explain(plan: Plan | Result, hwdb: Hwdb | None = None) -> Explanation:
    """Simulate a plan, or that of a result made with `hwdb` (else BadInputError), and take it apart."""
    found, hwdb = plan, hwdb or Hwdb.load()
    plan = found.forecast.plan if isinstance(found, Result) else found
    lowering = Lowering.of(plan, hwdb)
    played = forecast(plan, hwdb, lowering=lowering)
    if isinstance(found, Result) and not isclose(played.step_s, found.forecast.step_s, rel_tol=1e-9):
        raise BadInputError("explain: the result rests on other hardware data; give them as `hwdb=`")
    why_not = [
        entry
        for number in range(len(played.seats))
        for entry in _Otherwise(played, number, lowering).entries()
    ]
    return Explanation(played, _path(played), tuple(why_not))


def explain_document(found: Explanation, plan: PlanDocument) -> ExplainDocument:
    """An explanation as a document; `limited_by` is the same sentence as in the plan's own output."""
    played = found.forecast
    return ExplainDocument(
        step_s=played.step_s,
        limited_by=advice(plan),
        critical_path=list(found.path),
        stages=[
            [KernelDocument(kernel=share.cause, seconds=share.seconds) for share in shares]
            for shares in played.inside
        ],
        stage_names=[played.name(seat) for seat in played.seats],
        why_not=list(found.why_not),
    )


def _path(played: Forecast) -> tuple[PathShare, ...]:
    found = critical_path(played.timeline)
    lowered, totals = played.lowered, dict[str, float]()
    several = len(lowered.steps) > 1
    spent = played.timeline.end_s - played.timeline.start_s
    for op in found.ops.tolist():
        kind = played.timeline.graph.kinds[played.timeline.graph.kind[op]]
        place = f"{lowered.step_of[op]}.{lowered.stage_of[op]}" if several else f"{lowered.stage_of[op]}"
        cause = f"stage {place}: {OP_WORDS.get(kind, kind)}"
        totals[cause] = totals.get(cause, 0.0) + float(spent[op])
    return tuple(
        PathShare(cause, seconds) for cause, seconds in sorted(totals.items(), key=lambda item: -item[1])
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
        """Whether the layout breaks no rule and fits in memory."""
        return not self.objection and self.needed_bytes <= self.capacity_bytes


class _Otherwise:
    """Other layouts of one stage: each is put into the plan, which is then simulated as a whole."""

    def __init__(self, played: Forecast, number: int, lowering: Lowering) -> None:
        self.played, self.seat, self.lowering = played, played.seats[number], lowering
        self.plan, self.part = played.plan, played.part_of(self.seat)
        self.share = self.part.sequences_per_microbatch
        self.layout, self.gpus = longest_run(self.part).layout, len(self.part.ranks)
        # Like is compared with like: without sharing of links, which costs little and takes long to play.
        self.step_s = played.lowered.step_s()
        pricer = lowering.prices.pricer(played.islands[number], self.layout, self.share)
        self.fused = bool(pricer.setting.rates.fused_attention)
        self._known: dict[Layout, _Tried] = {}

    def _entry(self, layout: str, verdict: str) -> WhyNot:
        seat = self.seat
        return WhyNot(
            stage=seat.stage,
            layout=layout,
            verdict=verdict,
            pipeline=seat.pipeline,
            part=seat.part,
            name=self.played.name(seat),
        )

    def entries(self) -> Iterator[WhyNot]:
        """Verdicts: every other tensor-parallel degree at its best, then every single change.

        For a part with several layouts only: each of its layouts for all of its layers.
        """
        if len(self.part.layouts) > 1:
            for layout in dict.fromkeys(run.layout for run in self.part.layouts):
                yield self._entry(f"{layout} throughout", self._verdict(self._try(layout)))
            return
        for tp in divisors(self.gpus):
            if tp != self.layout.tp:
                yield self._tensor_parallel(tp)
        for layout in self._single_changes():
            yield self._entry(str(layout), self._verdict(self._try(layout)))

    def _single_changes(self) -> Iterator[Layout]:
        layout = self.layout
        if layout.dp * layout.cp > 1:
            yield from (replace(layout, zero_stage=zero) for zero in range(4) if zero != layout.zero_stage)
        yield from (replace(layout, recompute=kind) for kind in RECOMPUTE if kind != layout.recompute)
        if layout.tp > 1:
            yield replace(layout, sequence_parallel=not layout.sequence_parallel)

    def _tensor_parallel(self, tp: int) -> WhyNot:
        """Verdict on degree `tp`: with the stage's ZeRO and recomputation if that fits, else with the best of
        all ZeRO stages, recomputations and sequence parallelism."""
        shapes = [
            replace(self.layout, tp=tp, cp=cp, dp=self.gpus // tp // cp, ep=ep)
            for cp in divisors(self.gpus // tp)
            for ep in expert_degrees(self.plan.model, self.gpus // tp)
        ]
        kept = [replace(shape, sequence_parallel=shape.sequence_parallel and tp > 1) for shape in shapes]
        tried = [self._try(layout) for layout in kept]
        if not any(attempt.fits for attempt in tried):
            tried = [self._try(layout) for layout in self._all_savers(shapes)]
        fitting = [attempt for attempt in tried if attempt.fits]
        if fitting:
            best = min(fitting, key=lambda attempt: attempt.step_s)
            return self._entry(f"tp{tp}", f"best as {best.layout}: {self._verdict(best)}")
        sound = [attempt for attempt in tried if not attempt.objection]
        if not sound:
            return self._entry(f"tp{tp}", tried[0].objection)
        least = min(sound, key=lambda attempt: attempt.needed_bytes / attempt.capacity_bytes)
        return self._entry(
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
        broken = first_broken(self.plan.model, self.plan.job.seq, layout, self.share, self.fused)
        if broken:
            return _Tried(layout, str(broken))
        seat, stage = self.seat, self.played.stage_of(self.seat)
        runs = tuple(LayerLayout(run.layers, layout) for run in self.part.layouts)
        stage = replace(stage, parts=_with(stage.parts, seat.part, replace(self.part, layouts=runs)))
        pipeline = self.plan.pipelines[seat.pipeline]
        pipeline = replace(pipeline, stages=_with(pipeline.stages, seat.stage, stage))
        changed = replace(self.plan, pipelines=_with(self.plan.pipelines, seat.pipeline, pipeline))
        lowered = lower_plan(changed, self.lowering)
        step = lowered.steps[seat.pipeline]
        chunks = step.of_part(seat.stage, seat.part)
        needed = device_bytes(chunks, step.in_flight[seat.stage])
        capacity = capacity_bytes(chunks)
        seconds = lowered.step_s() if needed <= capacity else 0.0
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


T = TypeVar("T")


def _with(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """`items` with `item` at place `index`."""
    return (*items[:index], item, *items[index + 1 :])
