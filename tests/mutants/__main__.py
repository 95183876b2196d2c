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
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.mutants.changes import Change, changes
from tests.mutants.judging import room
from tests.mutants.rooms import Tested, rooms
from tests.places import ROOT

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
    parser.add_argument("--room", action="append", choices=rooms(ROOT), help="only this one; several times")
    parser.add_argument("--each", type=int, default=20, help="mutants of a room")
    parser.add_argument("--seed", type=int, default=1, help="which")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--tests", nargs="+", help="in place of the room's")
    parser.add_argument(
        "--reuse", action="store_true", help="order tests by what an earlier state of the code showed"
    )
    parser.add_argument(
        "--near", action="store_true", help="ask only tests that were seen to run a mutant's lines"
    )
    given = parser.parse_args()
    rows, told = [], []
    with tempfile.TemporaryDirectory() as made:
        place = Path(made) / "checkout"
        place.mkdir()
        for part in _COPIED:
            whole = ROOT / part
            (shutil.copytree if whole.is_dir() else shutil.copy)(whole, place / part)
        (place.parent / "shared").symlink_to(ROOT.parent / "shared")
        for name in given.room or rooms(ROOT):
            tested = rooms(place)[name]
            tested = replace(tested, tests=tuple(given.tests or tested.tests))
            sample = _sample(
                [module for module in tested.modules if given.only in str(module)],
                given.each,
                f"{given.seed}/{name}",
            )
            killed, alive = _judged(place, tested, sample, again=not given.reuse, near=given.near)
            rows.append((name, killed, len(alive)))
            told += [f"- {name}: {item}" for item in alive]
    sys.stdout.write("| room | mutants | killed | share |\n|---|---|---|---|\n")
    for name, killed, left in rows:
        sys.stdout.write(
            f"| {name} | {killed + left} | {killed} | {100 * killed / max(killed + left, 1):.0f} % |\n"
        )
    sys.stdout.write("\n".join(("", *told, "")))
    whole_killed, whole_alive = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return int(whole_killed < 9 * whole_alive)


def _sample(modules: list[Path], each: int, seed: str) -> list[tuple[Path, Change]]:
    """So many changes of some modules: one of each kind of fault in turn, each time one at random."""
    kinds: dict[str, list[tuple[Path, Change]]] = defaultdict(list)
    for path in modules:
        for change in changes(path.read_text(encoding="utf-8")):
            kinds[change.kind].append((path, change))
    draws, found = Random(seed), []
    for every in kinds.values():
        draws.shuffle(every)
    order = sorted(kinds)
    draws.shuffle(order)
    while len(found) < each and any(kinds.values()):
        found += [kinds[kind].pop() for kind in order if kinds[kind]]
    return sorted(found[:each], key=lambda drawn: (str(drawn[0]), drawn[1].line))


def _judged(
    place: Path, tested: Tested, sample: list[tuple[Path, Change]], *, again: bool, near: bool
) -> tuple[int, list[str]]:
    """(mutants killed, those that lived, in words) of a room."""
    every = tuple(sorted((place / "tangram_sim").rglob("*.py")))
    known = room(place, tested.tests, every, ROOT / "build/mutants", again=again)
    killed, alive = 0, []
    for number, dead in known.judged(sample, near=near):
        path, change = sample[number]
        was, now = (" ".join(text.split()) for text in (change.was, change.now))
        words = f"{path.relative_to(place)}:{change.line}: `{was}` -> `{now}`"
        killed += dead
        sys.stdout.write(f"{'killed' if dead else 'LIVES'} {words}\n")
        sys.stdout.flush()
        if not dead:
            alive.append(words)
    return killed, alive


if __name__ == "__main__":
    sys.exit(main())
