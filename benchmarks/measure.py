"""Measuring one case: a process of its own, its CPU seconds and its peak memory; and one row of the table."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parent.parent
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
# Compiled code is on disk, as in an installation: modules of Python's, too, whatever the caller's shell says.
_COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
_ONE_CORE = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}


@dataclass(frozen=True, slots=True)
class Spent:
    """What one process cost, and what it printed."""

    cpu_s: float
    wall_s: float
    peak_bytes: float
    printed: str
    code: int = 0
    said: str = ""  # on standard error
    killed: bool = False  # at its limit


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of the table; `target` is a ceiling, or a floor where `more_is_better`."""

    case: str
    figure: float
    unit: str
    target: float | None = None
    more_is_better: bool = False
    peak_bytes: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Figure over target."""
        return self.figure / self.target if self.target else None

    @property
    def verdict(self) -> str:
        """`ok`, `missed`, or nothing where there is no target."""
        if self.target is None:
            return ""
        met = self.figure >= self.target if self.more_is_better else self.figure <= self.target
        return "ok" if met else "missed"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        names = (
            "case",
            "figure",
            "unit",
            "target",
            "more_is_better",
            "ratio",
            "verdict",
            "peak_bytes",
            "note",
        )
        return {name: getattr(self, name) for name in names}


def surroundings(compiled: Path) -> dict[str, str]:
    """The environment of what is measured: one core, compiled code kept in a folder."""
    return os.environ | _ONE_CORE | _COMPILED | {"NUMBA_CACHE_DIR": str(compiled)}


def spend(arguments: list[str], compiled: Path, limit_s: float | None = None) -> Spent:
    """Run `python ARGUMENTS` on one core, compiled code kept in the folder `compiled`.

    Raises RuntimeError with what the process said if it fails. With a `limit_s` it is killed after so many
    seconds of the clock, and its end is told rather than raised.
    """
    environment = surroundings(compiled)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=_REPOSITORY, env=environment, stdout=output, stderr=errors
        )
        timer = None
        if limit_s is not None:
            timer = threading.Timer(limit_s, process.kill)
            timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if timer is not None:
            timer.cancel()
        output.seek(0)
        errors.seek(0)
        if process.returncode and limit_s is None:
            raise RuntimeError(
                f"python {' '.join(arguments)} left with {process.returncode}:\n{errors.read()}"
            )
        return Spent(
            usage.ru_utime + usage.ru_stime,
            wall_s,
            usage.ru_maxrss * _RSS_UNIT,
            output.read(),
            process.returncode,
            errors.read(),
            process.returncode in (-signal.SIGKILL, -signal.SIGXCPU),
        )


def tangram(arguments: str, compiled: Path) -> Spent:
    """Run `tangram ARGUMENTS`."""
    return spend(["-m", "tangram_sim.cli.main", *arguments.split()], compiled)


def call(module: str, function: str, *arguments: str, compiled: Path) -> tuple[dict[str, float], Spent]:
    """What `benchmarks.MODULE.FUNCTION(*ARGUMENTS)` returns in a process of its own, and what that cost."""
    given = ", ".join(repr(argument) for argument in arguments)
    line = f"import json; from benchmarks.{module} import {function} as f; print(json.dumps(f({given})))"
    spent = spend(["-c", line], compiled)
    return json.loads(spent.printed), spent
