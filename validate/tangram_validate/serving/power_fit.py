"""Shares of a board's power fitted to measured watts: `python -m tangram_validate.serving.power_fit TABLE`.

Watts of runs are linear in what a GPU does in a mean second at the measured speed. One set of shares for each
architecture, drawn towards a common one; each model is left out in turn for the error that is claimed.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb, Row
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.energy import stage_activities
from tangram_validate.serving.predict import INTERVAL, at_seats, at_speed
from tangram_validate.serving.reading import read_runs
from tangram_validate.serving.replicas import DeploymentRuns, replicas
from tangram_validate.serving.runs import ENERGY, WATTS, ServedRun

FITTED = ("running", "arithmetic", "memory")
# What is expected before any run is seen, and how far an architecture may be from it.
PRIORS: Floats = np.array([0.35, 1.0, 0.4])
SPREADS: Floats = np.array([0.2, 0.6, 0.3])
IDLE = 0.12  # share of the limit, with a context open and nothing running: assumed
LINK = 0.05  # share of the limit at the links' rate: assumed
FAR_OFF = 0.10  # log error from which on a run counts less


@dataclass(frozen=True)
class PowerRuns:
    """N runs of one architecture: watts as a share of the limit, and what the GPU did in a mean second."""

    runs: tuple[ServedRun, ...]
    share: Floats  # N
    work: Floats  # N x FITTED
    rest: Floats  # N: what assumed shares come to

    def predicted(self, shares: Floats) -> Floats:
        """Watts as a share of the limit."""
        return np.minimum(self.rest + self.work @ shares, 1.0)

    def without(self, model: str) -> "PowerRuns":
        """The runs of other models."""
        return self._where(np.array([run.model.name != model for run in self.runs]))

    def only(self, model: str) -> "PowerRuns":
        """The runs of one model."""
        return self._where(np.array([run.model.name == model for run in self.runs]))

    def _where(self, kept: Floats) -> "PowerRuns":
        runs = tuple(run for run, keep in zip(self.runs, kept, strict=True) if keep)
        return PowerRuns(runs, self.share[kept], self.work[kept], self.rest[kept])


def observed(runs: Sequence[ServedRun], hwdb: Hwdb) -> dict[str, PowerRuns]:
    """Runs whose watts and speed were measured, by architecture."""
    told = [run for run in runs if run.load == ENERGY and run.value(WATTS) and run.value("output_tok_s")]
    found: dict[str, list[PowerRuns]] = {}
    for replica in replicas(told, hwdb, CalibrationTable.load(hwdb)):
        if isinstance(replica, DeploymentRuns):
            gpu = replica.deployment.stages[0].island.gpu
            found.setdefault(gpu.architecture, []).append(_observed(replica))
    return {
        name: PowerRuns(
            tuple(run for part in parts for run in part.runs),
            *(
                np.concatenate([getattr(part, column) for part in parts])
                for column in ("share", "work", "rest")
            ),
        )
        for name, parts in found.items()
    }


def _observed(replica: DeploymentRuns) -> PowerRuns:
    speed = np.array([run.value("output_tok_s") for run in replica.runs])
    steady = at_speed(at_seats(replica), replica.load, speed)
    ((stage, did),) = stage_activities(replica.cost, replica.load, steady)
    watts = np.array([run.value(WATTS) for run in replica.runs]) / replica.deployment.gpus
    columns = (did.running_s, did.arithmetic_s, did.memory_s)
    work = np.stack([column + np.zeros_like(speed) for column in columns], axis=1)
    return PowerRuns(
        replica.runs, watts / stage.island.gpu.power_w, work, IDLE + LINK * np.asarray(did.link_s)
    )


def fit(runs: PowerRuns) -> Floats:
    """Shares of FITTED that agree best with `runs` in logarithms; those far off count less."""

    def errors(shares: Floats) -> Floats:
        logs = np.log(runs.predicted(shares) / runs.share)
        return np.concatenate([logs / FAR_OFF, (shares - PRIORS) / SPREADS])

    return np.asarray(least_squares(errors, PRIORS, bounds=(0.0, 3.0), loss="soft_l1").x)


def left_out(runs: PowerRuns) -> tuple[Floats, Floats]:
    """(predicted, measured) shares of the limit, each model predicted from the others."""
    pairs = []
    for model in sorted({run.model.name for run in runs.runs}):
        own = runs.only(model)
        pairs.append((own.predicted(fit(runs.without(model))), own.share))
    predicted, measured = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return predicted, measured


def rows(found: dict[str, PowerRuns], source: str) -> list[Row]:
    """Rows of `efficiency/power.csv`: of each architecture, and of any other one."""
    cells: list[dict[str, str]] = []

    def add(place: str, parameter: str, value: float, sigma: float, count: int, told: str) -> None:
        cells.append(
            {
                **{"gpu": place, "dtype": "*", "kernel": "power", "stack": "generic", "version": ""},
                **{"parameter": parameter, "value": f"{value:.3g}", "sigma": f"{sigma:.2g}", "n": str(count)},
                **{"source": told, "date": date.today().isoformat(), "note": ""},
            }
        )

    fitted = {name: fit(power_runs) for name, power_runs in found.items()}
    for name, power_runs in found.items():
        logs = np.log(power_runs.predicted(fitted[name]) / power_runs.share)
        jacobian = power_runs.work / power_runs.predicted(fitted[name])[:, None]
        normal = jacobian.T @ jacobian / max(float(np.var(logs)), 1e-6) + np.diag(SPREADS**-2)
        sigma = np.sqrt(np.diag(np.linalg.inv(normal)))
        for place, parameter in enumerate(FITTED):
            add(f"arch:{name}", parameter, fitted[name][place], sigma[place], len(power_runs.runs), source)
        predicted, measured = left_out(power_runs)
        width = float(np.quantile(np.abs(np.log(predicted / measured)), 0.9)) / INTERVAL
        add(f"arch:{name}", "residual", width, 0.0, len(power_runs.runs), f"{source}; each model left out")
    middle = np.mean(list(fitted.values()), axis=0)
    apart = np.ptp(list(fitted.values()), axis=0)
    elsewhere = f"inherited: mean of {' and '.join(sorted(found))}"
    for place, parameter in enumerate(FITTED):
        add("*", parameter, middle[place], apart[place], 0, elsewhere)
    logs = np.concatenate(
        [
            np.abs(np.log(power_runs.predicted(other) / power_runs.share))
            for name, power_runs in found.items()
            for whose, other in fitted.items()
            if whose != name
        ]
    )
    width = float(np.quantile(logs, 0.9)) / INTERVAL
    add("*", "residual", width, 0.0, len(logs), "each architecture from the other")
    return [Row("efficiency", "/".join(cell.values()), cell) for cell in cells]


def main(arguments: Sequence[str]) -> int:
    """Print the rows as CSV, and left-out errors to stderr; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tangram_validate.serving.power_fit", description=__doc__)
    parser.add_argument("table", type=Path, metavar="TABLE", help="measured services with their watts")
    parser.add_argument("source", nargs="?", help="source that the rows name  [default: TABLE]")
    given = parser.parse_args(arguments)
    try:
        _fit_and_print(given.table, given.source or str(given.table))
    except TangramError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _fit_and_print(table: Path, source: str) -> None:
    hwdb = Hwdb.load()
    found = observed([run for run in read_runs(table, hwdb) if isinstance(run, ServedRun)], hwdb)
    if len(found) < 2:
        raise BadInputError(
            f"{table}: {len(found)} architectures with watts and output_tok_s; two or more are wanted, since "
            "others are predicted from them"
        )
    for row in rows(found, source):
        sys.stdout.write(",".join(f'"{cell}"' if "," in cell else cell for cell in row.cells.values()) + "\n")
    for name, power_runs in found.items():
        for words, (predicted, measured) in (
            ("in sample", (power_runs.predicted(fit(power_runs)), power_runs.share)),
            ("model left out", left_out(power_runs)),
        ):
            error = np.abs(predicted / measured - 1.0)
            told = f"{np.median(error):.1%}, 90 % of runs within {np.quantile(error, 0.9):.1%}"
            sys.stderr.write(f"{name}, {words}: {told}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
