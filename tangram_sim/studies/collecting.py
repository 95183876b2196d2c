"""Collecting garbage rarely while something large is built."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

# Objects made and not freed between two looks for cycles; Python's own 700 has them looked for among all the
# prices and partial plans of a search again and again, an eighth of its seconds, and they hold none.
OBJECTS = 200_000


@dataclass
class _Inside:
    """Number of open blocks over all threads, and the collector's thresholds before the first."""

    blocks: int = 0
    before: tuple[int, int, int] = (0, 0, 0)
    lock: Lock = field(default_factory=Lock)


_INSIDE = _Inside()


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Inside the block, collect cyclic garbage only once in OBJECTS allocations.

    The collector is shared by all threads: the old thresholds are restored when the last block ends.
    """
    with _INSIDE.lock:
        if not _INSIDE.blocks:
            _INSIDE.before = before = gc.get_threshold()
            if before[0]:  # 0: somebody has switched it off
                gc.set_threshold(max(OBJECTS, before[0]), *before[1:])
        _INSIDE.blocks += 1
    try:
        yield
    finally:
        with _INSIDE.lock:
            _INSIDE.blocks -= 1
            if not _INSIDE.blocks:
                gc.set_threshold(*_INSIDE.before)
