"""numba's `njit`, for modules of compiled loops; importing this module imports numba.

The first function that numba compiles or loads has it ask whether the linear algebra of scipy is there, by
loading all of that: a sixth of a second in every process, for loops that use none of it. It is there, as
this package depends on it; a loop that wants it has numba load it then.
"""

from numba import njit
from numba.np import linalg

__all__ = ["njit"]


_ASKS = "ensure_blas"  # numba's name for the question


def _without_linear_algebra() -> None:
    """Load what numba knows of arrays, with its question about linear algebra answered beforehand."""
    asks = getattr(linalg, _ASKS, None)
    setattr(linalg, _ASKS, lambda: None)
    try:
        from numba.np import arraymath
    finally:
        setattr(linalg, _ASKS, asks)
    setattr(arraymath, _ASKS, asks)


_without_linear_algebra()
