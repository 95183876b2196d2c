"""`make mutants`: small changes, the tests that run them asked first, modules left as they were."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.mutants.changes import changes
from tests.mutants.judging import room
from tests.mutants.kernels import calls, dependents
from tests.mutants.ordering import Ordering
from tests.mutants.rooms import rooms
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
    found = {(change.line, change.was, change.now) for change in changes(TEXT)}
    assert found == {
        (6, "a < b", "(a <= b)"),
        (6, "a < b", "(False)"),
        (7, "min(a / b, 0.5)", "(max(a / b, 0.5))"),
        (7, "min(a / b, 0.5)", "(a / b)"),
        (7, "min(a / b, 0.5)", "(0.5)"),
        (7, "a / b", "(a * b)"),
        (7, "a / b", "(a)"),
        (7, "0.5", "(1.5)"),
    }
    for change in changes(TEXT):
        lines = change.applied(TEXT).splitlines()
        assert [number for number, line in enumerate(lines) if line != TEXT.splitlines()[number]] == [
            change.line - 1
        ]


TESTS = """import pytest
from tangram_sim import m
from tangram_sim.m import share

def test_less():
    assert share(1, 4) == 0.25

def test_more():
    with pytest.raises(ValueError):
        share(3, 1)

def test_others():
    assert m.__name__ == "tangram_sim.m"
"""
PROFILE = "from hypothesis import settings\nsettings.register_profile('fast')\n"


def test_a_change_is_judged_by_what_tests_say_of_it_and_undone(tmp_path: Path) -> None:
    """In a process of its own; what runs which line is found out once and known again."""
    module, tests = tmp_path / "tangram_sim/m.py", tmp_path / "tests"
    module.parent.mkdir()
    tests.mkdir()
    module.write_text(TEXT)
    (module.parent / "__init__.py").touch()
    (tests / "conftest.py").write_text(PROFILE)
    (tests / "test_m.py").write_text(TESTS)
    stamp = module.stat().st_mtime_ns
    judge = room(tmp_path, ("tests",), (module,), tmp_path / "kept")
    assert judge.record.seconds.keys() == {
        f"tests/test_m.py::test_{name}" for name in ("less", "more", "others")
    }
    every = {(change.was, change.now): change for change in changes(TEXT)}
    assert judge.running(module, every["a / b", "(a * b)"]) == {"tests/test_m.py::test_less"}
    assert judge.kills(module, every["a / b", "(a * b)"])
    assert not judge.kills(module, every["a < b", "(a <= b)"])
    assert (module.read_text(), module.stat().st_mtime_ns) == (TEXT, stamp)
    (tests / "test_m.py").unlink()
    assert room(tmp_path, ("tests",), (module,), tmp_path / "kept", again=False).record == judge.record


def test_tests_that_run_a_line_come_before_the_others_and_short_modules_first() -> None:
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in (*SECONDS, "t/d.py::new")]
    Ordering(SECONDS, {"t/c.py::four", "t/a.py::one"}, 0.0).pytest_collection_modifyitems(items)
    names = [item.nodeid for item in items]
    assert names == ["t/a.py::one", "t/c.py::four", "t/b.py::three", "t/a.py::two", "t/d.py::new"]


def test_every_room_has_tests_that_are_to_notice_its_faults() -> None:
    found = rooms(ROOT)
    folders = {path.parent.name for path in (ROOT / "tangram_sim").glob("*/__init__.py")}
    assert found.keys() == folders | {"nouns", "composition", "schedules"}
    assert all(room.modules and room.tests for room in found.values())


def test_a_kernel_is_judged_by_what_holds_and_calls_it() -> None:
    """The composition's replay is compiled into its label-setter, which two interpreted modules call."""
    folder = ROOT / "tangram_sim/planners/tangram/composition"
    play = folder / "play_kernels.py"
    held = {path.name for path in dependents(ROOT, play)}
    assert held == {"play_kernels.py", "exact_kernels.py", "rest_kernels.py", "chain_kernels.py"}
    callers = calls(ROOT, play, [folder / "exact.py", folder / "labels.py", folder / "exact_kernels.py"])
    assert {path.name for path, _ in callers} == {"exact.py", "labels.py"}
