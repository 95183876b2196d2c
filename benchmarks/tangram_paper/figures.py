"""The paper's figures as a table: read, hashed, and looked up. Predictions never see them."""

import csv
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from benchmarks.tangram_paper.compare import METIS, PUBLISHED
from benchmarks.tangram_paper.setups import Setup

# The paper's names of what `systems.SYSTEMS` calls otherwise.
NAMES = {"Tangram plan with A100s placed at the FRONT of the pipeline": "Tangram, A100s in front"}
# Said in the text beside the 54 s of the other order (section 6.2), and not a row of the table.
TOLD = {("Mixtral-8x7B L=32", "8xA100-80+8xH100NVL", "Tangram"): 23.0}


@dataclass(frozen=True)
class Figures:
    """Rows of both tables."""

    rows: tuple[dict[str, str], ...]
    planning: tuple[dict[str, str], ...]
    hashes: tuple[tuple[str, str], ...]  # file name, SHA-256

    def step_s(self, setup: Setup, system: str) -> float | None:
        """What the paper shows; None where it shows nothing."""
        system = METIS if system.startswith(PUBLISHED) else system
        for row in self.rows:
            named = NAMES.get(row["system"], row["system"])
            if (
                row["model"].startswith(setup.paper_model)
                and row["cluster"] == setup.paper_cluster
                and named == system
                and row["metric"] == "iteration_time_s"
            ):
                return float(row["value"])
        return TOLD.get((setup.paper_model, setup.paper_cluster, system))

    def ablation_s(self, bar: str) -> float | None:
        """Seconds of planning in all, of a bar of Fig. 12."""
        return self._planning_s("pruning ablation", "system", f"Tangram-Aceso {bar}")

    def islands_s(self, cluster: str) -> float | None:
        """The same of a bar of Fig. 13."""
        return self._planning_s("planning time vs islands", "cluster", cluster)

    def _planning_s(self, what: str, column: str, begins: str) -> float | None:
        found = (row for row in self.planning if row["what"] == what and row[column].startswith(begins))
        return next((float(row["total_s"]) for row in found), None)


def read(steps: Path, planning: Path) -> Figures:
    """Both tables. Raises FileNotFoundError for one that is not there."""
    tables, hashes = [], []
    for path in (steps, planning):
        hashes.append((path.name, sha256(path.read_bytes()).hexdigest()))
        with path.open(newline="", encoding="utf-8") as stream:
            rows = tuple(csv.DictReader(stream))
        tables.append(tuple(row for row in rows if row["paper"] == "Tangram"))
    return Figures(tables[0], tables[1], tuple(hashes))
