"""A pytest plugin: tests that run a mutant's line first, each with a limit against endless loops."""

import resource
import time
from collections.abc import Iterator, Mapping, Set

import pytest

TIMES = 4.0  # what a test takes unchanged


class Ordering:
    """The order of tests, and the CPU seconds that each may take: beyond them the kernel ends the process.

    The whole run has a limit of its own, which stays. Fixtures are shared in a module, so tests stay together
    by module; within the first and within the others, what takes least comes first.
    """

    def __init__(
        self, seconds: Mapping[str, float], first: Set[str], more_s: float, *, alone: bool = False
    ) -> None:
        self.seconds, self.first, self.more_s, self.alone = seconds, first, more_s, alone

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Those that were never seen come last; `alone`, those that do not run the line are left out."""
        if self.alone:
            items[:] = [item for item in items if not self._late(item)]
        files: dict[tuple[bool, str], float] = {}
        for item in items:
            key = self._late(item), item.nodeid.partition("::")[0]
            files[key] = files.get(key, 0.0) + self._usual_s(item)

        def place(item: pytest.Item) -> tuple[bool, float, str, float]:
            late, file = self._late(item), item.nodeid.partition("::")[0]
            return late, files[late, file], file, self._usual_s(item)

        items.sort(key=place)

    def _late(self, item: pytest.Item) -> bool:
        return item.nodeid not in self.first

    def _usual_s(self, item: pytest.Item) -> float:
        return self.seconds.get(item.nodeid, 10.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """The limit counts from the process's start."""
        ends = time.process_time() + TIMES * self._usual_s(item) + self.more_s
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        soft = int(ends) + 1
        resource.setrlimit(
            resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
        )
        return (yield)
