"""Mixed runs predicted: the row's own plan lowered and played, as its framework runs it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import lower_plan
from tangram_validate.mixed_runs.lockstep import lockstep_graph
from tangram_validate.mixed_runs.reading import MixedRun, read_run
from tangram_validate.published.habits import masks_sent, on_pipeline_engine, with_masks
from tangram_validate.published.table import Problem


@dataclass(frozen=True, slots=True)
class MixedPrediction:
    """What is predicted of one run."""

    run: MixedRun
    step_s: float
    fits: bool
    fullness: float  # peak memory over capacity of the fullest rank

    @property
    def error(self) -> float | None:
        """Signed relative error; None where nothing was measured."""
        return self.step_s / self.run.measured_s - 1 if self.run.measured_s else None

    @property
    def source_error(self) -> float | None:
        """Relative error of the source's own prediction; None where it has none."""
        if not self.run.measured_s or not self.run.source_s:
            return None
        return self.run.source_s / self.run.measured_s - 1


def predict_rows(rows: Sequence[Mapping[str, str]], hwdb: Hwdb) -> list[MixedPrediction | Problem]:
    """A prediction, or a problem with its reason, for every row; order kept."""
    return [predict_row(row, hwdb, number) for number, row in enumerate(rows, 1)]


def predict_row(row: Mapping[str, str], hwdb: Hwdb, number: int = 1) -> MixedPrediction | Problem:
    """One row; `number` names it where its id is blank."""
    read = read_run(row, hwdb, number)
    if isinstance(read, Problem):
        return read
    try:
        return predict(read, hwdb)
    except TangramError as error:
        return Problem(read.id, read.source_id, str(error))


def predict(run: MixedRun, hwdb: Hwdb) -> MixedPrediction:
    """One run. Raises TangramError where its plan cannot be priced."""
    from tangram_sim.sim import contention

    engine = on_pipeline_engine(run.software)
    lowering = Lowering.of(run.plan, hwdb.with_rings_only() if engine else hwdb)
    lowered = lower_plan(run.plan, lowering)
    if engine:
        (step,) = lowered.steps
        graph = lockstep_graph(with_masks(step, lowering) if masks_sent(run.software) else step)
    else:
        graph = lowered.graph()
    played = contention.play(graph)
    return MixedPrediction(run, played.makespan_s, lowered.fits(), lowered.fullness())
