"""A pytest plugin: which lines of some modules each test runs, and its CPU seconds.

What compiled kernels do is not seen.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from coverage import Coverage

from tests.mutants.changes import Change


@dataclass(frozen=True, slots=True)
class Record:
    """CPU seconds by test, and tests by module and line."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def running(self, path: Path, change: Change) -> set[str]:
        """The tests that were seen to run a change's lines."""
        seen = self.lines.get(str(path), {})
        return {test for line in range(change.line, change.end_line + 1) for test in seen.get(str(line), ())}


class Recording:
    """Lines by test, while tests run; the lines of a module's import belong to no test."""

    def __init__(self, modules: list[str]) -> None:
        self.seconds: dict[str, float] = {}
        self.coverage = Coverage(data_file=None, include=modules, config_file=False)
        self.coverage.set_option("run:core", "ctrace")  # newer ones tell a line once, not to every test
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Everything of one test, its fixtures too, under its name."""
        self.coverage.switch_context(item.nodeid)
        began = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - began
            self.coverage.switch_context("")

    def record(self) -> Record:
        """What was seen."""
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[str, list[str]]] = defaultdict(dict)
        for module in data.measured_files():
            for line, tests in data.contexts_by_lineno(module).items():
                lines[module][str(line)] = [test for test in tests if test]
        return Record(self.seconds, dict(lines))
