"""Kinds of GPU left out of a fit in turn: how much wider intervals must be on kinds never run on."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tangram_validate.serving.fitting import FittedRow
from tangram_validate.serving.left_out import NovelErrors, left_out, novel_rows, widened
from tangram_validate.serving.predict import PredictedRun, predict
from tangram_validate.serving.reading import read_rows_as_runs
from tangram_validate.serving.runs import APART, BURST, CLOSED, ServedRun, publisher
from tangram_validate.serving.tables import as_row, calibrate, table_of

from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import CalibrationTable

HWDB = Hwdb.load(())
KINDS = ("A100-SXM4-80GB", "B200-HGX", "H100-SXM5-80GB")
ROW = {
    **{"model": "meta-llama/Llama-3.1-8B", "precision": "bf16", "engine": "vllm", "osl": "256"},
    **{"scenario": "closed-loop concurrency", "tp": "1", "tpot_ms": "1"},
}


def runs(factor: Callable[[str], float]) -> list[ServedRun]:
    """Thirty runs of each of KINDS that took so many times what is predicted, with a scatter of 3 %."""
    cells = [
        ROW | {"gpu": gpu, "concurrency": str(clients), "isl": isl}
        for gpu in KINDS
        for clients in (1, 4, 16, 64, 256)
        for isl in ("128", "256", "512", "1024", "1536", "2048")
    ]
    read = [
        read_rows_as_run
        for read_rows_as_run in read_rows_as_runs(cells, HWDB)
        if isinstance(read_rows_as_run, ServedRun)
    ]
    found, _ = predict(read, HWDB, CalibrationTable.load(HWDB))
    scatter = np.random.default_rng(7).lognormal(0.0, 0.03, len(cells))
    timed = [
        row | {"tpot_ms": str(1e3 * predicted_run.predicted * factor(row["gpu"]) * noise)}
        for row, predicted_run, noise in zip(cells, found, scatter, strict=True)
    ]
    return [
        read_rows_as_run
        for read_rows_as_run in read_rows_as_runs(timed, HWDB)
        if isinstance(read_rows_as_run, ServedRun)
    ]


def widths(own: list[ServedRun]) -> list[FittedRow]:
    """Rows of how much wider intervals are on a new kind, each of KINDS left out in turn."""
    folds = {of[0].gpu: predict(of, HWDB, table_of(rows))[0] for of, _, rows in left_out(own, HWDB, "gpu")}
    return novel_rows(folds, "gpu")


def test_kinds_that_differ_more_than_runs_do_widen_what_is_said_of_a_new_one() -> None:
    alike = {row.engine: row.value for row in widths(runs(lambda gpu: 1.0))}
    apart = {row.engine: row.value for row in widths(runs(lambda gpu: 0.7 + 0.4 * KINDS.index(gpu)))}
    assert alike.keys() == apart.keys() == {"*"}
    assert all(1.0 <= alike[engine] < apart[engine] for engine in alike)


def test_widened_intervals_hold_nine_of_ten_runs_on_kinds_left_out() -> None:
    own = runs(lambda gpu: 0.7 + 0.4 * KINDS.index(gpu))
    wider = [as_row(row, "") for row in widths(own)]
    inside = {False: 0, True: 0}
    for fold, _, rows in left_out(own, HWDB, "gpu"):
        for wide in inside:
            table = CalibrationTable(
                (0, row) for row in (*(as_row(fitted, "") for fitted in rows), *wider * wide)
            )
            found, _ = predict(fold, HWDB, table)
            inside[wide] += sum(
                predicted_run.low <= predicted_run.measured <= predicted_run.high for predicted_run in found
            )
    assert inside[False] < 0.8 * len(own) <= 0.85 * len(own) <= inside[True]


def test_a_fold_s_own_errors_do_not_widen_it_and_each_fold_weighs_the_same() -> None:
    """Three hundred errors of one kind count as much as thirty of another; of one fold nothing is known."""
    few, many = [2.0] * 30, [0.5] * 300
    cells = {("vllm", "few"): few, ("vllm", "many"): many, ("sglang", "odd"): [9.0] * 29}
    errors = NovelErrors({"residual_tpot": cells})
    assert errors.factor("residual_tpot") == 2.0
    assert errors.factor("residual_tpot", without="few") == 1.0  # never narrower than what is known
    assert errors.factor("residual_tpot", without="many") == 2.0
    assert errors.factor("residual_ttft") is None
    assert NovelErrors({"residual_tpot": {("vllm", "few"): few}}).factor("residual_tpot", "few") is None


def test_a_kind_is_left_out_of_every_engine_at_once() -> None:
    """Another engine's errors on the same kind say nothing of how far off a kind is that nobody ran."""
    cells = {("vllm", "a"): [1.0] * 30, ("sglang", "a"): [5.0] * 30, ("vllm", "b"): [2.0] * 30}
    assert NovelErrors({"residual_tpot": cells}).factor("residual_tpot", without="a") == 2.0


def test_models_never_run_have_wider_intervals_than_known_ones() -> None:
    """Of kinds and models both unknown the added variances add up."""
    rows = [
        *(as_row(FittedRow("*", name, "seen", 50, 0, 50), "") for name in ("gpu:L40S", "model:qwen3-8b")),
        *(
            as_row(FittedRow("*", "*", name, value, 0, 50), "")
            for name, value in (("residual_tpot", 0.1), ("unseen_tpot", 2.0), ("new_model_tpot", 3.0))
        ),
    ]
    table = CalibrationTable((0, row) for row in rows)
    spread = {
        (gpu, model): table.fit("vllm", model=model, gpu=gpu).residuals["residual_tpot"]
        for gpu in ("L40S", "T4")
        for model in ("qwen3-8b", "llama3-8b")
    }
    assert spread["L40S", "qwen3-8b"] == pytest.approx(0.1)
    assert spread["T4", "qwen3-8b"] == pytest.approx(0.2)
    assert spread["L40S", "llama3-8b"] == pytest.approx(0.3)
    assert spread["T4", "llama3-8b"] == pytest.approx(0.1 * (4 + 9 - 1) ** 0.5)


def test_a_source_is_new_in_every_service_and_a_kind_adds_what_is_beyond_it() -> None:
    """Kinds left out are left out with their sources: errors there are of both, and are not counted twice."""

    def spread(source: float, gpu: str, model: str = "qwen3-8b") -> float:
        names = {"residual_tpot": 0.1, "unseen_tpot": 2.0, "new_model_tpot": 3.0, "new_source_tpot": source}
        rows = [FittedRow("*", "*", name, value, 0, 50) for name, value in names.items()]
        rows += [FittedRow("*", name, "seen", 50, 0, 50) for name in ("gpu:L40S", "model:qwen3-8b")]
        table = CalibrationTable((0, as_row(row, "")) for row in rows)
        return table.fit("vllm", model=model, gpu=gpu).residuals["residual_tpot"]

    assert spread(1.5, "L40S") == pytest.approx(0.15)
    assert spread(1.5, "T4") == pytest.approx(0.2)
    assert spread(2.5, "T4") == pytest.approx(0.25)
    assert spread(2.5, "T4", "llama3-8b") == pytest.approx(0.3)
    assert spread(1.0, "T4", "llama3-8b") == pytest.approx(0.1 * (4 + 9 - 1) ** 0.5)


def test_a_publisher_is_the_owner_of_what_is_cited() -> None:
    served_run = runs(lambda gpu: 1.0)[0]
    cited = {
        "gpustack/gpustack docs/h100.md @47": "gpustack",
        "aiconfigurator silicon_sample.csv; met": "aiconfigurator silicon_sample.csv; met",
        "": "",
    }
    for source, owner in cited.items():
        assert publisher(replace(served_run, source=source)) == owner


def test_bursts_are_as_wide_as_other_bursts_ask_and_parts_apart_as_they_were() -> None:
    table = CalibrationTable.load(HWDB)
    seen, new = (
        table.fit("vllm", model=model, gpu=gpu).residuals
        for model, gpu in (("llama3-8b", "H100-SXM5-80GB"), ("no-such-model", "MI300X"))
    )
    for name in ("residual_burst_tpot", "residual_burst_output_tok_s", "residual_apart_ttft"):
        assert new[name] == seen[name]
    assert new["residual_output_tok_s"] > seen["residual_output_tok_s"]
    served_run = runs(lambda gpu: 1.0)[0]
    closed, burst, apart = (
        PredictedRun(replace(served_run, load=load), "tpot", 1.0, 1.0, 0.8, 1.1)
        for load in (CLOSED, BURST, APART)
    )
    asked = {"residual_tpot": 3.0, "residual_burst_tpot": 2.0}
    errors = NovelErrors(
        {name: {("vllm", fold): [factor] * 30 for fold in "ab"} for name, factor in asked.items()}
    )
    assert widened(apart, errors, "a") == apart
    wide = widened(closed, errors, "a")
    assert (wide.low, wide.high) == pytest.approx((0.8**3, 1.1**3))
    assert widened(burst, errors, "a").high == pytest.approx(1.1**2)


def test_what_is_left_of_a_model_on_a_kind_stays_with_both() -> None:
    slow = runs(lambda gpu: 1.4 if gpu == KINDS[0] else 1.0)
    table = table_of(calibrate(slow, HWDB))
    known, other, elsewhere = (
        table.fit("vllm", model=model, precision="bf16", gpu=gpu)["time_scale"]
        for model, gpu in (("llama3-8b", KINDS[0]), ("qwen3-8b", KINDS[0]), ("llama3-8b", "L40S"))
    )
    assert known > 1.02 * other
    assert other == elsewhere == table.fit("vllm")["time_scale"]


def test_too_few_runs_beside_a_fold_and_folds_nobody_knows_are_said() -> None:
    own = runs(lambda gpu: 1.0)[:25]
    with pytest.raises(BadInputError, match="too few to fit"):
        list(left_out(own, HWDB, "gpu"))
    with pytest.raises(UnknownNameError, match="leave_out"):
        list(left_out(own, HWDB, "colour"))


def test_the_shipped_rows_widen_all_engines_alike() -> None:
    table = CalibrationTable.load(HWDB)
    rows = {(row["engine"], row["parameter"]): row.number("value") for row in table.rows()}
    for engine in ("vllm", "sglang", "trtllm"):
        seen, new = (table.fit(engine, gpu=gpu).residuals for gpu in ("H100-SXM5-80GB", "MI300X"))
        wider = max(1.0, rows["*", "unseen_tpot"] / rows["*", "new_source_tpot"])
        # Nobody measured whole requests there: their intervals widen as those of tokens do.
        for name in ("residual_tpot", "residual_e2e"):
            assert new[name] / seen[name] == pytest.approx(wider)
            fitted = rows.get((engine, name)) or rows["*", name]
            assert seen[name] == pytest.approx(fitted * rows["*", "new_source_tpot"])
