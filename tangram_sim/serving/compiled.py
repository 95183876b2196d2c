"""How functions of the fast player are compiled; importing this module imports numba.

numba counts a reference to every array that a function is handed, in one step that no other thread may
interrupt, whenever the function is not inlined. A replica is a handful of arrays and its functions are
small: that was four fifths of the player's time (6.1 microseconds a request, 1.1 without). Nothing is
allocated here, as numba then demands when it compiles, and whoever plays a replica keeps its arrays.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from numba.core.dispatcher import Dispatcher

from tangram_sim.compiling import njit

Function = TypeVar("Function", bound=Callable[..., object])
_UNCOUNTED: dict[str, Any] = {"_nrt": False}  # numba's own word for it, which its types do not know


def compiled(function: Function) -> "Dispatcher[Function]":
    """Decorator: compile `function` without counting references, and keep what was compiled."""
    found: Dispatcher[Function] = njit(function, cache=True, **_UNCOUNTED)
    return found
