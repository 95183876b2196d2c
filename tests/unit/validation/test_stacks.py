"""Software stacks: which framework means which, fits that find known parameters, intervals, rows written."""

import csv
import io
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tangram_validate.calibration import folds, stackfit, stacks, surfaces, tables_cache
from tangram_validate.calibration.novelty import novelty
from tangram_validate.calibration.ranking import kendall, orders, ranking
from tangram_validate.calibration.stackfit import Fit
from tangram_validate.calibration.surfaces import (
    Mixtures,
    StackParameters,
    Surface,
)
from tangram_validate.published.defaults import software
from tangram_validate.published.predict import Prediction, Predictor
from tangram_validate.published.reading import Run, read_run
from tangram_validate.published.stacks import LINEAGES, stack_of

from tangram_sim.digests import ChangedFileWarning
from tangram_sim.hwdb import Hwdb
from tangram_sim.training.stacks import STACKS
from tests.neutral import neutral_hwdb
from tests.unit.validation.synthetic_runs import cases, synthetic

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


@pytest.mark.parametrize(
    ("framework", "date", "stack"),
    [
        ("Megatron-Bridge/Megatron-Core 26.04", "2026-04", "megatron-bridge"),
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
        surfaces.with_stacks([], ["megatron-lm"], StackParameters(time_scale=scale)) for scale in (1.0, 2.0)
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
    assert len(StackParameters._fields) == len(surfaces.KEYS) <= 5


def test_a_surface_agrees_with_predictions_between_its_points() -> None:
    """The fit works on interpolated tables; off the grid they must still be what is predicted."""
    runs = [replace(run_of(mbs=mbs, gbs=str(16 * int(mbs))), recompute="none") for mbs in ("1", "4")]
    found = surfaces.surface(runs)
    for at in (StackParameters(1.2, 1.1, 7e-6, 0.8, 1.4), StackParameters(0.9, 0.8, 45e-6, 1.3, 0.7)):
        predictor = Predictor(surfaces.with_stacks([], ["megatron-lm"], at))
        exact = [predictor.predict(run) for run in runs]
        seconds = [item.step_s for item in exact if isinstance(item, Prediction)]
        np.testing.assert_allclose(found.seconds(at), seconds, rtol=0.04)


def test_a_fit_finds_known_parameters_among_outliers() -> None:
    true = StackParameters(1.25, 1.3, 30e-6, 0.7, 1.5)
    surface = synthetic(200, 1)
    measured = surface.seconds(true) * np.exp(np.random.default_rng(2).normal(0, 0.02, 200))
    measured[::10] *= 3.0  # a tenth of the rows are plainly wrong
    wide = StackParameters(3.0, 3.0, 3.0, 3.0, 3.0)
    runs = cases(surface, measured, ["a", "b"] * 100, ["nemo"] * 200)
    found = stackfit.fit(runs, Fit(stackfit.ASSUMED), wide, 1e-6)
    np.testing.assert_allclose(found.parameters, true, rtol=0.12)


def test_what_no_run_determines_stays_at_the_prior() -> None:
    surface = synthetic(40, 3)
    alone = Surface(surface.base, *(0 * surface.tensor for _ in range(4)))
    prior = StackParameters(1.1, 0.9, 6e-6, 0.8, 1.3)
    measured = alone.seconds(StackParameters(1.3, 1.0, 20e-6))
    runs = cases(alone, measured, ["a"] * 40, ["nemo"] * 40)
    found = stackfit.fit(runs, Fit(prior)).parameters
    assert found.attention_scale == pytest.approx(prior.attention_scale, rel=0.01)
    assert found.tensor_exposed == pytest.approx(prior.tensor_exposed, rel=0.01)
    assert found.data_exposed == pytest.approx(prior.data_exposed, rel=0.01)
    nobody = runs.take(np.zeros(40, bool))
    assert stackfit.fit(nobody, Fit(prior)) == Fit(prior)


def test_what_is_special_to_one_machine_stays_with_its_generation() -> None:
    """A stack seen on one generation only is not that far from its lineage on another."""
    surface = synthetic(80, 6)
    stack, source = ["nemo"] * 40 + ["megatron"] * 40, ["a"] * 20 + ["b"] * 20 + ["c"] * 40
    measured = surface.seconds(StackParameters(1.2))
    measured[40:] *= 1.4
    runs = cases(surface, measured, source, stack)
    runs.generation[40:] = "Blackwell"
    fits = stackfit.fit_stacks(runs, np.ones(80, bool))
    nemo, megatron = (fits[name].parameters.time_scale for name in ("nemo", "megatron"))
    here = megatron * fits["megatron"].generations["Blackwell"]
    assert here == pytest.approx(1.4 * 1.2, rel=0.08)
    assert megatron / nemo < here / megatron
    assert fits["megatron"].error_of("Hopper") > fits["megatron"].error_of("Blackwell")
    assert fits["megatron-lm"].rows == {} and fits["megatron-lm"].sigma > fits["nemo"].sigma


def test_an_engine_that_waits_inherits_no_factor_of_communication() -> None:
    """All that was seen overlaps: DeepSpeed's engine still starts from what its collectives take."""
    surface = synthetic(80, 7)
    measured = surface.seconds(StackParameters(1.2, 1.0, 30e-6, 0.6, 2.0))
    fits = stackfit.fit_stacks(cases(surface, measured, ["a"] * 80, ["nemo"] * 80), np.ones(80, bool))
    of_generic, of_engine = fits["generic"].parameters, fits["megatron-deepspeed"].parameters
    assert of_generic.data_exposed > 1.2
    assert of_engine.tensor_exposed == of_engine.data_exposed == pytest.approx(1.0)
    assert of_engine.time_scale == pytest.approx(of_generic.time_scale)


def test_a_mixture_is_the_weighted_mean_of_logarithms() -> None:
    surface, at = synthetic(3, 7), StackParameters(1.2)
    mixed = Mixtures(surface, np.array([0, 0, 1]), np.array([0.25, 0.75, 1.0]))
    first, second, third = surface.seconds(at)
    np.testing.assert_allclose(mixed.seconds(at), [first**0.25 * second**0.75, third])
    np.testing.assert_allclose(mixed.take(np.array([False, True])).seconds(at), [third])
    faster = mixed.seconds(at._replace(dispatch_s=1e-9), np.array([1.0, 2.0]))
    assert faster[1] > 1.3 * third


def test_a_source_left_out_never_touches_its_own_prediction() -> None:
    surface = synthetic(60, 4)
    source, stack = ["a"] * 20 + ["b"] * 20 + ["c"] * 20, ["nemo"] * 40 + ["fsdp"] * 20
    measured = surface.seconds(StackParameters(1.3, 1.0, 20e-6))
    absurd = measured.copy()
    absurd[40:] *= 5.0
    honest, changed = (cases(surface, times, source, stack) for times in (measured, absurd))
    before, after = (
        stackfit.left_out(measured_runs, measured_runs.source) for measured_runs in (honest, changed)
    )
    np.testing.assert_array_equal(before.seconds[40:], after.seconds[40:])
    assert before.novelty.tolist() == [0] * 40 + [3] * 20
    assert (before.doubt[40:] > before.doubt[:20].max()).all()


def test_runs_left_out_may_be_played_without_what_their_source_says_of_kernels() -> None:
    """The fit of the others stays; only the runs that are replaced are predicted otherwise."""
    surface, slower = synthetic(60, 4), synthetic(60, 5)
    source, stack = ["a"] * 20 + ["b"] * 20 + ["c"] * 20, ["nemo"] * 60
    found = cases(surface, surface.seconds(StackParameters(1.3, 1.0, 20e-6)), source, stack)
    rows = np.arange(40, 60)
    alone = found.surface.replaced(rows, Mixtures.single(slower.take(rows)))
    plain, held = (
        stackfit.left_out(found, found.source, held=item) for item in (None, replace(found, surface=alone))
    )
    np.testing.assert_array_equal(plain.seconds[:40], held.seconds[:40])
    own = plain.fits["c"]["nemo"].parameters
    assert own == held.fits["c"]["nemo"].parameters
    factor = np.array([plain.fits["c"]["nemo"].generations.get(item, 1.0) for item in found.generation[rows]])
    np.testing.assert_allclose(held.seconds[40:], slower.take(rows).seconds(own, factor))


@pytest.mark.parametrize(
    ("stack", "generation", "entry"),
    [("nemo", "Hopper", 0), ("nemo", "Blackwell", 1), ("megatron", "Hopper", 2), ("fsdp", "Hopper", 3)],
)
def test_novelty_is_told_by_stack_and_generation(stack: str, generation: str, entry: int) -> None:
    names, kinds = np.array(["nemo", stack]), np.array(["Hopper", generation])
    assert novelty(names, kinds, np.array([True, False]))[1] == entry


def test_order_within_sweeps_and_what_the_pick_costs() -> None:
    measured, predicted = np.array([1.0, 2.0, 3.0, 9.0, 9.0]), np.array([2.0, 1.0, 3.0, 1.0, 5.0])
    found = ranking(measured, predicted, np.array(["a"] * 5), np.array([1, 1, 1, 2, 2]))
    assert (found.sweeps, found.tau, found.regret) == (1, pytest.approx(1 / 3), pytest.approx(1.0))
    assert kendall(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(2 / math.sqrt(6))


def test_pairs_nearer_than_the_scatter_of_measurements_do_not_count_as_order() -> None:
    """Three plans, two of them 1 % apart and predicted the other way round."""
    measured, predicted = np.array([1.0, 1.01, 1.3]), np.array([1.1, 1.0, 1.4])
    found = orders(measured, predicted, np.array(["a"] * 3), np.zeros(3, np.int64))["a"]
    assert found.tau == pytest.approx(1 / 3) and found.clear_tau == pytest.approx(1.0)
    assert found.unclear == pytest.approx(1 / 3) and found.regret == pytest.approx(0.01)
    assert kendall(measured, predicted, 0.5) != kendall(measured, predicted)  # nothing is told apart: nan
    assert orders(measured[:2], predicted[:2], np.array(["a"] * 2), np.zeros(2, np.int64)) == {}


def test_the_key_of_tables_is_of_all_they_come_from(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("a,b\n1,2\n")
    before = tables_cache.fingerprint(table, [], 80)
    assert before == tables_cache.fingerprint(table, [], 80) != tables_cache.fingerprint(table, [], 81)
    table.write_text("a,b\n1,3\n")
    assert tables_cache.fingerprint(table, [], 80) != before


def same(mixtures: Mixtures, other: Mixtures) -> bool:
    """Whether two tables agree to the last bit."""
    pairs = [(mixtures.owner, other.owner), (mixtures.weight, other.weight)]
    pairs += [(getattr(mixtures.surface, name), getattr(other.surface, name)) for name in Surface.__slots__]
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("runs", [0, 5])
def test_tables_are_read_from_the_cache_to_the_last_bit(runs: int, tmp_path: Path) -> None:
    first, second = (Mixtures.single(synthetic(runs, seed)) for seed in (1, 2))
    answers = iter((first, second))
    found = [tables_cache.cached(tmp_path / "k", "key", lambda: next(answers)) for _ in range(2)]
    assert same(found[0], first) and same(found[1], first)
    assert tables_cache.cached(None, "key", lambda: next(answers)) is second


def damages(text: str) -> dict[str, str]:
    digit = text.index('"values": [') + 13
    return {
        "a digit": text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :],
        "a name": text.replace('"tensor"', '"sensor"'),
        "cut off": text[: len(text) // 2],
        "empty": "",
        "no object": "[1, 2]",
        "nan": text.replace('"values": [', '"values": [NaN, ', 1),
        "deep": "[" * 100_000,
    }


@pytest.mark.parametrize("damage", ["a digit", "a name", "cut off", "empty", "no object", "nan", "deep"])
def test_damaged_tables_are_said_and_made_anew(damage: str, tmp_path: Path) -> None:
    made = Mixtures.single(synthetic(5, 1))
    tables_cache.cached(tmp_path, "key", lambda: made)
    (file,) = tmp_path.iterdir()
    written = file.read_text()
    file.write_text(damages(written)[damage])
    with pytest.warns(ChangedFileWarning, match="simulated again"):
        assert same(tables_cache.cached(tmp_path, "key", lambda: made), made)
    assert file.read_text() == written


def test_configurations_do_not_depend_on_names() -> None:
    run, other = run_of(), run_of(id="z", source_id="q", model="something")
    assert folds.configuration(run) == folds.configuration(other)
    assert folds.configuration(run) != folds.configuration(run_of(mbs="1"))


def test_what_a_sweep_is_does_not_change_with_fields_of_a_job() -> None:
    """Named facts are hashed: neither what the software does to a job nor over what ZeRO cuts splits one."""
    run = run_of()
    assert folds.setting(run) == folds.setting(run_of(sharding="zero1 group 8", mbs="1", tp="4", dp="4"))
    assert folds.setting(run) == folds.setting(run_of(extra="CUDA_LAUNCH_BLOCKING=1"))
    assert folds.setting(run) != folds.setting(run_of(gbs="8"))


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
    assert {row["stack"] for row in rows} == {"generic", *(item for of in LINEAGES.values() for item in of)}
    for stack, generations in (
        ("generic", 0),
        ("megatron-lm", 1),
    ):  # five parameters, one scale per generation
        assert sum(row["stack"] == stack and row["gpu"] == "*" for row in rows) == 5
        assert sum(row["stack"] == stack and row["gpu"] == "arch:Ampere" for row in rows) == generations
    assert len(rows) == 5 * len({row["stack"] for row in rows}) + 1
    gpu = HWDB.gpu("A100-SXM4-80GB")
    fitted = Hwdb.load([tmp_path / "hwdb"]).efficiency(gpu, "fp16", "megatron-lm").time_scale.value
    own = [row for row in rows if row["stack"] == "megatron-lm" and row["gpu"] == "arch:Ampere"]
    assert fitted == float(own[0]["value"]) and own[0]["n"] == "4"
    unseen = [row for row in rows if row["stack"] == "nemo"]
    assert all(row["n"] == "0" and row["source"].startswith("inherited from lineage") for row in unseen)


def test_the_command_reports_a_wrong_file(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tangram_validate.calibration.stacks",
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
