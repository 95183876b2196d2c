"""How often 90 % intervals hold on sources that had no part in them.

`python -m tangram_validate.calibration.nested OLD.csv NEW.csv... --sight RECORD.csv`. Three groups of
sources, none in two: parameters were fitted to those of OLD.csv; of NEW.csv, recorded at first sight, two
thirds set widths and one third is judged, in turn; then each source by all others, from which the widths in
force are made. Beside the product a closed form of few parameters and one MFU for each GPU kind and dtype,
fitted to OLD.csv, with widths of their own found the same way. A wider interval is no merit: the interval
score charges width as well as misses.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.opgraph import FloatArray
from tangram_sim.training.step.intervals import Z90
from tangram_validate.calibration import baselines, judge
from tangram_validate.calibration.intervals import read_errors, recorded_sigma, spreads
from tangram_validate.calibration.novelty import CLASSES
from tangram_validate.calibration.widths import Errors, calibrate, interval_score
from tangram_validate.published.reading import Run, read_run, read_table

REPEATS, FOLDS, SEED = 8, 3, 20261127
DRAWS = 2000  # of sources, for the interval of a share
PRODUCT, OTHERS, RECORDED = "product", "product, widths of all others", "product, widths of that day"


def nested_widths(errors: Errors, repeats: int = REPEATS) -> list[FloatArray]:
    """Half-widths of the logarithm, [N], once per repeat: each third of the sources by the other two."""
    names, random, found = np.unique(errors.source), np.random.default_rng(SEED), []
    for _ in range(repeats):
        fold = random.permutation(len(names)) % FOLDS
        half = np.full(len(errors.source), np.nan)
        for number in range(FOLDS):
            own = np.isin(errors.source, names[fold == number])
            none = np.zeros(len(errors.memory), bool)
            half[own] = Z90 * calibrate(errors.take(~own, none)).sigma(errors.take(own, none))
        found.append(half)
    return found


def others_errors(errors: Errors, names: Sequence[str], old: Path, new: Sequence[Path]) -> dict[str, Errors]:
    """Errors of the closed form and of one MFU per kind, fitted to OLD.csv, on the rows of `errors`.

    Raises BadInputError where a run of the record is in none of the tables `new`.
    """
    hwdb = Hwdb.load()

    def runs_of(path: Path) -> list[Run]:
        read = [read_run(row, hwdb, number) for number, row in enumerate(read_table(path), 1)]
        return [item for item in read if isinstance(item, Run) and item.measured.step_s]

    fitted = runs_of(old)
    by_name = {run.id: run for path in new for run in runs_of(path)}
    if missing := [name for name in names if name not in by_name]:
        raise BadInputError(
            f"{len(missing)} of the record's {len(names)} runs, e.g. {missing[0]}, are in none of "
            f"{', '.join(map(str, new))}; give every NEW.csv that the record was made from"
        )
    runs = [*fitted, *(by_name[name] for name in names)]
    use = np.arange(len(runs)) < len(fitted)
    source = np.array([run.source_id for run in runs])
    ratio = np.log([run.measured.step_s / baselines.ideal_s(run, hwdb) for run in runs])
    kind = np.array([f"{run.cluster.groups[0].node.gpu.name} {run.job.precision.compute}" for run in runs])
    answers = {
        judge.CLOSED_FORM: baselines.closed_form(ratio, baselines.physics(runs, hwdb), source, use),
        judge.ONE_MFU: baselines.null(ratio, kind, source, use),
    }
    nothing = np.zeros(len(names))
    return {
        name: replace(errors, log_error=(ratio - answer)[~use], factors_sigma=nothing)
        for name, answer in answers.items()
    }


def share_interval(inside: FloatArray, source: NDArray[np.str_]) -> tuple[float, float, float]:
    """Share inside, every source the same weight, and its 90 % interval over draws of sources."""
    shares = np.array([inside[source == name].mean() for name in np.unique(source)])
    random = np.random.default_rng(SEED)
    drawn = shares[random.integers(0, len(shares), (DRAWS, len(shares)))].mean(axis=1)
    low, high = np.percentile(drawn, (5, 95))
    return float(shares.mean()), float(low), float(high)


def table(methods: Mapping[str, tuple[Errors, list[FloatArray]]]) -> str:
    """Errors, coverage, width and score by method and class, as Markdown; sources weigh the same."""
    first = next(iter(methods.values()))[0]
    groups = {"all": np.ones(len(first.source), bool), "dense": ~first.mixture, "mixtures": first.mixture}
    groups |= {name: first.novelty == number for number, name in enumerate(CLASSES)}
    rows = []
    for label, use in groups.items():
        if not use.any():
            continue
        source = first.source[use]
        for name, (errors, halves) in methods.items():
            error = errors.log_error[use]
            inside = np.mean([np.abs(error) <= half[use] for half in halves], axis=0)
            width = np.median([2.0 * np.sinh(half[use]) for half in halves], axis=0)
            score = np.mean([interval_score(error, half[use]) for half in halves], axis=0)
            off = np.abs(np.expm1(-error))
            each = [
                (np.median(off[own]), np.percentile(off[own], 90), np.median(width[own]), score[own].mean())
                for own in (source == item for item in np.unique(source))
            ]
            median, tail, wide, scored = np.mean(each, axis=0).tolist()
            share, low, high = share_interval(inside, source)
            rows.append(
                [
                    *(label, str(int(use.sum())), str(len(each)), name),
                    f"{100 * median:.1f} / {100 * tail:.0f}",
                    f"{100 * share:.0f} ({100 * low:.0f} to {100 * high:.0f})",
                    *(f"{100 * wide:.0f}", f"{100 * scored:.0f}"),
                ]
            )
    head = ("class", "rows", "sources", "method", "error, median / p90 %", "inside, % (90 % interval)")
    return judge.markdown((*head, "median width, %", "interval score"), rows)


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tangram_validate.calibration.nested", description=__doc__
    )
    parser.add_argument("old", type=Path, metavar="OLD.csv", help="runs that parameters were fitted to")
    parser.add_argument("new", type=Path, nargs="+", metavar="NEW.csv", help="runs recorded at first sight")
    parser.add_argument("--sight", type=Path, required=True, help="their record (calibration.first_sight)")
    parser.add_argument("-o", "--output", type=Path, help="gets the table as well")
    given = parser.parse_args(arguments)
    try:
        errors, names = read_errors(given.sight)
        methods = {PRODUCT: (errors, nested_widths(errors))}
        methods[OTHERS] = (errors, [spreads(errors)])
        methods[RECORDED] = (errors, [Z90 * recorded_sigma(given.sight)])
        for name, other in others_errors(errors, names, given.old, given.new).items():
            methods[name] = (other, nested_widths(other))
        text = table(methods)
        if given.output is not None:
            write_whole(given.output, text)
        sys.stdout.write(text)
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
