"""A plan and the step it took shift the predictions of its stack on the GPU kinds it uses.

One step moves one factor: the scale on all costs that the stack touches (`ownruns`), found on the plan
itself, played as it stands, with uneven stages and GPUs of several kinds. It cannot tell kinds apart, so
those of one plan move together, and as little of it is believed as of any single row (`shifts`).
"""

import math
from dataclasses import dataclass

import numpy as np

from tangram_sim.clusters import Gpu
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import has_experts
from tangram_sim.opgraph import FloatArray
from tangram_sim.sim import contention
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.forecast import forecast
from tangram_sim.studies.planfile import plan_from_document
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import lower_plan
from tangram_validate.calibration.ownruns import Key, Shift, moved, overlaid
from tangram_validate.calibration.plausible import far_outside, implausible_words
from tangram_validate.calibration.shifts import Doubt, most_probable


@dataclass(frozen=True, slots=True)
class PlanStep:
    """The predicted step of a measured plan, with its 90 % interval."""

    measured_s: float
    step_s: float
    step_s_low: float
    step_s_high: float

    @property
    def error(self) -> float:
        """Signed relative error."""
        return self.step_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class CalibratedPlan:
    """The answer of `calibrate_plan`: one shift per GPU kind, and the plan before and after."""

    shifts: tuple[Shift, ...]
    before: PlanStep
    after: PlanStep
    overlay: str  # text of efficiency/calibrated.csv
    hwdb: Hwdb  # the database under that overlay


def calibrate_plan(
    document: PlanDocument, measured_s: float, hwdb: Hwdb, where: str = "plan", *, keep: bool = False
) -> CalibratedPlan:
    """Shift and narrow the predictions of `hwdb` by one measured step of a plan, in seconds.

    Raises BadInputError for a time that is none, and, unless `keep`, for one that looks mistyped: more than
    a factor of 2 and 4 sigma from where the stack most probably lies, or a factor of 8 from the prediction.
    """
    if not (math.isfinite(measured_s) and measured_s > 0):
        raise BadInputError(
            f"`step_s={measured_s:g}`: give the seconds of a step, a finite number above zero"
        )
    made = plan_from_document(document, hwdb, where)
    played = forecast(made, hwdb)
    doubt = played.uncertainty
    stack, dtype = made.job.stack, made.job.precision.compute
    known = {Key(stack, name, dtype): hwdb.residuals(gpu, dtype, stack) for name, gpu in _kinds(made).items()}
    keys = tuple(known)
    priors = {
        key: max(residuals.of(has_experts(made.model)).source, 0.02) for key, residuals in known.items()
    }
    common = Doubt(max(priors.values()), 0.0, max(0.01, *(residuals.plan for residuals in known.values())))
    logs = np.array([math.log(measured_s / played.step_s)])
    if not keep and far_outside(logs, [doubt.sigma], common)[0]:
        raise BadInputError(
            f"{where}: {implausible_words(measured_s, played.step_s)}; mend it, or keep it with `keep=all`"
        )

    def logs_at(at: FloatArray) -> FloatArray:
        return np.array([math.log(_step_s(made, moved(hwdb, keys, float(at[0]))))])

    found = most_probable(logs_at, np.array([math.log(measured_s)]), common, 0.0)
    left = min(found.common / common.common, 1.0)  # one step never adds to the doubt
    shifts = tuple(
        Shift(key, 1, found.log_scale, 0.0, prior, prior * left, found.plan, min(doubt.factors_sigma, prior))
        for key, prior in priors.items()
    )
    overlay, database = overlaid(hwdb, shifts)
    again = forecast(plan_from_document(document, database, where), database).uncertainty
    before, after = (
        PlanStep(measured_s, uncertainty.step_s, uncertainty.step_s_low, uncertainty.step_s_high)
        for uncertainty in (doubt, again)
    )
    return CalibratedPlan(shifts, before, after, overlay, database)


def _kinds(made: Plan) -> dict[str, Gpu]:
    """GPU kinds of the ranks that the plan uses, by name."""
    return {gpu.name: gpu for gpu in sorted(made.gpu_kinds, key=lambda gpu: gpu.name)}


def _step_s(made: Plan, hwdb: Hwdb) -> float:
    """Seconds of the step as `forecast` plays it."""
    return contention.play(lower_plan(made, Lowering.of(made, hwdb)).graph()).makespan_s
