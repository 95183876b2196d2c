"""How far serving predictions are off: the one table of docs/serving/validation.md, and its figures as JSON.

    python -m benchmarks.serving_accuracy FOLDER [shipped] [gpu] [model] [source] [--folds KEPT]

FOLDER holds the collected tables. `shipped` scores the shipped calibration on them, `gpu`, `model` and
`source` leave each kind of GPU, each model or each publisher out of all tables together and predict it from
rows fitted to the others (minutes), and print the rows of calibration on how much wider intervals are there;
of kinds and models those with 15 runs, of publishers those with 30, on kinds and of models that the others
have, too. Without words all four.
Figures of what was not asked for stay as they are. What folds came to is kept in the folder KEPT where one is
given, and read from it by the next call: to go on with what was cut short, as long as nothing else changed.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from tangram_validate.serving.left_out import (
    FOLDS,
    LEAST_OF_FOLD,
    left_out,
    novel_errors,
    novel_rows,
    widened,
)
from tangram_validate.serving.null import with_null
from tangram_validate.serving.observations import is_telling
from tangram_validate.serving.predict import PredictedRun, predict
from tangram_validate.serving.reading import read_tables
from tangram_validate.serving.runs import (
    APART,
    BURST,
    CLOSED,
    DECODE,
    OFFLINE,
    OPEN,
    SHAREGPT,
    START,
    STATIC,
    ServedRun,
    publisher,
)
from tangram_validate.serving.tables import calibration_csv, seen, table_of

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import CalibrationTable

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benchmarks/results/serving_accuracy.json"
PAGE = ROOT / "docs/serving/validation.md"
BEGIN, END = "<!-- table of benchmarks.serving_accuracy -->\n", "<!-- end of the table -->"
TABLES = ("measurements.csv", "measurements_2026-11.csv", "vllm_kv_capacity.csv", "helix_runs.csv")
PARTS = ("shipped", "gpu", "model", "source")
KEPT = ("metric", "measured", "predicted", "low", "high", "null")  # of a prediction in a kept fold
LEAST_RUNS_OF_FOLD = 15  # of a kind or model that is left out: every fold is a fit to all other runs
WIDTHS = "each {} of the tables of measured runs left out in turn: benchmarks.serving_accuracy"
Test = Callable[[PredictedRun], bool]


def _is(load: str, metric: str, more: Test = lambda predicted_run: True) -> Test:
    return lambda predicted_run: (
        predicted_run.run.load == load and predicted_run.metric == metric and more(predicted_run)
    )


def _splitwise(predicted_run: PredictedRun) -> bool:
    return predicted_run.run.version == "0.2"


def _sharegpt(predicted_run: PredictedRun) -> bool:
    return predicted_run.run.dataset == SHAREGPT


def _alike(predicted_run: PredictedRun) -> bool:
    return not predicted_run.run.dataset and not _splitwise(predicted_run) and not predicted_run.run.rate


LINES: tuple[tuple[str, Test], ...] = (
    ("TPOT, closed loop", _is(CLOSED, "tpot")),
    ("- vLLM", _is(CLOSED, "tpot", lambda predicted_run: predicted_run.run.engine == "vllm")),
    ("- SGLang", _is(CLOSED, "tpot", lambda predicted_run: predicted_run.run.engine == "sglang")),
    ("- TensorRT-LLM", _is(CLOSED, "tpot", lambda predicted_run: predicted_run.run.engine == "trtllm")),
    ("- on H100", _is(CLOSED, "tpot", lambda predicted_run: predicted_run.run.gpu.startswith("H100"))),
    ("- on B200", _is(CLOSED, "tpot", lambda predicted_run: predicted_run.run.gpu.startswith("B200"))),
    ("TTFT, closed loop", _is(CLOSED, "ttft")),
    ("TPOT, prefill and decode apart", _is(APART, "tpot")),
    ("TTFT, the same", _is(APART, "ttft")),
    ("open loop (vLLM, H100): E2E", _is(OPEN, "e2e")),
    ("the same: TTFT", _is(OPEN, "ttft")),
    (
        "greatest throughput by shape, TensorRT-LLM 0.15",
        _is(OFFLINE, "output_tok_s", lambda predicted_run: predicted_run.run.version.startswith("0.15")),
    ),
    (
        "greatest throughput, TensorRT-LLM 1.0",
        _is(OFFLINE, "output_tok_s", lambda predicted_run: not predicted_run.run.version.startswith("0.15")),
    ),
    ("static batches, TensorRT-LLM 0.9: tokens/s", _is(STATIC, "output_tok_s")),
    ("decode alone, vLLM on B200: TPOT", _is(DECODE, "tpot")),
    ("batches of 2023 (Splitwise): TPOT", _is(BURST, "tpot", _splitwise)),
    ("the same: TTFT", _is(BURST, "ttft", _splitwise)),
    ("bursts of ShareGPT: tokens/s", _is(BURST, "output_tok_s", _sharegpt)),
    ("the same: TTFT", _is(BURST, "ttft", _sharegpt)),
    ("bursts of equal requests: tokens/s", _is(BURST, "output_tok_s", _alike)),
    ("the same: TTFT", _is(BURST, "ttft", _alike)),
    (
        "all bursts but Splitwise's: tokens/s",
        _is(BURST, "output_tok_s", lambda predicted_run: not _splitwise(predicted_run)),
    ),
    ("KV tokens at vLLM's start", _is(START, "kv_tokens")),
    (
        "layers on unlike GPUs (Helix): tokens/s",
        lambda predicted_run: bool(predicted_run.run.placed) and predicted_run.metric == "output_tok_s",
    ),
)


# Kinds of GPU whose throughputs by shape are divided by each other.
RATIOS = (
    ("ratio of two kinds (the same shapes): H100 over A100 SXM", "H100-SXM5-80GB", "A100-SXM4-80GB"),
    ("the same: A100 SXM over PCIe", "A100-SXM4-80GB", "A100-PCIe-80GB"),
)


def ratios(found: Sequence[PredictedRun], one: str, other: str) -> dict[str, Any]:
    """Errors of one kind's greatest throughput over another's, wherever both were measured alike."""
    by_kind: dict[str, dict[object, PredictedRun]] = {one: {}, other: {}}
    for row in found:
        run = row.run
        if run.load == OFFLINE and run.version.startswith("0.15") and run.gpu in by_kind:
            by_kind[run.gpu][run.model.name, run.precision, run.tp, run.isl, run.osl] = row
    errors = np.array(
        [
            row.predicted / of.predicted * of.measured / row.measured - 1.0
            for key, row in by_kind[one].items()
            if (of := by_kind[other].get(key)) is not None
        ]
    )
    return {"rows": len(errors), **_errors(errors)} if len(errors) else {"rows": 0}


def _errors(errors: Any) -> dict[str, float]:
    return {
        "median": float(np.median(np.abs(errors))),
        "p90": float(np.quantile(np.abs(errors), 0.9)),
        "bias": float(np.median(errors)),
    }


def scores(found: Sequence[PredictedRun]) -> list[dict[str, Any]]:
    """Of each line: rows, median and 90th percentile of absolute errors, bias, coverage, null's median."""
    clear = [predicted_run for predicted_run in found if not predicted_run.run.doubt]
    answers = []
    for _, test in LINES:
        own = [predicted_run for predicted_run in clear if test(predicted_run)]
        errors = np.array([predicted_run.predicted / predicted_run.measured - 1.0 for predicted_run in own])
        nulls = [
            abs(predicted_run.null / predicted_run.measured - 1.0)
            for predicted_run in own
            if predicted_run.null
        ]
        answers.append(
            {
                "rows": len(own),
                **_errors(errors),
                "inside": float(
                    np.mean(
                        [
                            predicted_run.low <= predicted_run.measured <= predicted_run.high
                            for predicted_run in own
                        ]
                    )
                ),
                "null": float(np.median(nulls)) if nulls else None,
            }
            if own
            else {"rows": 0}
        )
    return answers + [ratios(clear, item, other) for _, item, other in RATIOS]


def predicted(part: str, runs: Sequence[ServedRun], hwdb: Hwdb, kept: Path | None) -> list[PredictedRun]:
    """Predictions of one part, the null model's beside them; rows on widths are printed."""
    if part == "shipped":
        found, _ = predict(runs, hwdb, CalibrationTable.load(hwdb))
        return with_null(found, found, hwdb)
    folds = folds_of(part, runs, hwdb, kept)
    errors = novel_errors(folds)
    sys.stdout.write(
        calibration_csv(novel_rows(folds, part), WIDTHS.format({"gpu": "GPU kind"}.get(part, part)))
    )
    return [widened(predicted_run, errors, fold) for fold, found in folds.items() for predicted_run in found]


def folds_of(
    part: str, runs: Sequence[ServedRun], hwdb: Hwdb, kept: Path | None
) -> dict[str, list[PredictedRun]]:
    """Each kind's or model's runs, predicted from rows fitted to the others' steady loads."""
    key = FOLDS[part]
    clear = [run for run in runs if not run.doubt]
    bursts = [run for run in clear if run.load == BURST]
    measured = _measured(clear)
    folds = _kept(kept, part, clear)
    steady = [run for run in clear if run.load != BURST]
    few = _small(steady) if part == "source" else _rare(steady, key)
    for own, rest, rows in left_out(steady, hwdb, part, {*folds, *few}):
        fold = key(own[0])
        training = [predicted_run for predicted_run in measured if key(predicted_run.run) != fold]
        asked = own + [run for run in bursts if key(run) == fold]
        if part == "source":
            asked = _known(own, rest)
        folds[fold] = with_null(training, predict(asked, hwdb, table_of(rows, hwdb))[0], hwdb)
        sys.stderr.write(f"{part} {fold}: {len(asked)} runs\n")
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
            cells = [
                [
                    predicted_run.run.table,
                    predicted_run.run.line,
                    *(getattr(predicted_run, name) for name in KEPT),
                ]
                for predicted_run in folds[fold]
            ]
            (kept / f"{part}-{len(folds):02}.json").write_text(json.dumps([fold, cells]), "utf-8")
    return dict(sorted(folds.items()))


def _small(runs: Sequence[ServedRun]) -> set[str]:
    """Publishers of fewer runs than tell anything."""
    telling = Counter(publisher(run) for run in runs if is_telling(run))
    return {publisher(run) for run in runs if telling[publisher(run)] < LEAST_OF_FOLD}


def _rare(runs: Sequence[ServedRun], key: Callable[[ServedRun], str]) -> set[str]:
    """Kinds or models of fewer runs than are worth a fit of their own."""
    counts = Counter(map(key, runs))
    return {name for name, count in counts.items() if count < LEAST_RUNS_OF_FOLD}


def _known(own: Sequence[ServedRun], rest: Sequence[ServedRun]) -> list[ServedRun]:
    """Runs of a publisher whose kind of GPU and model others ran, too: what is new of them is the source."""
    known = {row.subject for row in seen([run for run in rest if not run.assumed])}
    return [
        run
        for run in own
        if f"gpu:{run.gpu}" in known and f"model:{run.model.name}" in known and not run.assumed
    ]


def _kept(kept: Path | None, part: str, runs: Sequence[ServedRun]) -> dict[str, list[PredictedRun]]:
    """The folds of a part that an earlier call kept."""
    known = {(run.table, run.line): run for run in runs}
    folds = {}
    for path in sorted(kept.glob(f"{part}-*.json")) if kept else ():
        fold, cells = json.loads(path.read_text("utf-8"))
        folds[fold] = [PredictedRun(known[table, line], *values) for table, line, *values in cells]
    return folds


def _measured(runs: Sequence[ServedRun]) -> list[PredictedRun]:
    """What was measured, as the null model wants it."""
    return [
        PredictedRun(run, metric, value, value, value, value)
        for run in runs
        for metric, value in run.measured
    ]


# Columns of the table: the part they are of, heading, figure.
COLUMNS = (
    *(("shipped", "in sample", "median"), ("shipped", "90 % of rows", "p90")),
    *(("shipped", "bias", "bias"), ("shipped", "null", "null")),
    *(("gpu", "kind left out", "median"), ("gpu", "90 % of rows", "p90")),
    *(("gpu", "null", "null"), ("gpu", "inside", "inside")),
    *(("model", "model left out", "median"), ("model", "inside", "inside")),
    *(("source", "source left out", "median"), ("source", "inside", "inside")),
)


def table(figures: dict[str, Any]) -> str:
    """The table in Markdown, of the parts there are."""
    columns = [column for column in COLUMNS if column[0] in figures]
    headings = ["what", "rows", *(heading for _, heading, _ in columns)]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    names = [*(name for name, _ in LINES), *(name for name, _, _ in RATIOS)]
    for place, name in enumerate(names):
        rows = max(part["lines"][place]["rows"] for part in figures.values())
        cells = [_percent(figures[part]["lines"][place], key) for part, _, key in columns]
        lines.append(f"| {' | '.join([name, f'{rows:,}', *cells])} |")
    days = ", ".join(f"{part} {figures[part]['date']}" for part in PARTS if part in figures)
    return "\n".join([*lines, "", f"Measured: {days}."]) + "\n"


def _percent(one: dict[str, Any], key: str) -> str:
    value = one.get(key)
    if value is None:
        return ""
    sign = "+" if key == "bias" and value > 0 else ""
    digits = 1 if abs(value) < 0.3 and key not in ("inside", "p90") else 0
    return f"{sign}{100 * value:.{digits}f} %"


def main(words: list[str]) -> int:
    """Score the parts asked for, write figures and page."""
    kept = None
    if "--folds" in words[:-1]:
        place = words.index("--folds")
        kept = Path(words[place + 1])
        words = words[:place] + words[place + 2 :]
    if not words or set(words[1:]) - set(PARTS):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    hwdb = Hwdb.load()
    read = read_tables([Path(words[0]) / name for name in TABLES], hwdb)
    runs = [item for item in read if isinstance(item, ServedRun)]
    figures = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    for part in words[1:] or PARTS:
        figures[part] = {
            "date": date.today().isoformat(),
            "lines": scores(predicted(part, runs, hwdb, kept)),
        }
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    if figures:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table(figures)}{END}{after}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
