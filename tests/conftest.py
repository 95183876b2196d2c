"""For all tests: their order, long files first, and how many examples hypothesis draws.

Where a test does not say how many, they are a hundred in CI and a quarter of that under `make test`, which
asks for the profile `fast`.

The garbage collector walks all that is alive: thousands of tests and the modules that they import, again and
again, for an eighth of the run's time. It looks more rarely, and not at what stands before the first test.

Workers compile each loop once between them: who comes second waits for the first and reads what it has kept.
"""

import fcntl
import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.places import ROOT

# Tests press Ctrl-C; what a shell starts in its background, and all that this starts, would not hear it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# How fast inputs come says how busy the machine is, not whether the code is right.
settings.register_profile("fast", max_examples=25, suppress_health_check=[HealthCheck.too_slow])
gc.set_threshold(100_000, 10, 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files, those with slow tests first, so that no worker is left with one at the end.

    `--no-loadscope-reorder` hands them out in this order.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Leave out of every later collection what lives as long as the run."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        _compile_in_turn(ROOT / "build" / "compiling")
    gc.collect()
    gc.freeze()


def _compile_in_turn(folder: Path) -> None:
    """Let one process at a time compile a function; loops call one another without circles, so all get on."""
    from numba.core.dispatcher import Dispatcher

    compile_at_once, mine = Dispatcher.compile, set[str]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a checkout of somebody else: each worker compiles for itself
        return

    def compile_in_turn(self: Any, sig: Any) -> Any:
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
        if not name.startswith("tangram_sim.") or name in mine:
            return compile_at_once(self, sig)
        with _turn(folder / name):
            mine.add(name)
            try:
                return compile_at_once(self, sig)
            finally:
                mine.remove(name)

    Dispatcher.compile = compile_in_turn


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait for a turn at a file, a minute at most: threads that compile could wait for one another."""
    try:
        held = path.open("w")
    except OSError:  # made by another user
        yield
        return
    with held:
        for _ in range(600):
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
        yield
