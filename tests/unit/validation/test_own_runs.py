"""`calibrate run`, the door for verbs of other distributions, and the list of parameters."""

import csv
import json
import math
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from tangram_validate.calibration import ownruns, shifts
from tangram_validate.published.predict import Prediction, Predictor, predict_rows

from tangram_sim import registry
from tangram_sim.cli.plugins import as_command
from tangram_sim.errors import TangramError
from tangram_sim.studies.parameters import KERNEL_CAP, STACK_CAP, parameters
from tests.commands import tangram
from tests.neutral import neutral_folder, neutral_hwdb
from tests.unit.validation.published_rows import ROW

HWDB = neutral_hwdb()
NEMO = {
    **ROW,
    **{"framework": "NeMo", "date": "2025-01", "dtype": "bf16", "gpu": "H100-80GB", "recompute": "none"},
}


def sweep(count: int, base: dict[str, str] = NEMO, **cells: str) -> list[dict[str, str]]:
    """Rows that differ in microbatches."""
    return [{**base, **cells, "id": f"mine-{n}", "gbs": str(4 * (n + 1))} for n in range(count)]


def measured_under(
    rows: list[dict[str, str]], scale: float, host: float, noise: float = 0.0
) -> list[dict[str, str]]:
    """The rows with steps of a stack whose costs are `scale` times ours, its host `host` times on top."""
    first = predict_rows(rows[:1], HWDB)[0]
    assert isinstance(first, Prediction)
    key = ownruns.key_of(first.run)

    lines = ownruns._own_rows(key, math.log(scale), math.log(host), HWDB, 0.0, 0)
    truth = Predictor(HWDB.with_efficiency(ownruns._rows(lines)))
    found = []
    for number, row in enumerate(rows):
        item = truth.predict_row(row)
        assert isinstance(item, Prediction)
        found.append({**row, "iter_time_s": repr(item.step_s * (1 + noise * (-1) ** number))})
    return found


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def width(prediction: Prediction) -> float:
    return prediction.step_s_high / prediction.step_s_low


def test_one_row_shifts_and_narrows_three_rows_more() -> None:
    """The more rows the closer to the truth, and the narrower; a few rows already take most of the error."""
    left, widths = [], []
    for count in (1, 3, 6):
        found = ownruns.calibrate(measured_under(sweep(count), 1.4, 1.0), HWDB)
        before, after = found.before[0], found.after[0]
        assert before.error is not None and after.error is not None
        assert before.error == pytest.approx(1 / 1.4 - 1, abs=0.06)
        left.append(abs(after.error))
        widths.append(width(after))
        assert width(after) < 0.7 * width(before)
        shift = found.shifts[0]
        assert shift.n == count and shift.sigma < shift.prior_sigma
        # Neither the factors' doubt nor what is left of it is counted twice.
        assert after.sigma == pytest.approx(math.hypot(shift.sigma, shift.spread), rel=0.1)
    assert left[0] > 0.0005 and left[0] < 0.08 and left[-1] < 0.02
    assert widths[0] > widths[1] > widths[2]


def test_host_time_is_told_apart_from_scale() -> None:
    """A small model is host-bound: three rows show that the host is slow, not the kernels."""
    small = {
        **NEMO,
        "hidden": "1024",
        "heads": "16",
        "kv_heads": "16",
        "ffn": "4096",
        "layers": "24",
        "tp": "1",
    }
    small |= {"dp": "8", "mbs": "1", "seq_parallel": "no"}
    rows = [{**small, "id": f"r{n}", "mbs": str(m), "gbs": str(8 * m)} for n, m in enumerate((1, 2, 8, 32))]
    found = ownruns.calibrate(measured_under(rows, 1.0, 6.0), HWDB)
    assert not found.problems
    shift = found.shifts[0]
    assert shift.log_scale + shift.log_host > 1.2  # of log 6 = 1.8; the prior holds some back
    assert abs(shift.log_scale) < 0.3
    assert max(abs(prediction.error or 0.0) for prediction in found.after) < 0.1
    assert min(prediction.error or 0.0 for prediction in found.before) < -0.3


@pytest.mark.slow
def test_noise_widens_what_plans_may_differ_by() -> None:
    quiet, loud = (
        ownruns.calibrate(measured_under(sweep(8), 1.2, 1.0, noise), HWDB).shifts[0] for noise in (0.0, 0.4)
    )
    assert loud.spread > 1.5 * quiet.spread and loud.sigma > quiet.sigma


def test_other_stacks_keep_their_predictions() -> None:
    found = ownruns.calibrate(measured_under(sweep(3), 1.5, 1.0), HWDB)
    other = sweep(1, framework="Megatron-LM")
    before, after = (predict_rows(other, hwdb)[0] for hwdb in (HWDB, found.hwdb))
    assert isinstance(before, Prediction) and isinstance(after, Prediction)
    assert (before.step_s, before.sigma) == (after.step_s, after.sigma)
    # Another dtype of the stack moves the same way, not as far, and is not taken for measured.
    eight = sweep(1, dtype="fp8")
    before, after = (predict_rows(eight, hwdb)[0] for hwdb in (HWDB, found.hwdb))
    assert isinstance(before, Prediction) and isinstance(after, Prediction)
    assert 1.1 < after.step_s / before.step_s < 1.45 and after.sigma > 0.5 * before.sigma


def test_the_command_writes_an_overlay_that_reproduces_what_it_showed(tmp_path: Path) -> None:
    rows = measured_under(sweep(3), 1.3, 1.0)
    rows += [{**NEMO, "id": "bad", "tp": "3"}, {**NEMO, "id": "blank", "iter_time_s": ""}]
    mine, overlay = write(tmp_path / "mine.csv", rows), tmp_path / "mine"
    plain = ("--hwdb", neutral_folder(tmp_path / "neutral"))
    finished = tangram("calibrate", "run", mine, "--json", "-o", overlay, *plain)
    assert (finished.code, finished.err) == (0, "")
    shown = finished.json
    assert shown["used"] == 3 and [item["id"] for item in shown["unused"]] == ["bad", "blank"]
    assert all(item["reason"] for item in shown["unused"])
    again = predict_rows(rows[:3], neutral_hwdb(overlay))
    for item, row in zip(again, shown["rows"], strict=True):
        assert isinstance(item, Prediction)
        assert item.step_s == pytest.approx(row["after"]["step_s"], rel=1e-9)
        assert item.step_s_high == pytest.approx(row["after"]["step_s_high"], rel=1e-9)
        assert abs(row["after"]["error"]) < abs(row["before"]["error"])
    text = tangram("calibrate", "run", mine, *plain).out
    assert "3 rows used, 2 not." in text and "mine-0" in text
    report = json.loads(tangram("validate", "published", mine, "--json", *plain, "--hwdb", overlay).out)
    assert report["overall"]["median_ape"] < 0.05 and report["overall"]["interval_coverage"] == 1.0


def test_bad_files(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    for arguments in ((wrong,), (tmp_path / "none.csv",)):
        refused = tangram("calibrate", "run", *arguments)
        assert refused.code == 2 and refused.err.startswith("error:") and "Traceback" not in refused.err
    useless = write(tmp_path / "useless.csv", [{**NEMO, "gpu": "NoSuch"}])
    for extra in ((), ("--json",), ("-o", tmp_path / "out")):
        finished = tangram("calibrate", "run", useless, *extra)
        assert (finished.code, finished.out) == (2, "") and "NoSuch" in finished.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_mistyped_step_is_left_out_unless_kept(tmp_path: Path) -> None:
    """149 s typed for 14.9 would spoil the fit; a stack that is slower as a whole is believed."""
    rows = measured_under(sweep(4), 1.2, 1.0)
    clean = ownruns.calibrate(rows, HWDB).shifts
    slip = {**rows[1], "id": "slip", "iter_time_s": repr(10 * float(rows[1]["iter_time_s"]))}
    found = ownruns.calibrate([*rows, slip], HWDB)
    assert found.shifts == clean
    assert [problem.id for problem in found.problems] == ["slip"]
    assert "times slower" in found.problems[0].reason and "`keep=slip`" in found.problems[0].reason
    for keep in (["slip"], ["all"]):
        kept = ownruns.calibrate([*rows, slip], HWDB, keep)
        assert not kept.problems and kept.shifts[0].n == 5 and kept.shifts[0].spread > clean[0].spread
    slow = measured_under(sweep(4), 4.0, 1.0)
    assert not ownruns.calibrate(slow, HWDB).problems
    assert len(ownruns.calibrate([{**row, "iter_time_s": "9e4"} for row in slow], HWDB).problems) == 4
    mine, plain = (
        write(tmp_path / "mine.csv", [*rows, slip]),
        ("--hwdb", neutral_folder(tmp_path / "neutral")),
    )
    assert "4 rows used, 1 not." in tangram("calibrate", "run", mine, *plain).out
    assert "5 rows used, 0 not." in tangram("calibrate", "run", mine, "--keep", "slip", *plain).out
    unknown = tangram("calibrate", "run", mine, "--keep", "slap", *plain)
    assert unknown.code == 2 and "slip" in unknown.err


def test_an_unknown_framework_is_named(tmp_path: Path) -> None:
    """Its rows run as `generic`, and the answer says so instead of passing for a stack's."""
    rows = measured_under(sweep(2, framework="HomeGrown 1.0") + sweep(1, framework=""), 1.2, 1.0)
    mine = write(tmp_path / "mine.csv", [{**row, "id": f"r{n}"} for n, row in enumerate(rows)])
    for verb in (("calibrate", "run"), ("validate", "published")):
        notes = tangram(*verb, mine, "--json", "--hwdb", neutral_folder(tmp_path / "neutral")).json["notes"]
        assert [note["rows"] for note in notes] == [2, 1]
        assert "HomeGrown 1.0" in notes[0]["note"] and "generic" in notes[0]["note"]
        assert "megatron" in notes[0]["note"] and "no framework" in notes[1]["note"]
    text = tangram("calibrate", "run", mine, "--hwdb", neutral_folder(tmp_path / "neutral")).out
    assert "2 rows: framework 'HomeGrown 1.0' is not known" in text


def test_two_odd_rows_do_not_throw_out_the_normal_one() -> None:
    """Their median is odd itself: what the prediction says of the stack counts against rows that disagree."""
    rows = measured_under(sweep(3), 1.0, 1.0)
    for row, factor in zip(rows, (1.0, 2.6, 7.9), strict=True):
        row["iter_time_s"] = repr(factor * float(row["iter_time_s"]))
    found = ownruns.calibrate(rows, HWDB)
    assert [problem.id for problem in found.problems] == ["mine-2"]
    assert abs(found.shifts[0].log_scale) < 0.3 < math.log(2.6) / 2


@pytest.mark.parametrize("bad", [0.6, 1.6, 3.0])
def test_one_bad_row_in_three_hardly_moves_the_rest(bad: float) -> None:
    doubt, measured = shifts.Doubt(0.2, 0.0, 0.1), np.log([1.25, 1.25, 1.25 * bad])
    found = shifts.most_probable(lambda at: np.full(3, at[0]), measured, doubt, 0.0)
    assert found.log_scale == pytest.approx(math.log(1.25), abs=0.07)
    alone = shifts.most_probable(lambda at: np.full(1, at[0]), measured[:1], doubt, 0.0)
    assert 0 < alone.log_scale < math.log(1.25) and alone.common > found.common / 2


@pytest.mark.parametrize(
    ("errors", "agreed"),
    [
        ((0.04, 0.05, 0.3), 0.045),  # as far as the two nearest go, whatever the third says
        ((-0.04, -0.3, -0.05), -0.045),
        ((0.06, 0.07, 0.07), 0.05),  # no further than sources differ
        ((0.04, 0.05, -0.03), 0.0),  # one against
        ((0.01, 0.05, 0.06), 0.0),  # one that is where it was predicted to be
        ((0.04, 0.05), 0.0),
    ],
)
def test_rows_of_one_mind_shift_no_further_than_they_agree(errors: tuple[float, ...], agreed: float) -> None:
    """Too little to make any shift 3.5 times as probable as none."""
    error, doubt = np.array(errors), shifts.Doubt(0.05, 0.0, 0.1)
    assert shifts.agreed(error, doubt) == pytest.approx(agreed)
    found = shifts.most_probable(lambda at: np.full(len(error), at[0]), error, doubt, 0.0)
    assert found.log_scale == pytest.approx(agreed)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    shared=st.floats(0.02, 0.4),
    plan=st.floats(0.02, 0.2),
    seed=st.integers(0, 2**20),
)
def test_a_shift_does_not_hurt_on_average(shared: float, plan: float, seed: int) -> None:
    """Sources and rows as the prior says: what is left of the common error is smaller than the error."""
    random = np.random.default_rng(seed)
    before, after = [], []
    for _ in range(500):
        truth = random.normal(0, shared)
        rows = truth + random.normal(0, plan, 3)
        found = shifts.most_probable(lambda at: np.full(3, at[0]), rows, shifts.Doubt(shared, 0.0, plan), 0.0)
        before.append(truth**2)
        after.append((truth - found.log_scale) ** 2)
    # The ratio of 500 draws scatters by 3 % around what it is (1.03 where rows scatter thrice as far as
    # sources): an excess over the bound counts beyond three standard errors.
    excess = np.array(after) - 1.05 * np.array(before)
    assert excess.mean() < 3 * excess.std() / len(excess) ** 0.5


def test_what_rows_say_carries_over_the_less_the_farther() -> None:
    found = ownruns.calibrate(measured_under(sweep(4), 1.5, 1.0), HWDB)
    ratios = []
    for cells in ({}, {"dtype": "fp8"}, {"gpu": "H200-141GB"}, {"gpu": "A100-80GB"}):
        before, after = (predict_rows(sweep(1, **cells), hwdb)[0] for hwdb in (HWDB, found.hwdb))
        assert isinstance(before, Prediction) and isinstance(after, Prediction)
        ratios.append(after.step_s / before.step_s)
    assert ratios == sorted(ratios, reverse=True) and ratios[0] > 1.35 and 1.05 < ratios[-1] < 1.25


def test_verbs_of_other_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by entry point, imported when called; what is not installed says what to install."""
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([]))
    for group, verb in (("calibrate", "kernels"), ("validate", "testbed")):
        absent = tangram(group, verb, "--device", "cpu")
        assert absent.code == 2 and "pip install" in absent.err and registry.VERBS in absent.err
        assert verb in tangram(group, "--help").out
    entry = EntryPoint("calibrate.hello", "tests.unit.validation.test_own_runs:hello", registry.VERBS)
    monkeypatch.setattr(
        registry, "entry_points", lambda group: EntryPoints([entry] if group == registry.VERBS else [])
    )
    assert "hello" in tangram("calibrate", "--help").out
    assert tangram("calibrate", "hello", "--name", "you").out == "hello you\n"
    assert "hello" not in tangram("validate", "--help").out
    assert tangram("calibrate", "nonsense").code == 2
    app = typer.Typer()
    app.command("x")(hello)
    assert as_command(as_command(app, "x"), "x") is not None
    with pytest.raises(TangramError, match="register a function"):
        as_command(3, "x")


def hello(name: str = "nobody") -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


def test_the_list_of_parameters_holds_its_caps() -> None:
    found = parameters(HWDB)
    assert max(found.counts.by_gpu_and_dtype.values(), default=0) <= KERNEL_CAP == 3
    assert max(found.counts.by_stack.values()) <= STACK_CAP == 5
    assert sum(found.counts.by_fit.values()) == len(found.parameters)
    assert {parameter.role for parameter in found.parameters} == {"prediction", "error"}
    kernels = ("gemm", "attention", "memory", "launch", "link")
    for parameter in found.parameters:
        assert parameter.source and parameter.sigma >= 0
        assert (parameter.fitted_on == "assumed") == (parameter.source == "assumed")
        # Kernel and link parameters are never fitted on step times (a GPU kind's scale would say so).
        assert (
            parameter.kernel not in kernels
            or parameter.role == "error"
            or parameter.fitted_on != "step times"
        )


def test_parameters_of_an_overlay_hide_those_below(tmp_path: Path) -> None:
    folder = tmp_path / "efficiency"
    folder.mkdir()
    (folder / "x.csv").write_text(
        "gpu,dtype,kernel,stack,parameter,value,sigma,n,source\n*,*,dispatch,generic,seconds,7e-6,1e-6,3,bench\n"
    )
    shown = tangram("hw", "parameters", "--json", "--hwdb", tmp_path).json["parameters"]
    mine = [
        item for item in shown if (item["kernel"], item["gpu"], item["stack"]) == ("dispatch", "*", "generic")
    ]
    assert [(item["value"], item["layer"], item["n"]) for item in mine] == [(7e-6, str(tmp_path), 3)]
    text = tangram("hw", "parameters", "--hwdb", tmp_path)
    assert text.code == 0 and "cap 3" in text.out and "dispatch seconds" in text.out
