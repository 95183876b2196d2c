"""How functions of the fast player are compiled; importing this module imports numba.

numba counts a reference to every array that a function is handed, in one step that no other thread may
interrupt, whenever the function is not inlined. A replica is a handful of arrays and its functions are
small: that was four fifths of the player's time (6.1 microseconds a request, 1.1 without). Nothing is
allocated here, as numba then demands when it compiles, and whoever plays a replica keeps its arrays.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tangram_sim.compiling import njit

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

Function = TypeVar("Function", bound=Callable[..., object])


def _uncounted() -> dict[str, Any]:
    """numba's option for that, which its types do not know; none where another numba has no such option."""
    try:
        from numba.core.cpu import CPUTargetOptions
    except ImportError:
        return {}
    return {"_nrt": False} if hasattr(CPUTargetOptions, "_nrt") else {}


_UNCOUNTED = _uncounted()


def compiled(function: Function) -> "Dispatcher[Function]":
    """Decorator: compile `function` without counting references, and keep what was compiled."""
    found: Dispatcher[Function] = njit(function, cache=True, **_UNCOUNTED)
    return found
