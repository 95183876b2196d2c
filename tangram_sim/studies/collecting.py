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
    """How many blocks are open, in whichever threads, and what was set before the first of them."""

    blocks: int = 0
    before: tuple[int, int, int] = (0, 0, 0)
    lock: Lock = field(default_factory=Lock)


_INSIDE = _Inside()


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Look for cyclic garbage once in OBJECTS allocations until the end; what others set is put back.

    The collector is one for all threads: it is put back when the last of them is through.
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
