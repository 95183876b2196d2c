"""`python -m tests.mutants [--room R] [--each N] [--seed N]`: how many mutants of a room its tests kill.

A driver of our own: mutmut runs all mutants of a file, and both it and cosmic-ray leave numba's caches
standing, in which a mutated kernel lives on unchanged. Runs on a copy of the checkout; a failing test kills a
mutant, or the clock. The tests that run the changed lines come first; which these are is kept in
build/mutants until code or tests change.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.mutants.changes import changes
from tests.mutants.judging import room
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
            "tests/unit/planners/test_seats.py",
            "tests/unit/planners/test_sweeps.py",
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
        for part in _COPIED:
            whole = ROOT / part
            (shutil.copytree if whole.is_dir() else shutil.copy)(whole, place / part)
        for name in given.room or ROOMS:
            killed, alive = _judged(place, name, given.each, given.seed)
            rows.append((name, killed, len(alive)))
            told += [f"- {name}: {one}" for one in alive]
    sys.stdout.write("| room | mutants | killed | share |\n|---|---|---|---|\n")
    for name, killed, left in rows:
        sys.stdout.write(
            f"| {name} | {killed + left} | {killed} | {100 * killed / (killed + left):.0f} % |\n"
        )
    sys.stdout.write("\n".join(("", *told, "")))
    whole_killed, whole_alive = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return int(whole_killed < 9 * whole_alive)


def _judged(place: Path, name: str, each: int, seed: int) -> tuple[int, list[str]]:
    """(mutants killed, those that lived, in words) of a room."""
    modules, tests = ROOMS[name]
    files = sorted(path for module in modules for path in (place / module).rglob("*.py"))
    every = [(path, change) for path in files for change in changes(path.read_text(encoding="utf-8"))]
    sample = Random(f"{seed}/{name}").sample(every, min(each, len(every)))
    known = room(place, tests, tuple(sorted((place / "tangram_sim").rglob("*.py"))), ROOT / "build/mutants")
    killed, alive = 0, []
    for path, change in sorted(sample, key=lambda one: (str(one[0]), one[1].line)):
        words = f"{path.relative_to(place)}:{change.line}: `{change.was}` -> `{change.now}`"
        dead = known.kills(path, change)
        killed += dead
        sys.stdout.write(f"{'killed' if dead else 'LIVES'} {words}\n")
        sys.stdout.flush()
        if not dead:
            alive.append(words)
    return killed, alive


if __name__ == "__main__":
    sys.exit(main())
