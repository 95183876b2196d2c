"""Whether the tests of a room notice a change: those that run its lines first, then all others.

A test can read what another one worked out before it (fixtures, caches), so the lines that a test was seen
to run are not all on which it depends: what the first ones do not notice is shown to the rest of the room.

Every run is a fork of one process that has imported the libraries, which is most of what a short run takes.
"""

import hashlib
import importlib
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.changes import Change
from tests.mutants.in_place import InPlace, forked
from tests.mutants.kernels import calls, dependents, is_compiled
from tests.mutants.ordering import TIMES, Ordering
from tests.mutants.recording import Record, Recording

# After how many CPU seconds a mutant counts as killed, in one test and in all: so many times what the
# unchanged tests take, and more for imports and where kernels are compiled anew.
_START_CPU_S = 20.0
_COMPILING_CPU_S = 60.0
_ALL_CPU_S = 6000.0  # of a room and its mutants
_UNKNOWN_CPU_S = 150.0  # of all tests of a room, where nobody looked
_LIBRARIES = ("numba", "numpy", "scipy.optimize", "scipy.sparse", "pydantic", "yaml", "typer", "rich.console")
_OURS = ("tangram_sim", "tests", "benchmarks", "docs", "tangram_validate")


@dataclass(frozen=True, slots=True)
class Room:
    """The tests of one room in a copy of the checkout, what each takes, and who runs which line."""

    place: Path
    tests: tuple[str, ...]
    modules: tuple[Path, ...]
    record: Record

    def running(self, path: Path, change: Change) -> set[str]:
        """The tests that were seen to run a change's lines, or what calls its kernel."""
        first = self.record.running(path, change)
        if is_compiled(path.read_text(encoding="utf-8")):
            for item, line in calls(self.place, path, list(self.modules)):
                first |= set(self.record.lines.get(str(item), {}).get(str(line), ()))
        return first

    def judged(self, sample: Sequence[tuple[Path, Change]], *, near: bool) -> Iterator[tuple[int, bool]]:
        """(number of a change, whether the tests notice it), in the order in which they are judged.

        `near`: only tests are asked that were seen to run the changed lines; any line of the module, where
        these run at its import.
        """
        reading, writing = os.pipe()

        def tell(number: int, dead: bool | None) -> None:
            os.write(writing, f"{number} {'?' if dead is None else int(dead)}\n".encode())

        run(self.place, self.tests, _ALL_CPU_S, InPlace(sample, self.record, tell, near=near))
        os.close(writing)
        with os.fdopen(reading) as told:
            for line in told:
                number, dead = line.split()
                yield int(number), self.kills(*sample[int(number)], near=near) if dead == "?" else dead == "1"

    def kills(self, path: Path, change: Change, *, near: bool = False) -> bool:
        """Whether the tests notice a change; the module is as it was afterwards."""
        text, stamp = path.read_text(encoding="utf-8"), path.stat()
        first = self.running(path, change)
        if near and not first:
            first = {test for tests in self.record.lines.get(str(path), {}).values() for test in tests}
        compiled = is_compiled(text)
        kept = _caches(dependents(self.place, path)) if compiled else []
        aside = [(item, item.read_bytes()) for item in kept]
        more_s = _START_CPU_S + (_COMPILING_CPU_S if compiled else 0.0)
        limit_s = TIMES * (sum(self.record.seconds.values()) or _UNKNOWN_CPU_S) + more_s
        ordering = Ordering(self.record.seconds, first, more_s, alone=near)
        try:
            for item in kept:  # a compiled caller holds the code of what it calls
                item.unlink()
            path.write_text(change.applied(text), encoding="utf-8")
            return run(self.place, self.tests, limit_s, ordering) != 0
        finally:
            path.write_text(text, encoding="utf-8")
            for cache in _caches(dependents(self.place, path)) if compiled else []:
                cache.unlink()
            for item, data in aside:
                item.write_bytes(data)
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # by which caches know their source


def room(
    place: Path, tests: tuple[str, ...], modules: tuple[Path, ...], kept: Path, *, again: bool = True
) -> Room:
    """A room, its tests run once to see who runs which line; `kept` holds that for the next time.

    That run compiles, too, so that mutants are not killed by the time it takes. Not `again`: what was seen of
    some earlier state will do, or nothing: it changes the order of tests and their limits of time, not what
    they say. Raises SystemExit where the tests fail as they are.
    """
    seen = kept / f"{hashlib.sha256(' '.join(tests).encode()).hexdigest()[:12]}.json"
    state = _digest(place)
    known = json.loads(seen.read_text(encoding="utf-8").replace("@/", f"{place}/")) if seen.exists() else {}
    if known.get("state") == state or not again:
        return Room(place, tests, modules, Record(known.get("seconds", {}), known.get("lines", {})))
    written = place / "record.json"

    def keep(recording: Recording) -> None:
        written.write_text(json.dumps(asdict(recording.record())), encoding="utf-8")

    if run(place, tests, _ALL_CPU_S, Recording([str(module) for module in modules]), keep):
        raise SystemExit(f"{' '.join(tests)}: fail without any mutant")
    found = json.loads(written.read_text(encoding="utf-8"))
    kept.mkdir(parents=True, exist_ok=True)
    whole = json.dumps({"state": state, **found})
    seen.write_text(whole.replace(f"{place}/", "@/"), encoding="utf-8")
    return Room(place, tests, modules, Record(**found))


def _digest(place: Path) -> str:
    """Of all code and tests, by which lines seen once are known again."""
    found = hashlib.sha256()
    for path in sorted((*(place / "tangram_sim").rglob("*.py"), *(place / "tests").rglob("*.py"))):
        found.update(str(path.relative_to(place)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _caches(paths: Sequence[Path]) -> list[Path]:
    """numba's files of some modules."""
    return [item for path in paths for item in path.parent.glob(f"__pycache__/{path.stem}.*.nb?")]


def run(
    place: Path,
    tests: Sequence[str],
    limit_cpu_s: float,
    plugin: Any,
    ended: Callable[[Any], None] | None = None,
) -> int:
    """The exit code of the tests in a checkout, without the slow ones; not 0 where they take too long.

    `ended` is called with the plugin when tests have passed.
    """
    for name in _LIBRARIES:
        importlib.import_module(name)
    sys.stdout.flush()

    def judge() -> int:
        code = _tests(place, tests, int(limit_cpu_s), plugin)
        if code == 0 and ended is not None:
            ended(plugin)
        return code

    return forked(judge, limit_cpu_s)


def _tests(place: Path, tests: Sequence[str], seconds: int, plugin: Any) -> int:
    """Exit code of pytest in this process, which has none of our modules from then on."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.chdir(place)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(place))
    for name in [module for module in sys.modules if module.partition(".")[0] in _OURS]:
        del sys.modules[name]
    words = ("-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--hypothesis-profile", "fast")
    return int(pytest.main([*words, *tests], [plugin]))
