"""Writes stacks.csv: `python -m tangram_validate.calibration.stacks RUNS... OUT_DIR`.

At most five parameters per software stack, none per run, GPU, model or source; prints how accurate they are
on the runs they were fitted to, on configurations left out and on whole sources left out.
"""

import argparse
import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.efficiency import INHERITED
from tangram_sim.training.stacks import STACKS
from tangram_validate.calibration import fewrows, intervals, judge, memory, stackfit, tables_cache, widths
from tangram_validate.calibration.folds import FOLDS, configuration, setting
from tangram_validate.calibration.stackfit import Fit, MeasuredRuns
from tangram_validate.calibration.surfaces import (
    HEADER,
    KEYS,
    Mixtures,
    StackParameters,
    mixtures,
    with_stacks,
)
from tangram_validate.published.predict import Prediction, Predictor
from tangram_validate.published.reading import Run, read_run, read_table
from tangram_validate.published.stacks import GENERIC, lineage

SOURCE = "fit to published runs, tangram_validate.calibration.stacks"
FITTED = "2026-11-27"  # the day of the fit; rows must not depend on the day they are written again
MOST_ROWS = 48  # of one source that are used
FEWEST = 3  # runs on a generation of GPUs that a stack's factor there may rest on
# Of a stack like many; its errors are left out, those of the fit count.
TYPICAL = StackParameters(1.2, 1.3, 25e-6, 0.9, 1.5)
MOVED = ("scale", "attention", "us/kernel", "tp", "dp")
MARKER = "<!-- written by tangram_validate.calibration.stacks: do not edit below -->"


def sample(runs: Sequence[Run], most: int = MOST_ROWS) -> list[Run]:
    """At most about `most` measured runs of every source: whole sweeps, picked by their settings."""
    by_source: dict[str, dict[int, list[Run]]] = {}
    for run in runs:
        if run.measured.step_s:
            by_source.setdefault(run.source_id, {}).setdefault(setting(run), []).append(run)
    found: list[Run] = []
    for source in sorted(by_source):
        before = len(found)
        for _, sweep in sorted(by_source[source].items()):
            if len(found) - before + len(sweep) <= most:
                found += sorted(sweep, key=configuration)
    return found


def predicted(runs: Sequence[Run], overlays: Sequence[Path]) -> list[Prediction]:
    """Predictions of the runs that have one.

    Used of them is only what no stack's parameters change: memory, and errors of kernels and links.
    """
    predictor = Predictor(with_stacks(overlays, STACKS, TYPICAL))
    both = predictor.beside_each_other([predictor.predict(run) for run in runs])
    return [item for item in both if isinstance(item, Prediction)]


def played_without(
    predictions: Sequence[Prediction], answers: Mixtures, overlays: Sequence[Path], folder: Path
) -> Mixtures:
    """The answers with every source played without its own tables of kernels, where `folder` has an overlay.

    A publisher's table of kernels is of the machine that its runs were measured on: a source is left out
    whole only where both are. The overlays say what the database would hold without the table.
    """
    for source in sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else ():
        rows = [row for row, prediction in enumerate(predictions) if prediction.run.source_id == source.name]
        if rows:
            own = mixtures([predictions[row] for row in rows], [*overlays, source])
            answers = answers.replaced(np.array(rows), own)
    return answers


def cases(predictions: Sequence[Prediction], answers: Mixtures) -> MeasuredRuns:
    """The runs of some predictions, ready to be fitted to."""
    runs = [prediction.run for prediction in predictions]
    return MeasuredRuns(
        measured=np.array([run.measured.step_s for run in runs]),
        source=np.array([run.source_id for run in runs]),
        stack=np.array([run.job.stack for run in runs]),
        generation=np.array([run.cluster.groups[0].node.gpu.architecture for run in runs]),
        fold=np.array([configuration(run) % FOLDS for run in runs]),
        surface=answers,
    )


def rows_text(cases: MeasuredRuns, fits: Mapping[str, Fit]) -> str:
    """Efficiency rows of every stack, as the text of a CSV file.

    A stack has its five parameters for any GPU, and its time scale once more for each generation of GPUs
    that `FEWEST` of its runs were on. What rests on no run of the stack itself is marked as inherited,
    with n = 0.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*HEADER, "note"))
    for stack in (GENERIC, *sorted(name for name in fits if name in STACKS and name != GENERIC)):
        own, mask = fits[stack], cases.stack == stack if stack != GENERIC else cases.stack != ""
        sources = " ".join(sorted(set(cases.source[mask].tolist())))
        source = SOURCE if mask.any() else f"{INHERITED} from lineage {lineage(stack)}: {SOURCE}"
        for (kernel, parameter), value, sigma in zip(KEYS, own.parameters, own.sigma, strict=True):
            wide = math.hypot(sigma, stackfit.GENERATION) if parameter == "time_scale" else sigma
            figures = (f"{x:.1e}" if parameter == "seconds" else f"{x:.3f}" for x in (value, value * wide))
            line = ("*", "*", kernel, stack, "", parameter, *figures, int(mask.sum()), source, FITTED)
            writer.writerow((*line, f"sources: {sources}" if sources else ""))
        for generation, factor in sorted(own.generations.items()):
            if own.rows[generation] < FEWEST:
                continue
            value, sigma = own.parameters.time_scale * factor, own.error_of(generation)
            figures = (f"{x:.3f}" for x in (value, value * sigma))
            line = (f"arch:{generation}", "*", "stack", stack, "", "time_scale", *figures)
            writer.writerow((*line, own.rows[generation], SOURCE, FITTED, "on that generation of GPUs"))
    return text.getvalue()


def keeping(rows: str, before: Path, stack: str) -> str:
    """The rows, text of a CSV file, with those of `stack` as the file `before` has them."""
    if not stack or not before.is_file():
        return rows
    column = HEADER.index("stack")

    def of_stack(line: str) -> bool:
        return line.split(",")[column] == stack

    kept = [line for line in before.read_text(encoding="utf-8").splitlines() if of_stack(line)]
    head, *others = rows.splitlines()
    return "\n".join([head, *kept, *(line for line in others if not of_stack(line))]) + "\n"


def parameters_table(cases: MeasuredRuns, fits: Mapping[str, Fit]) -> str:
    """Every stack's parameters, its rows and how far it moved from what its lineage says, as Markdown."""
    rows = []
    for stack in (GENERIC, *sorted(name for name in fits if name in STACKS and name != GENERIC)):
        own, prior = fits[stack], fits.get(f"lineage {lineage(stack)}", fits[GENERIC])
        mask = cases.stack == stack if stack != GENERIC else np.ones(len(cases.stack), bool)
        scale, attention, dispatch, tensor, data = own.parameters
        moved = [
            f"{name} {100 * (a / b - 1):+.0f} %"
            for name, a, b in zip(MOVED, own.parameters, prior.parameters, strict=True)
            if abs(a / b - 1) >= 0.005 and stack != GENERIC
        ]
        by_kind = [
            f"{kind} {factor:.2f} ({own.rows[kind]})" for kind, factor in sorted(own.generations.items())
        ]
        figures = (
            f"{scale:.3f}",
            f"{attention:.2f}",
            f"{1e6 * dispatch:.0f}",
            f"{tensor:.2f}",
            f"{data:.2f}",
        )
        sources = " ".join(sorted(set(cases.source[mask].tolist()))) if stack != GENERIC else "all"
        rows.append([stack, str(int(mask.sum())), sources, *figures, ", ".join(by_kind), ", ".join(moved)])
    head = ("stack", "rows", "sources", "scale", "attention", "us/kernel", "tp", "dp", "by generation (rows)")
    return judge.markdown((*head, "moved from its lineage"), rows)


def worth_table(held: MeasuredRuns, fits: Mapping[str, Mapping[str, Fit]]) -> str:
    """Errors of sources left out whole, by parameters of the stack's own, of its lineage, of all: Markdown.

    `fits` by the source left out.
    """
    rows = []
    for stack in sorted(set(held.stack.tolist())):
        sources = sorted(set(held.source[held.stack == stack].tolist()))
        for source in sources:
            runs, without = held.take((held.stack == stack) & (held.source == source)), fits[source]
            ours = [
                without.get(name, without[GENERIC]) for name in (stack, f"lineage {lineage(stack)}", GENERIC)
            ]
            errors = (np.abs(our.seconds(runs) / runs.measured - 1) for our in ours)
            others = " ".join(name for name in sources if name != source) or "none"
            cells = [stack, source, str(len(runs.measured)), others]
            rows.append(cells + [f"{100 * np.median(error):.1f}" for error in errors])
    head = (
        "stack",
        "source left out",
        "rows",
        "its other sources",
        "own, median %",
        "its lineage's",
        "generic's",
    )
    return judge.markdown(head, rows)


def errors_left_out(
    predictions: Sequence[Prediction],
    found: MeasuredRuns,
    known: judge.Facts,
    splits: Sequence[judge.LeftOutPredictions],
    peaks: memory.MeasuredPeaks | None,
) -> tuple[widths.Errors, NDArray[np.bool_]]:
    """Errors of runs left out with their source, their stack and their GPU generation; which are the first.

    What factors explain is what kernels and links do, as played, and what the parameters of the fit without
    the run do. Errors of peaks are those of sources left out of the fit of memory.
    """
    used = [split for split in splits if split.name in judge.UNSEEN]
    used.sort(key=lambda item: item.name != judge.LEFT_OUT)
    hardware = np.array(
        [math.hypot(prediction.factors_sigma, prediction.spread) for prediction in predictions]
    )
    errors = widths.Errors(
        np.concatenate([np.log(found.measured / item.ours) for item in used]),
        np.concatenate([np.hypot(hardware, item.doubt) for item in used]),
        np.tile(found.source, len(used)),
        np.concatenate([item.novelty for item in used]),
        np.tile(known.measured, len(used)),
        np.tile(known.mixture, len(used)),
        np.zeros(0),
        np.zeros(0, np.str_),
        np.zeros(0),
        np.repeat([item.name == judge.LEFT_OUT for item in used], len(predictions)),
    )
    if peaks:
        held = memory.left_out(peaks, peaks.source)
        assumed = np.log(peaks.measured / peaks.peaks(memory.ASSUMED))
        errors = replace(
            errors,
            memory=np.log(peaks.measured / held),
            memory_source=peaks.source,
            unfitted=assumed,
        )
    return errors, np.arange(len(errors.source)) < len(predictions)


def peaks_text(errors: widths.Errors) -> str:
    """Errors of peaks of sources left out, and how often the upper bound was exceeded, as Markdown."""
    rows = []
    for label, found in (("", errors.memory), (", as of a stack never fitted", errors.unfitted)):
        for source, share in intervals.peaks_exceeded(found, errors.memory_source).items():
            own = np.abs(np.expm1(-found[errors.memory_source == source]))
            cells = [source + label, str(len(own)), f"{100 * np.median(own):.1f}"]
            rows.append([*cells, f"{100 * np.percentile(own, 90):.1f}", f"{100 * share:.1f}"])
    head = ("peak memory, source left out", "rows", "median error, %", "p90, %", "above its bound, %")
    return judge.markdown(head, rows)


def tables(
    found: MeasuredRuns,
    known: judge.Facts,
    splits: Sequence[judge.LeftOutPredictions],
    errors: widths.Errors,
) -> str:
    """All tables of the judge, as Markdown."""
    left = next(split for split in splits if split.name == judge.LEFT_OUT)
    spread = intervals.spreads(errors)[: len(left.ours)]
    parts = [
        judge.accuracy_table(found, known, splits),
        judge.source_table(found, known, splits),
        worth_table(found, left.fits),
        judge.order_table(found, known, left),
        judge.class_table(found, known, left, spread),
        fewrows.worth_table(fewrows.worth(found, known, left, errors)),
        peaks_text(errors) if len(errors.memory) else "",
        judge.worst_table(found, known, left),
    ]
    return "\n".join(part for part in parts if part)


def below_marker(page: Path, text: str) -> str:
    """The page with everything below its marker line replaced; a page of its own where there is none."""
    head, marker, _ = page.read_text(encoding="utf-8").partition(MARKER) if page.is_file() else ("", "", "")
    return f"{head}{marker or MARKER}\n\n{text}"


def main(arguments: Sequence[str]) -> int:
    """Fit, report, write the rows; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tangram_validate.calibration.stacks", description=__doc__
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUNS.csv", help="measured training runs, one per row"
    )
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="gets stacks.csv; hwdb/efficiency")
    parser.add_argument("--hwdb", type=Path, action="append", default=[], help="overlay folder, repeatable")
    parser.add_argument(
        "--without",
        type=Path,
        default=Path("traces/published/without"),
        help="folder of overlays by source: the database without what the source says of kernels",
    )
    parser.add_argument("--keep", default="", metavar="STACK", help="whose rows stay as OUT_DIR has them")
    parser.add_argument("--rows", type=int, default=MOST_ROWS, help="most rows of one source")
    parser.add_argument("--table", type=Path, help="page whose tables are to be replaced: accuracy.md")
    parser.add_argument("--cache", type=Path, help="folder of one's own that keeps what was played")
    given = parser.parse_args(arguments)
    try:
        table = [row for path in given.runs for row in read_table(path)]
        hwdb = Hwdb.load(given.hwdb)
        read = [read_run(row, hwdb, number) for number, row in enumerate(table, 1)]
        runs = sample([item for item in read if isinstance(item, Run)], given.rows)
        picked = predicted(runs, given.hwdb)
        if not picked:
            raise BadInputError(f"{given.runs[0]}: no row that can be predicted has a measured step time")
        more = [path.read_text(encoding="utf-8") for path in given.runs[1:]]
        key = tables_cache.fingerprint(given.runs[0], given.hwdb, given.rows, *more)
        answers = tables_cache.cached(given.cache, key, lambda: mixtures(picked, given.hwdb))
        key = tables_cache.fingerprint(given.runs[0], [*given.hwdb, given.without], given.rows, *more)
        alone = tables_cache.cached(
            given.cache, key, lambda: played_without(picked, answers, given.hwdb, given.without)
        )
        found, held = cases(picked, answers), cases(picked, alone)
        fits = stackfit.fit_stacks(found, np.ones(len(picked), bool))
        rows = rows_text(found, fits)
        known = judge.facts(picked, hwdb)
        splits = judge.splits(found, known, fits, held)
        measured = any(row.get("peak_mem_gb", "").strip() for row in table)
        peaks = memory.cases(table, given.hwdb) if measured else None
        errors, sources_out = errors_left_out(picked, found, known, splits, peaks)
        write_whole(given.out_dir / "stacks.csv", keeping(rows, given.out_dir / "stacks.csv", given.keep))
        text = f"{tables(held, known, splits, errors)}\n{parameters_table(found, fits)}"
        if given.table is not None:
            write_whole(given.table, below_marker(given.table, text))
        sys.stdout.write(f"{text}\n{intervals.report_text(errors, sources_out)}")
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
