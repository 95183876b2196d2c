"""`python -m tests.mutants [--room R] [--each N] [--seed N]`: how many mutants of a room its tests kill.

A driver of our own: mutmut runs all mutants of a file, and both it and cosmic-ray leave numba's caches
standing, in which a mutated kernel lives on unchanged. Runs on a copy of the checkout; a failing test kills a
mutant, or the clock.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.mutants.changes import Change, changes
from tests.places import ROOT

# Room -> (modules, tests of the room).
ROOMS = {
    "cost": (("tangram_sim/cost",), ("tests/unit/cost", "tests/unit/topology")),
    "layers": (
        ("tangram_sim/layers", "tangram_sim/training/stage"),
        ("tests/unit/training",),
    ),
    "sim": (("tangram_sim/sim",), ("tests/unit/sim",)),
    "schedules": (
        ("tangram_sim/training/schedules",),
        (
            "tests/unit/training/test_orders_by_hand.py",
            "tests/unit/training/test_schedules.py",
            "tests/unit/training/test_shares.py",
            "tests/unit/training/test_lowering.py",
            "tests/contracts/test_schedule_contract.py",
        ),
    ),
    "composition": (
        ("tangram_sim/planners/tangram/composition",),
        (
            "tests/unit/planners/test_recorded_searches.py",
            "tests/unit/planners/test_labels.py",
            "tests/unit/planners/test_compose.py",
            "tests/unit/planners/test_exact.py",
        ),
    ),
}
_COPIED = (
    "tangram_sim",
    "hwdb",
    "traces",
    "tests",
    "docs",
    "benchmarks",
    "examples",
    "validate",
    "pyproject.toml",
)
_LIMIT = 4.0  # times what the unchanged tests take, after which a mutant counts as killed
_COMPILING_S = 90.0  # more, where kernels are compiled anew


def main() -> int:
    """Run a sample of mutants; 1 where fewer than nine of ten were killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--room", action="append", choices=ROOMS, help="only this one; several times")
    parser.add_argument("--each", type=int, default=20, help="mutants of a room")
    parser.add_argument("--seed", type=int, default=1, help="which")
    given = parser.parse_args()
    rows, told = [], []
    with tempfile.TemporaryDirectory() as made:
        place = Path(made) / "checkout"
        place.mkdir()
        for name in _COPIED:
            whole = ROOT / name
            (shutil.copytree if whole.is_dir() else shutil.copy)(whole, place / name)
        for room in given.room or ROOMS:
            killed, alive = _room(place, room, given.each, given.seed)
            rows.append((room, killed, len(alive)))
            told += [f"- {room}: {one}" for one in alive]
    sys.stdout.write("| room | mutants | killed | share |\n|---|---|---|---|\n")
    for room, killed, left in rows:
        sys.stdout.write(
            f"| {room} | {killed + left} | {killed} | {100 * killed / (killed + left):.0f} % |\n"
        )
    sys.stdout.write("\n".join(("", *told, "")))
    whole_killed, whole_alive = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return int(whole_killed < 9 * whole_alive)


def _room(place: Path, room: str, each: int, seed: int) -> tuple[int, list[str]]:
    """(mutants killed, those that lived, in words) of a room."""
    modules, tests = ROOMS[room]
    files = sorted(path for module in modules for path in (place / module).rglob("*.py"))
    every = [(path, change) for path in files for change in changes(path.read_text(encoding="utf-8"))]
    sample = Random(f"{seed}/{room}").sample(every, min(each, len(every)))
    _run(place, tests, 900.0)  # compiles
    began = time.monotonic()
    if _run(place, tests, 900.0):
        raise SystemExit(f"{room}: the tests fail without any mutant")
    limit_s = _LIMIT * (time.monotonic() - began) + 10.0
    killed, alive = 0, []
    for path, change in sorted(sample, key=lambda one: (str(one[0]), one[1].line)):
        words = f"{path.relative_to(place)}:{change.line}: `{change.was}` -> `{change.now}`"
        dead = _killed(place, path, change, tests, limit_s)
        killed += dead
        sys.stdout.write(f"{'killed' if dead else 'LIVES'} {words}\n")
        sys.stdout.flush()
        if not dead:
            alive.append(words)
    return killed, alive


def _killed(place: Path, path: Path, change: Change, tests: tuple[str, ...], limit_s: float) -> bool:
    """Whether the tests notice a change; the module is as it was afterwards."""
    text, stamp = path.read_text(encoding="utf-8"), path.stat()
    compiled = "njit" in text
    kept = list((place / "tangram_sim").rglob("*.nb?")) if compiled else []
    aside = [(one, one.read_bytes()) for one in kept]
    try:
        for one in kept:  # a compiled caller holds the code of what it calls
            one.unlink()
        path.write_text(change.applied(text), encoding="utf-8")
        return _run(place, tests, limit_s + (_COMPILING_S if compiled else 0.0)) != 0
    finally:
        path.write_text(text, encoding="utf-8")
        if compiled:
            for one in (place / "tangram_sim").rglob("*.nb?"):
                one.unlink()
        for one, data in aside:
            one.write_bytes(data)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # by which caches know their source


def _run(place: Path, tests: tuple[str, ...], limit_s: float) -> int:
    """The exit code of the tests in a checkout; 124 where they take too long."""
    words = ("-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests)
    try:
        done = subprocess.run(
            (sys.executable, *words),
            cwd=place,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
