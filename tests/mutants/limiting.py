"""A pytest plugin: ends a run in a test that takes many times what it takes unchanged, as endless loops do.

`python -m pytest -p tests.mutants.limiting ...` with the file of CPU seconds by test in MUTANTS_SECONDS and
what each may take beside them in MUTANTS_MORE_S. The whole run has a limit of its own, which stays.
"""

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMES = 4.0  # what a test takes unchanged


class Limiting:
    """The CPU seconds that each test may take; beyond them the kernel ends the process."""

    def __init__(self, seconds: dict[str, float], more_s: float) -> None:
        self.seconds, self.more_s = seconds, more_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """The limit counts from the process's start."""
        ends = time.process_time() + TIMES * self.seconds.get(item.nodeid, 0.0) + self.more_s
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        soft = int(ends) + 1
        resource.setrlimit(
            resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
        )
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    """Read what tests take."""
    seconds = json.loads(Path(os.environ["MUTANTS_SECONDS"]).read_text(encoding="utf-8"))
    config.pluginmanager.register(Limiting(seconds, float(os.environ["MUTANTS_MORE_S"])))
