"""For all tests: their order, long files first, and how many examples hypothesis draws.

Where a test does not say how many, they are a hundred in CI and a quarter of that under `make test`, which
asks for the profile `fast`.

The garbage collector walks all that is alive: thousands of tests and the modules that they import, again and
again, for an eighth of the run's time. It looks more rarely, and not at what stands before the first test.
"""

import gc

import pytest
from hypothesis import settings

settings.register_profile("fast", max_examples=25)
gc.set_threshold(100_000, 10, 10)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files, those with slow tests first, so that no worker is left with one at the end.

    `--no-loadscope-reorder` hands them out in this order.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Leave out of every later collection what lives as long as the run."""
    gc.collect()
    gc.freeze()
