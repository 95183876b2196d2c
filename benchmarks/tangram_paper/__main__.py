"""`python -m benchmarks.tangram_paper`: Figs. 8 to 13 of the Tangram paper, made again by the simulator.

The figures are no part of this repository: by default they are looked for in `../shared/data` beside it.
Writes report.md, runs.json and figures.html; what was run is kept in runs.json and not run again with --keep.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import call
from benchmarks.tangram_paper import figures, plots, tables
from benchmarks.tangram_paper.ablation import CASES
from benchmarks.tangram_paper.compare import PUBLISHED
from benchmarks.tangram_paper.published import predicted
from benchmarks.tangram_paper.setups import SETUPS
from benchmarks.tangram_paper.systems import SYSTEMS

REPOSITORY = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tangram_paper", description=__doc__)
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared" / "data", metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "tangram_paper", metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="TEXT", help="setups whose name contains this")
    parser.add_argument("--stack", default="", help="one software stack for all systems instead of their own")
    parser.add_argument("--recompute", default="", help="none or full, instead of the systems' own")
    parser.add_argument("--ablated", default="aceso", metavar="NAME", help="parallelizer of Fig. 12")
    parser.add_argument("--no-ablation", action="store_true", help="leave Fig. 12 out")
    parser.add_argument("--keep", action="store_true", help="do not run again what runs.json holds")
    given = parser.parse_args()
    try:
        paper = figures.read(
            given.data / "tangram_figures.csv", given.data / "planning_times_from_papers.csv"
        )
    except FileNotFoundError as error:
        sys.exit(f"{error.filename}: no such file; give --data FOLDER with the tables of the paper's figures")
    given.out.mkdir(parents=True, exist_ok=True)
    store = given.out / "runs.json"
    kept: dict[str, Any] = json.loads(store.read_text()) if given.keep and store.is_file() else {}
    runs: tables.Runs = kept.get("runs", {})
    cases: dict[str, dict[str, Any]] = kept.get("ablation", {})

    def keep() -> None:
        store.write_text(json.dumps({"runs": runs, "ablation": cases}, indent=1) + "\n")

    with TemporaryDirectory() as folder:
        compiled = Path(folder)
        warm(compiled)
        for setup in SETUPS:
            mended = [name for name in SYSTEMS if name.startswith(f"{PUBLISHED}, ")]
            systems = (*setup.systems, *(mended if paper.step_s(setup, PUBLISHED) else ()))
            for system in systems if given.only in f"{setup.figure} {setup.key}" else ():
                known = runs.setdefault(setup.key, {})
                if system not in known:
                    known[system] = run(system, setup.key, given, compiled)
                    tell(setup.key, system, known[system])
                    keep()
        for name, *_ in () if given.no_ablation else CASES:
            if name not in cases:
                cases[name], _ = call("tangram_paper.ablation", "ask", name, given.ablated, compiled=compiled)
                tell("Fig. 12", name, cases[name])
                keep()
    text = tables.report(runs, cases, predicted(), paper)
    (given.out / "report.md").write_text(text, encoding="utf-8")
    sys.stdout.write("\n" + text)
    try:
        (given.out / "figures.html").write_text(plots.page(runs, cases, paper), encoding="utf-8")
    except ImportError:
        sys.stdout.write("\nno plots: pip install 'tangram-sim[report]'\n")


def run(system: str, key: str, given: argparse.Namespace, compiled: Path) -> dict[str, Any]:
    """One system on one setup in a process of its own, with what that cost."""
    found, spent = call(
        "tangram_paper.run", "ask", system, key, given.stack, given.recompute, compiled=compiled
    )
    return {**found, "cpu_s": spent.cpu_s}


def warm(compiled: Path) -> None:
    """Have everything compiled before anything is measured."""
    for system in ("Tangram-Aceso", "Tangram-Alpa", "Metis"):
        call("tangram_paper.run", "ask", system, SETUPS[0].key, compiled=compiled)


def tell(key: str, what: str, found: dict[str, Any]) -> None:
    """One line of progress."""
    step = "no plan" if found["step_s"] is None else f"{found['step_s']:.2f} s"
    sys.stdout.write(f"{key}: {what}: {step}, {found['cpu_s']:.1f} CPU-s {found.get('reason', '')[:100]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
