"""Whether the tests of a room notice a change: those that run its lines first, then all others.

A test can read what another one worked out before it (fixtures, caches), so the lines that a test was seen
to run are not all on which it depends: what the first ones do not notice is shown to the rest of the room.
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.changes import Change
from tests.mutants.kernels import calls, dependents, is_compiled
from tests.mutants.limiting import TIMES

# After how many CPU seconds a mutant counts as killed, in one test and in all: so many times what the
# unchanged tests take, and more for imports and where kernels are compiled anew.
_START_CPU_S = 20.0
_COMPILING_CPU_S = 60.0
_SECONDS = "seconds.json"  # of every test, in the copy of the checkout
_WALL = 20.0  # times as much by the clock, on a busy machine, where a mutant waits for ever


@dataclass(frozen=True, slots=True)
class Room:
    """The tests of one room in a copy of the checkout, their CPU seconds, and who runs which line."""

    place: Path
    tests: tuple[str, ...]
    modules: tuple[Path, ...]
    seconds: dict[str, float]
    lines: dict[str, dict[str, list[str]]]

    def running(self, path: Path, change: Change) -> list[str]:
        """The tests that were seen to run a change's lines, or what calls its kernel."""
        first = [(path, line) for line in range(change.line, change.end_line + 1)]
        if is_compiled(path.read_text(encoding="utf-8")):
            first += calls(self.place, path, list(self.modules))
        found = {test for one, line in first for test in self.lines.get(str(one), {}).get(str(line), ())}
        return self._in_order(found)

    def others(self, tests: Sequence[str]) -> list[str]:
        """The other tests of the room."""
        return self._in_order(set(self.seconds) - set(tests))

    def _in_order(self, tests: set[str]) -> list[str]:
        """Module by module, since fixtures are shared; what takes least first."""
        files: dict[str, float] = {}
        for test in tests:
            files[test.split("::")[0]] = files.get(test.split("::")[0], 0.0) + self.seconds[test]

        def place(test: str) -> tuple[float, str, float]:
            file = test.split("::", maxsplit=1)[0]
            return files[file], file, self.seconds[test]

        return sorted(tests, key=place)

    def kills(self, path: Path, change: Change) -> bool:
        """Whether the tests notice a change; the module is as it was afterwards."""
        text, stamp = path.read_text(encoding="utf-8"), path.stat()
        first = self.running(path, change)
        compiled = is_compiled(text)
        kept = _caches(dependents(self.place, path)) if compiled else []
        aside = [(one, one.read_bytes()) for one in kept]
        try:
            for one in kept:  # a compiled caller holds the code of what it calls
                one.unlink()
            path.write_text(change.applied(text), encoding="utf-8")
            return any(tests and self._fail(tests, compiled) for tests in (first, self.others(first)))
        finally:
            path.write_text(text, encoding="utf-8")
            for one in _caches(dependents(self.place, path)) if compiled else []:
                one.unlink()
            for one, data in aside:
                one.write_bytes(data)
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # by which caches know their source

    def _fail(self, tests: Sequence[str], compiled: bool) -> bool:
        more_s = _START_CPU_S + (_COMPILING_CPU_S if compiled else 0.0)
        extra = {"MUTANTS_SECONDS": str(self.place / _SECONDS), "MUTANTS_MORE_S": str(more_s)}
        limit_s = TIMES * sum(self.seconds[test] for test in tests) + more_s
        return run(self.place, tests, limit_s, ("-p", "tests.mutants.limiting"), extra) != 0


def room(place: Path, tests: tuple[str, ...], modules: tuple[Path, ...], kept: Path) -> Room:
    """A room, its tests run once to see who runs which line; `kept` holds that for the next time.

    That run compiles, too, so that mutants are not killed by the time it takes. Raises SystemExit where the
    tests fail as they are.
    """
    seen, written = kept / f"{_digest(place, tests)}.json", place / "lines.json"
    extra = {
        "PYTHONDONTWRITEBYTECODE": "",  # here alone it stays as it is read
        "MUTANTS_MODULES": "\n".join(map(str, modules)),
        "MUTANTS_LINES": str(written),
    }
    recorded = seen.exists()
    if run(place, tests, 6000.0, () if recorded else ("-p", "tests.mutants.recording"), extra):
        raise SystemExit(f"{' '.join(tests)}: fail without any mutant")
    if not recorded:
        kept.mkdir(parents=True, exist_ok=True)
        seen.write_text(written.read_text().replace(str(place), "@"), encoding="utf-8")
    found = json.loads(seen.read_text(encoding="utf-8").replace("@/", f"{place}/"))
    (place / _SECONDS).write_text(json.dumps(found["seconds"]), encoding="utf-8")
    return Room(place, tests, modules, found["seconds"], found["lines"])


def _digest(place: Path, tests: tuple[str, ...]) -> str:
    """Of all code and tests, by which lines seen once are known again."""
    found = hashlib.sha256(" ".join(tests).encode())
    for path in sorted((*(place / "tangram_sim").rglob("*.py"), *(place / "tests").rglob("*.py"))):
        found.update(str(path.relative_to(place)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _caches(paths: Sequence[Path]) -> list[Path]:
    """numba's files of some modules."""
    return [one for path in paths for one in path.parent.glob(f"__pycache__/{path.stem}.*.nb?")]


def run(
    place: Path,
    tests: Sequence[str],
    limit_cpu_s: float,
    more: tuple[str, ...] = (),
    extra: dict[str, str] | None = None,
) -> int:
    """The exit code of the tests in a checkout, without the slow ones; not 0 where they take too long."""
    seconds = int(limit_cpu_s)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as asked:
        asked.write("\n".join(tests) + "\n")
        asked.flush()
        words = ("-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *more)
        try:
            done = subprocess.run(
                (sys.executable, *words, f"@{asked.name}"),
                cwd=place,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(extra or {})},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_WALL * limit_cpu_s,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5)),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124
    return done.returncode
