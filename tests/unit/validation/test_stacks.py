"""Software stacks: which framework means which, fits that find known parameters, intervals, rows written."""

import csv
import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tangram_sim.hwdb import Hwdb
from tangram_sim.opgraph import FloatArray
from tangram_sim.training.stacks import STACKS
from tangram_sim.validation.calibration import folds, stackfit, stacks, surfaces
from tangram_sim.validation.calibration.stackfit import Cases
from tangram_sim.validation.calibration.surfaces import DISPATCH, EXPOSED, KNOTS, Parameters, Surface
from tangram_sim.validation.published.defaults import software
from tangram_sim.validation.published.predict import Prediction, Predictor
from tangram_sim.validation.published.reading import Run, read_run
from tangram_sim.validation.published.stacks import DEEPSPEED, stack_of
from tests.neutral import neutral_hwdb

HWDB = neutral_hwdb()
ROW = {
    "id": "a-1",
    "source_id": "paper",
    "tier": "A",
    "date": "2022-05",
    "gpu": "A100-80GB",
    "gpus_per_node": "8",
    "nodes": "2",
    "gpus": "16",
    "framework": "Megatron-LM",
    "layers": "8",
    "hidden": "2048",
    "heads": "16",
    "kv_heads": "16",
    "ffn": "8192",
    "ffn_kind": "plain",
    "vocab": "51200",
    "seq_len": "1024",
    "dtype": "fp16",
    "tp": "4",
    "pp": "1",
    "dp": "4",
    "mbs": "2",
    "gbs": "32",
    "recompute": "none",
    "iter_time_s": "1.0",
}


def run_of(**cells: str) -> Run:
    found = read_run(ROW | cells, HWDB)
    assert isinstance(found, Run), found
    return found


def synthetic(n: int, seed: int) -> Surface:
    """Runs whose step is max(kernels, host) + attention + tensor- + data-parallel seconds, as a surface."""
    draw = np.random.default_rng(seed)
    kernels, attention, tensor, data = draw.uniform(0.5, 2.0, (4, n)) * np.array([[1.0], [0.3], [0.3], [0.3]])
    launches = draw.uniform(2e3, 6e4, n)
    base = np.maximum(kernels[:, None], launches[:, None] * DISPATCH) + (attention + tensor + data)[:, None]

    def change(of: FloatArray) -> FloatArray:
        return np.repeat((of[:, None] * (EXPOSED - 1.0))[:, None, :], len(KNOTS), axis=1)

    nothing = np.zeros_like(change(data))
    return Surface(base, change(attention), change(tensor), change(data), nothing)


def cases(surface: Surface, measured: FloatArray, source: list[str], stack: list[str]) -> Cases:
    n = len(measured)
    return Cases(measured, np.array(source), np.array(stack), np.arange(n) % 5, surface)


@pytest.mark.parametrize(
    ("framework", "date", "stack"),
    [
        ("Megatron-LM", "2022-05", "megatron-lm"),
        ("Megatron-LM 0.14", "2026-04", "megatron"),
        ("Megatron-DeepSpeed", "", "megatron-deepspeed"),
        ("DeepSpeed/Megatron (AMP fork)", "2022", "amp"),
        ("NeMo 24.09", "", "nemo"),
        ("Composer/PyTorch FSDP", "2023", "fsdp"),
        ("torchtitan", "2025", "fsdp"),
        ("DeepSpeed", "2023", "deepspeed"),
        ("InternEvo", "2024", "internevo"),
        ("MaxText (JAX)", "2025", "jax"),
        ("PyTorch (NVIDIA BERT, apex DDP, LAMB)", "2021", "pytorch"),
        ("PyTorch with torch.amp", "2021", "pytorch"),
        ("Something of our own", "2025", "generic"),
        ("", "", "generic"),
    ],
)
def test_a_framework_and_a_date_name_the_stack(framework: str, date: str, stack: str) -> None:
    assert stack_of(software(framework, date)) == stack
    assert stack in STACKS


def test_a_run_is_priced_under_its_stack() -> None:
    assert run_of().job.stack == "megatron-lm"
    assert run_of(framework="made up").job.stack == "generic"


def test_rows_of_a_stack_change_its_predictions_and_no_other() -> None:
    plain, slow = (
        surfaces.with_stacks([], ["megatron-lm"], Parameters(time_scale=scale)) for scale in (1.0, 2.0)
    )
    for framework, differs in (("Megatron-LM", True), ("made up", False)):
        run = run_of(framework=framework)
        before, after = Predictor(plain).predict(run), Predictor(slow).predict(run)
        assert isinstance(before, Prediction)
        assert isinstance(after, Prediction)
        assert (after.step_s > 1.2 * before.step_s) is differs
        gpu = run.cluster.groups[0].node.gpu
        assert (slow.efficiency(gpu, "fp16", run.job.stack) != slow.efficiency(gpu, "fp16")) is differs


def test_no_stack_has_more_than_five_parameters() -> None:
    """The issue's bound: more would let a stack describe its rows instead of its software."""
    assert len(Parameters._fields) == len(surfaces.KEYS) <= 5


def test_a_surface_agrees_with_predictions_between_its_points() -> None:
    """The fit works on interpolated tables; off the grid they must still be what is predicted."""
    runs = [replace(run_of(mbs=mbs, gbs=str(16 * int(mbs))), recompute="none") for mbs in ("1", "4")]
    found = surfaces.surface(runs)
    for at in (Parameters(1.2, 1.1, 7e-6, 0.8, 1.4), Parameters(0.9, 0.8, 45e-6, 1.3, 0.7)):
        predictor = Predictor(surfaces.with_stacks([], ["megatron-lm"], at))
        exact = [predictor.predict(run) for run in runs]
        seconds = [one.step_s for one in exact if isinstance(one, Prediction)]
        np.testing.assert_allclose(found.seconds(at), seconds, rtol=0.04)


def test_a_fit_finds_known_parameters_among_outliers() -> None:
    true = Parameters(1.25, 1.3, 30e-6, 0.7, 1.5)
    surface = synthetic(200, 1)
    measured = surface.seconds(true) * np.exp(np.random.default_rng(2).normal(0, 0.02, 200))
    measured[::10] *= 3.0  # a tenth of the rows are plainly wrong
    source = np.array(["a", "b"] * 100)
    wide = Parameters(3.0, 3.0, 3.0, 3.0, 3.0)
    found = stackfit.fit(surface, measured, source, stackfit.ASSUMED, wide)
    np.testing.assert_allclose(found, true, rtol=0.12)


def test_what_no_run_determines_stays_at_the_prior() -> None:
    surface = synthetic(40, 3)
    alone = Surface(surface.base, *(0 * surface.tensor for _ in range(4)))
    prior = Parameters(1.1, 0.9, 6e-6, 0.8, 1.3)
    found = stackfit.fit(alone, alone.seconds(Parameters(1.3, 1.0, 20e-6)), np.array(["a"] * 40), prior)
    assert found.attention_scale == pytest.approx(prior.attention_scale, rel=0.01)
    assert found.tensor_exposed == pytest.approx(prior.tensor_exposed, rel=0.01)
    assert found.data_exposed == pytest.approx(prior.data_exposed, rel=0.01)
    nobody = np.array([], dtype=int)
    assert stackfit.fit(surface.take(nobody), np.array([]), np.array([]), prior) == prior


def test_a_source_left_out_never_touches_its_own_prediction() -> None:
    surface = synthetic(60, 4)
    source, stack = ["a"] * 20 + ["b"] * 20 + ["c"] * 20, ["nemo"] * 40 + ["fsdp"] * 20
    measured = surface.seconds(Parameters(1.3, 1.0, 20e-6))
    absurd = measured.copy()
    absurd[40:] *= 5.0
    honest, changed = (cases(surface, times, source, stack) for times in (measured, absurd))
    seconds, known = stackfit.left_out(honest, honest.source)
    again, _ = stackfit.left_out(changed, changed.source)
    np.testing.assert_array_equal(seconds[40:], again[40:])
    assert known.tolist() == [True] * 40 + [False] * 20


def test_configurations_do_not_depend_on_names() -> None:
    one, other = run_of(), run_of(id="z", source_id="q", model="something")
    assert folds.configuration(one) == folds.configuration(other)
    assert folds.configuration(one) != folds.configuration(run_of(mbs="1"))


def test_the_command_writes_rows_the_database_takes(tmp_path: Path) -> None:
    runs, folder = tmp_path / "runs.csv", tmp_path / "hwdb" / "efficiency"
    folder.mkdir(parents=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, ROW.keys())
    writer.writeheader()
    for number, mbs in enumerate(("1", "2", "4", "8")):
        writer.writerow(
            ROW | {"id": str(number), "source_id": f"s{number % 2}", "mbs": mbs, "iter_time_s": "0.5"}
        )
    runs.write_text(text.getvalue())
    assert stacks.main([str(runs), str(folder)]) == 0
    rows = list(csv.DictReader(io.StringIO((folder / "stacks.csv").read_text())))
    assert {row["stack"] for row in rows} == {"generic", "megatron-lm", *DEEPSPEED}
    assert all(
        len([row for row in rows if row["stack"] == stack]) <= 5 for stack in ("generic", "megatron-lm")
    )
    gpu = HWDB.gpu("A100-SXM4-80GB")
    fitted = Hwdb.load([tmp_path / "hwdb"]).efficiency(gpu, "fp16", "megatron-lm").time_scale.value
    assert fitted == float(next(row["value"] for row in rows if row["stack"] == "megatron-lm"))


def test_the_command_reports_a_wrong_file(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tangram_sim.validation.calibration.stacks",
            str(wrong),
            str(tmp_path / "o.csv"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "not a table of training runs" in done.stderr
    assert "Traceback" not in done.stderr
