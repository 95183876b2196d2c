"""Cost of slow ranks in a measured run, and remedies: the question behind `tangram stragglers`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from tangram_sim.errors import BadInputError
from tangram_sim.fields import HasDocument
from tangram_sim.hwdb import Hwdb
from tangram_sim.reliability.stragglers.remedies import Advice, Remedy, Setup, advise
from tangram_sim.reliability.stragglers.replay import Replay, replay_of
from tangram_sim.reliability.stragglers.whatif import StragglerCost, Worker, analyse
from tangram_sim.reliability.traces.reading import read_trace
from tangram_sim.reliability.traces.trace import Omission
from tangram_sim.studies.documents import AnswerDocument, Document
from tangram_sim.studies.forecast import forecast
from tangram_sim.studies.planfile import plan_from_document, read_plan
from tangram_sim.studies.resizing import sharing_stages


class EscalationDocument(Document):
    """A remedy, and how long after the slow phase began it is taken."""

    name: str
    after_s: float


class StragglersDocument(AnswerDocument):
    """The answer of `tangram stragglers`. Times are means over steps."""

    steps: int
    dp: int
    pp: int
    microbatches: int
    measured_step_s: float
    replayed_step_s: float
    ideal_step_s: float
    slowdown: float = Field(description="S: replayed over ideal")
    waste: float = Field(description="1 - 1/S")
    measured_over_replayed: float
    worker_share: float = Field(description="M_W: share of the loss that goes when the suspects are ideal")
    last_stage_share: float = Field(description="M_S: the same of the last stage")
    alone: dict[str, float] = Field(description="S with only this group as measured")
    workers: list[Worker]
    suspects: list[tuple[int, int]] = Field(description="(dp, stage) of the workers that M_W is of")
    step_slowdowns: list[float]
    pattern: str = Field(description="none, worker, stage, sequence lengths or mixed")
    pattern_reason: str
    remedies: list[Remedy] = Field(description="best first")
    remedies_left_out: list[str]
    escalation: list[EscalationDocument]
    omissions: list[Omission]


@dataclass(frozen=True)
class Diagnosis(HasDocument):
    """The answer to a stragglers question, with the analysis behind it."""

    document: StragglersDocument
    found: StragglerCost
    replay: Replay
    advice: Advice


def diagnose(paths: Sequence[Path], stages: int = 1, setup: Setup | None = None) -> Diagnosis:
    """Read a trace, replay it with and without its slow ranks, and price the remedies.

    Raises `BadInputError` for traces that cannot be replayed, or a setup that does not match them.
    """
    trace = read_trace(paths, stages)
    setup = setup or Setup()
    if setup.layers and len(setup.layers) != trace.stages:
        raise BadInputError(
            f"layers of {len(setup.layers)} stages given, the trace has {trace.stages}; give one number "
            f"per stage"
        )
    found, replay = analyse(trace), replay_of(trace)
    advice = advise(found, replay, setup)
    return Diagnosis(_document(found, advice), found, replay, advice)


def setup_of_plan(path: Path) -> Setup:
    """Layers per stage, tp and what moving columns costs, of a plan file of one pipeline.

    Raises `BadInputError` for others.
    """
    hwdb = Hwdb.load()
    plan = plan_from_document(read_plan(path), hwdb, str(path))
    if len(plan.pipelines) != 1:
        raise BadInputError(f"{path}: {len(plan.pipelines)} pipelines; give `layers=` and `tp=` instead")
    stages = plan.pipelines[0].stages
    held = tuple(sum(stop - start for start, stop in stage.chunks) for stage in stages)
    priced = {stage.seat.stage: stage.added for stage in sharing_stages(forecast(plan, hwdb), hwdb)}
    added = tuple(priced.values()) if len(priced) == len(stages) else ()
    return Setup(held, min(stage.parts[0].layouts[0].layout.tp for stage in stages), added=added)


def _document(found: StragglerCost, advice: Advice) -> StragglersDocument:
    trace = found.trace
    return StragglersDocument.from_objects(
        found,
        steps=len(trace.steps),
        dp=trace.dp,
        pp=trace.stages,
        microbatches=trace.microbatches,
        suspects=[(w.dp, w.stage) for w in found.suspects],
        step_slowdowns=found.step_slowdowns.tolist(),
        pattern=found.pattern.name,
        pattern_reason=found.pattern.reason,
        remedies=list(advice.remedies),
        remedies_left_out=list(advice.left_out),
        escalation=[EscalationDocument(name=e.choice.name, after_s=e.after_s) for e in advice.escalation],
        omissions=list(trace.omissions),
    )
