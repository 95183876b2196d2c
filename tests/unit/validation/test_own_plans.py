"""`calibrate run PLAN.json --step-s`: one step of a plan as it stands, of one GPU kind or of several."""

import math
from functools import cache
from pathlib import Path

import pytest
from tangram_validate.calibration.ownplan import calibrate_plan

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.studies import api
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.planfile import read_plan
from tests.commands import files, tangram
from tests.neutral import neutral_folder, neutral_hwdb

HWDB = neutral_hwdb()


def made_plan(folder: Path, *options: object) -> Path:
    """A plan file of the small model, over the cluster of T4 and A100."""
    model, cluster = files(folder)
    plan = folder / "plan.json"
    asked = ("--global-batch", 8, "--seq", 256, "--hwdb", neutral_folder(folder / "neutral"))
    assert tangram("estimate", model, cluster, *options, *asked, "-o", plan).code == 0
    return plan


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> PlanDocument:
    return read_plan(made_plan(tmp_path_factory.mktemp("mixed"), "--pp", 3))


@cache
def predicted_s(text: str) -> float:
    return api.simulate(PlanDocument.model_validate_json(text), hwdb=HWDB).step_s


@pytest.mark.parametrize("factor", [0.7, 1.5])
def test_a_step_draws_the_plan_towards_it_and_narrows_it(mixed: PlanDocument, factor: float) -> None:
    predicted = predicted_s(mixed.model_dump_json())
    found = calibrate_plan(mixed, factor * predicted, HWDB)
    assert found.before.step_s == pytest.approx(predicted)
    assert abs(found.after.error) < abs(found.before.error)
    # Believed in part, never beyond what was measured.
    assert 0 <= math.log(found.after.step_s / predicted) / math.log(factor) <= 1
    width = [
        math.log(plan_step.step_s_high / plan_step.step_s_low) for plan_step in (found.before, found.after)
    ]
    assert width[1] < width[0]
    assert {shift.key.gpu for shift in found.shifts} == {"T4", "A100-SXM4-40GB"}
    assert len({shift.log_scale for shift in found.shifts}) == 1
    assert all(shift.sigma < shift.prior_sigma and shift.n == 1 for shift in found.shifts)


def test_a_step_as_predicted_moves_nothing(mixed: PlanDocument) -> None:
    found = calibrate_plan(mixed, predicted_s(mixed.model_dump_json()), HWDB)
    assert {shift.log_scale for shift in found.shifts} == {0.0}
    assert found.after.step_s == pytest.approx(found.before.step_s, rel=1e-6)


@pytest.mark.parametrize("factor", [1e-3, 9.0, 1e6])
def test_a_mistyped_step_is_refused_unless_kept(mixed: PlanDocument, factor: float) -> None:
    measured = factor * predicted_s(mixed.model_dump_json())
    with pytest.raises(BadInputError, match="implausible"):
        calibrate_plan(mixed, measured, HWDB)
    assert calibrate_plan(mixed, measured, HWDB, keep=True).before.measured_s == measured


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.inf, math.nan])
def test_a_step_takes_time(mixed: PlanDocument, step_s: float) -> None:
    with pytest.raises(BadInputError, match="above zero"):
        calibrate_plan(mixed, step_s, HWDB)


def test_the_rows_written_predict_what_is_shown(tmp_path: Path) -> None:
    plan, neutral = made_plan(tmp_path, "--tp", 4, "--order", "g0"), tmp_path / "neutral"
    step_s = 1.5 * read_plan(plan).step_s
    asked = ("calibrate", "run", plan, "--step-s", step_s, "--hwdb", neutral, "-o", tmp_path / "mine")
    shown = tangram(*asked, "--json").json
    assert shown["used"] == 1 and shown["rows"][0]["measured_s"] == step_s
    again = api.simulate(plan, hwdb=Hwdb.load([neutral, tmp_path / "mine"]))
    assert again.step_s == pytest.approx(shown["rows"][0]["after"]["step_s"], rel=1e-3)
    assert [item["gpu"] for item in shown["calibrated"]] == [again.document.stages[0].gpu]
    text = tangram(*asked)
    assert text.code == 0 and "1 row used, 0 not." in text.out


def test_what_is_missing_or_contradicts_is_said(tmp_path: Path) -> None:
    plan = made_plan(tmp_path, "--pp", 3)
    for asked, said in (
        ((plan,), "--step-s 34.5"),
        ((plan, "--step-s", 1, "--plan", plan), "exclude each other"),
        ((plan, "--step-s", 1, "--keep", "monday"), "--keep all"),
        ((tmp_path / "tiny.yaml", "--step-s", 1), "not JSON"),
    ):
        found = tangram("calibrate", "run", *asked, "-o", tmp_path / "mine")
        assert found.code == 2 and said in found.err and not found.out, found.err
    assert not (tmp_path / "mine").exists()
