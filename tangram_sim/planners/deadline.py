"""When a whole-cluster planner has to have answered, and whether that cut it short."""

import time
from dataclasses import dataclass, field


@dataclass
class Deadline:
    """`limit_s` seconds from now on, by the clock on the wall; searches ask between steps if it is over."""

    limit_s: float = float("inf")
    stopped: bool = field(init=False, default=False)  # somebody asked when it was over, and left off there

    def __post_init__(self) -> None:
        self._until_s = time.monotonic() + self.limit_s

    def over(self) -> bool:
        """Whether to stop now with the best plan so far."""
        self.stopped = self.stopped or time.monotonic() >= self._until_s
        return self.stopped

    def notes(self) -> list[str]:
        """What to tell about a plan that was found; nothing where the search came to its end."""
        told = f"stopped by the time limit of {self.limit_s:g} s: the best plan so far"
        return [told] if self.stopped else []
