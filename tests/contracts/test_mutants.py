"""`make mutants`: small changes, the tests that run them asked first, modules left as they were."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import judging
from tests.mutants.changes import changes
from tests.mutants.judging import Room
from tests.mutants.kernels import calls, dependents
from tests.places import ROOT

TEXT = '''"""A module."""


def share(a: int, b: int) -> float:
    """Half of it at most."""
    if a < b:
        return min(a / b, 0.5)
    raise ValueError(f"{a + b}")
'''
SECONDS = {"t/a.py::one": 3.0, "t/a.py::two": 1.0, "t/b.py::three": 0.5, "t/c.py::four": 9.0}


def test_results_are_changed_and_messages_are_not() -> None:
    found = {(one.line, one.was, one.now) for one in changes(TEXT)}
    assert found == {
        (6, "a < b", "(a <= b)"),
        (7, "min(a / b, 0.5)", "(max(a / b, 0.5))"),
        (7, "a / b", "(a * b)"),
        (7, "0.5", "(1.5)"),
    }
    for one in changes(TEXT):
        lines = one.applied(TEXT).splitlines()
        assert [number for number, line in enumerate(lines) if line != TEXT.splitlines()[number]] == [
            one.line - 1
        ]


def _room(place: Path) -> Room:
    (place / "tangram_sim").mkdir()
    module = place / "tangram_sim" / "m.py"
    module.write_text(TEXT)
    ran = {str(module): {"6": list(SECONDS)[:3], "7": ["t/b.py::three"]}}
    return Room(place, ("t",), (module,), SECONDS, ran)


@pytest.mark.parametrize("notices", [None, "t/b.py::three", "t/c.py::four"])
def test_tests_that_run_a_line_come_before_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notices: str | None
) -> None:
    room, asked = _room(tmp_path), []
    (module,) = room.modules

    def run(place: Path, tests: Sequence[str], limit_cpu_s: float, *how: Any) -> int:
        assert module.read_text() == change.applied(TEXT) != TEXT
        assert limit_cpu_s > sum(SECONDS[test] for test in tests)
        asked.append(list(tests))
        return int(notices in tests)

    monkeypatch.setattr(judging, "run", run)
    change = next(one for one in changes(TEXT) if one.was == "a / b")
    stamp = module.stat().st_mtime_ns
    assert room.kills(module, change) == (notices is not None)
    assert asked[0] == ["t/b.py::three"]
    others = [["t/a.py::two", "t/a.py::one", "t/c.py::four"]]
    assert asked[1:] == ([] if notices == "t/b.py::three" else others)
    assert (module.read_text(), module.stat().st_mtime_ns) == (TEXT, stamp)


def test_a_kernel_is_judged_by_what_holds_and_calls_it() -> None:
    """The composition's replay is compiled into its label-setter, which two interpreted modules call."""
    folder = ROOT / "tangram_sim/planners/tangram/composition"
    play = folder / "play_kernels.py"
    held = {path.name for path in dependents(ROOT, play)}
    assert held == {"play_kernels.py", "exact_kernels.py", "rest_kernels.py"}
    callers = calls(ROOT, play, [folder / "exact.py", folder / "labels.py", folder / "exact_kernels.py"])
    assert {path.name for path, _ in callers} == {"exact.py", "labels.py"}
