"""The order of all tests: files that take long begin first, so that no worker is left with one at the end."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files, those with slow tests first; `--no-loadscope-reorder` hands them out in this order."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
