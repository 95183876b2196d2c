"""A pytest plugin: which lines of some modules each test runs, and its CPU seconds, as JSON.

`python -m pytest -p tests.mutants.recording ...` with the modules, one a line, in MUTANTS_MODULES and the
file to write in MUTANTS_LINES. What compiled kernels do is not seen.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage


class Recording:
    """Lines by test, while tests run; the lines of a module's import belong to no test."""

    def __init__(self, modules: list[str], kept: Path) -> None:
        self.kept = kept
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

    def pytest_sessionfinish(self) -> None:
        """Write what was seen: {"seconds": {test: s}, "lines": {module: {line: [tests]}}}."""
        self.coverage.stop()
        data = self.coverage.get_data()
        lines: dict[str, dict[int, list[str]]] = defaultdict(dict)
        for module in data.measured_files():
            for line, tests in data.contexts_by_lineno(module).items():
                lines[module][line] = [test for test in tests if test]
        self.kept.write_text(json.dumps({"seconds": self.seconds, "lines": lines}), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Begin before the tests' modules are imported."""
    modules = os.environ["MUTANTS_MODULES"].splitlines()
    config.pluginmanager.register(Recording(modules, Path(os.environ["MUTANTS_LINES"])))
