"""When a whole-cluster planner has to have answered, and whether that cut it short."""

import time
from dataclasses import dataclass, field


@dataclass
class Deadline:
    """`limit_s` seconds by the clock on the wall from now on; searches ask between steps whether it is over."""

    limit_s: float = float("inf")
    stopped: bool = field(init=False, default=False)  # somebody asked when it was over, and left off there

    def __post_init__(self) -> None:
        self._until_s = time.monotonic() + self.limit_s

    def over(self) -> bool:
        """Whether to stop now with the best plan so far."""
        self.stopped = self.stopped or time.monotonic() >= self._until_s
        return self.stopped

    @property
    def note(self) -> str:
        """What to tell about a plan that was found; empty where the search came to its end."""
        return (
            f"stopped by the time limit of {self.limit_s:g} s: the best plan so far" if self.stopped else ""
        )
