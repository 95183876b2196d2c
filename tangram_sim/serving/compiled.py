"""Compilation of the fast player's functions; importing this module imports numba.

numba counts a reference to every array argument, in one atomic step, whenever the function is not inlined. A
replica is a handful of arrays and its functions are small: this took four fifths of the player's time (6.1
microseconds a request, 1.1 without). Without counting, numba requires that functions allocate nothing, and
the caller has to keep a replica's arrays alive.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tangram_sim.compiling import njit

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

Function = TypeVar("Function", bound=Callable[..., object])


def _uncounted() -> dict[str, Any]:
    """The numba option that disables reference counting; empty where numba does not have it."""
    try:
        from numba.core.cpu import CPUTargetOptions
    except ImportError:
        return {}
    return {"_nrt": False} if hasattr(CPUTargetOptions, "_nrt") else {}


_UNCOUNTED = _uncounted()


def compiled(function: Function) -> "Dispatcher[Function]":
    """Decorator: compile `function` with numba without reference counting, and cache the result."""
    found: Dispatcher[Function] = njit(function, cache=True, **_UNCOUNTED)
    return found
