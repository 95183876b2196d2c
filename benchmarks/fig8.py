"""The paper's iteration times (Figs. 8 to 11, arXiv:2606.16907) beside what this planner predicts.

`python -m benchmarks.fig8 [FILE.csv]`. The figures are no part of this repository: by default they are looked
for in `../shared/data/tangram_figures.csv` beside it, with columns model, cluster, system, metric, value.
"""

import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import tangram

FIGURES = Path(__file__).resolve().parents[2] / "shared" / "data" / "tangram_figures.csv"
DENSE, EXPERTS = "tangram-paper", "tangram-paper-moe"


@dataclass(frozen=True, slots=True)
class Setup:
    """One bar group of the paper, and what to ask here for it."""

    model_starts: str  # of the table's model column
    cluster: str  # the table's name
    arguments: str  # MODEL CLUSTER OPTIONS
    preset: str


# Of the last Mixtral the paper gives one time only: with the A100s put at the front of the pipeline.
SETUPS = (
    Setup("GPT-3 6.7B", "16xT4", "gpt3-6.7b azure-c1-t4x16", DENSE),
    Setup("GPT-3 6.7B", "12xT4+4xV100-16", "gpt3-6.7b azure-c1-t4x12-v100x4", DENSE),
    Setup("GPT-3 6.7B", "16xV100-16", "gpt3-6.7b azure-c1-v100x16", DENSE),
    Setup("GShard MoE 2.4B", "4xT4+4xV100-16", "gshard-moe-2.4b azure-c1-t4x4-v100x4 --seq 1024", DENSE),
    Setup(
        "Mixtral-8x7B L=16",
        "4xA100-80+4xH100NVL",
        "mixtral-8x7b-16l azure-c2-a100x4-h100x4 --seq 4096",
        EXPERTS,
    ),
    Setup(
        "Qwen3-30B-A3B L=24",
        "4xA100-80+4xH100NVL",
        "qwen3-30b-a3b-24l azure-c2-a100x4-h100x4 --seq 4096",
        EXPERTS,
    ),
    Setup(
        "Mixtral-8x7B L=32", "8xA100-80+8xH100NVL", "mixtral-8x7b azure-c2 --seq 4096 --order g0,g1", EXPERTS
    ),
    Setup("GPT-3 13B", "4xA100-80", "gpt3-13b azure-c3-a100x4", DENSE),
    Setup("GPT-3 13B", "4xA100-80+8xV100-32", "gpt3-13b azure-c3-a100x4-v100x8", DENSE),
)


def main() -> None:
    """Print one line per cluster: the paper's best and its Tangram, ours as the paper planned and freely."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FIGURES
    if not path.is_file():
        sys.exit(f"{path}: no such file; give a CSV with the columns model, cluster, system, metric, value")
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["metric"] == "iteration_time_s"]
    titles = (
        "",
        "paper's Tangram",
        "best other",
        "ours, paper's preset",
        "/ Tangram",
        "ours, free",
        "/ Tangram",
    )
    sys.stdout.write(line(titles) + "\n")
    with TemporaryDirectory() as folder:
        for setup in SETUPS:
            sys.stdout.write(line(compare(setup, rows, Path(folder))) + "\n")
            sys.stdout.flush()


def compare(setup: Setup, rows: list[dict[str, str]], compiled: Path) -> tuple[str, ...]:
    """The cells of one line, seconds of a step."""
    listed = [
        (row["system"], float(row["value"]))
        for row in rows
        if row["model"].startswith(setup.model_starts) and row["cluster"] == setup.cluster
    ]
    theirs = min((seconds for system, seconds in listed if system.startswith("Tangram")), default=None)
    other = min((seconds for system, seconds in listed if not system.startswith("Tangram")), default=None)
    cells = [setup.arguments, seconds_of(theirs), seconds_of(other)]
    for preset in (f" --preset {setup.preset}", ""):
        printed = tangram(f"plan {setup.arguments} --global-batch 128{preset} --json", compiled).printed
        ours = float(json.loads(printed)["step_s"])
        cells += [seconds_of(ours), f"{ours / theirs:.2f}" if theirs else ""]
    return tuple(cells)


def seconds_of(value: float | None) -> str:
    """Seconds, or nothing."""
    return "" if value is None else f"{value:.1f} s"


def line(cells: tuple[str, ...]) -> str:
    """One line of the table."""
    widths = (59, 15, 10, 20, 9, 10, 9)
    first, *others = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join([first.strip().ljust(widths[0]), *others])


if __name__ == "__main__":
    main()
