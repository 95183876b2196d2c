"""Collecting garbage rarely while something large is built."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects made and not freed between two looks for cycles; Python's own 700 has them looked for among all the
# prices and partial plans of a search again and again, an eighth of its seconds, and they hold none.
OBJECTS = 200_000


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Look for cyclic garbage once in OBJECTS allocations until the end; what others set is put back."""
    before = gc.get_threshold()
    if before[0]:  # 0: somebody has switched it off
        gc.set_threshold(max(OBJECTS, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
