"""A limit on the clock for several pieces of work, each of which takes a share of what is left."""

import time


class TimeLimit:
    """Seconds from now on; None: there is no limit."""

    def __init__(self, limit_s: float | None) -> None:
        self._until = None if limit_s is None else time.monotonic() + limit_s

    def left_s(self, turns: int = 1) -> float | None:
        """Seconds for the next of `turns` pieces of work, at least 0; None where there is no limit."""
        return None if self._until is None else max(self._until - time.monotonic(), 0.0) / max(turns, 1)

    def over(self) -> bool:
        """Whether there is a limit and it is over."""
        return self.left_s() == 0.0
