"""numba's `njit`, for modules of compiled loops; importing this module imports numba.

Compiled code is cached on disk, with three corrections to numba's own cache. numba checks only the file of a
function to tell whether its code is still valid, but that code contains functions and constants of other
modules: here the stamp covers what a module takes from others of its package. numba refuses to compile where
neither the package's folder nor the user's can be written: here the code goes to a temporary folder, or is
not cached. And a full disk does not end the command.

The first function that numba compiles or loads makes it check for scipy's linear algebra by importing all of
that: a sixth of a second in every process, for loops that use none of it. scipy is there, as this package
depends on it; a loop that wants it has numba load it then.

Compiling makes millions of small objects and next to no garbage, and Python's collector scans all of them
again and again for cycles: a seventh of the time where nothing but compiling was timed. So the collector is
off while something compiles.

Both use numba's private names. Where another version of numba lacks them, functions still compile but are not
cached, rather than run from stale code.
"""

import gc
import hashlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numba
import numpy as np
from numba.core import event

from tangram_sim.errors import BadInputError
from tangram_sim.keeping import made_private, spare_folder

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

__all__ = ["njit"]

Function = TypeVar("Function", bound=Callable[..., object])
_PLACE = "CACHE_DIR"  # numba's setting
_ASKS = "ensure_blas"  # numba's name for the question
_CONSTANTS = (bool, int, float, complex, str, bytes, tuple, np.generic)


@overload
def njit(
    function: None = None, *, cache: bool = False, **options: Any
) -> "Callable[[Function], Dispatcher[Function]]": ...
@overload
def njit(function: Function, *, cache: bool = False, **options: Any) -> "Dispatcher[Function]": ...
def njit(function: Callable[..., Any] | None = None, *, cache: bool = False, **options: Any) -> Any:
    """Decorator that compiles a function; with `cache` its code is kept on disk while it is valid."""
    if function is None:
        return partial(njit, cache=cache, **options)
    kept = _kept(function, options) if cache else None
    return numba.njit(function, **options) if kept is None else kept


def _kept(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A function compiled with a disk cache, or None where no cache can be written."""
    try:
        found = numba.njit(function, cache=True, **options)
    except (RuntimeError, BadInputError):  # nowhere to keep it, or the web's sandbox forbids it
        found = _kept_among_temporary(function, options)
    if found is None:
        return None
    try:
        stored = found._cache
        stored._cache_file._source_stamp = (stored._cache_file._source_stamp, _borrowed(function.__module__))
        stored.save_overload = partial(_save_if_possible, stored.save_overload)
    except (AttributeError, KeyError):  # another numba, or a module that is not among those imported
        return None
    return found


def _kept_among_temporary(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    folder = spare_folder()
    if folder is not None and made_private(folder):
        with suppress(RuntimeError, BadInputError, AttributeError), _keeping_in(folder):
            return numba.njit(function, cache=True, **options)
    _say_once()
    return None


@contextmanager
def _keeping_in(folder: Path) -> Iterator[None]:
    """Context in which numba caches the functions that are decorated in `folder`."""
    before = getattr(numba.config, _PLACE)
    setattr(numba.config, _PLACE, str(folder))
    try:
        yield
    finally:
        setattr(numba.config, _PLACE, before)


@cache
def _say_once() -> None:
    warnings.warn(
        "compiled code cannot be kept, so every command compiles anew, which takes about a minute: "
        "name a folder that can be written in NUMBA_CACHE_DIR",
        RuntimeWarning,
        stacklevel=2,
    )


def _save_if_possible(save: Callable[..., None], *given: Any) -> None:
    # A full disk, or code that Ctrl-C left half made (RuntimeError): it is compiled again another time.
    with suppress(OSError, RuntimeError):
        save(*given)


@cache
def _borrowed(name: str) -> str:
    """Digest of everything a module takes from its package when it compiles its first function.

    That is after its imports: constants by value, everything else by the source of the module that defines
    it, and compiled functions also by what that module takes from others.
    """
    package = name.partition(".")[0] + "."
    digest, others = hashlib.sha256(), dict[str, bool]()
    for key, value in sorted(vars(sys.modules[name]).items()):
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(value, np.ndarray):
            digest.update(key.encode() + value.tobytes())
        elif isinstance(value, _CONSTANTS) and not key.startswith("__"):
            digest.update(f"{key}={value!r};".encode())
        elif isinstance(home, str) and home != name and home.startswith(package):
            others[home] = others.get(home, False) or hasattr(value, "py_func")
    for home, compiled in sorted(others.items()):
        digest.update(home.encode() + _source(home) + (_borrowed(home) if compiled else "").encode())
    return digest.hexdigest()


@cache
def _source(name: str) -> bytes:
    try:
        return Path(sys.modules[name].__file__ or "").read_bytes()
    except OSError:  # in an archive
        return b""


class _Uncollected(event.Listener):
    """Disables Python's garbage collection while a function and the functions that it calls compile."""

    def __init__(self) -> None:
        self._mine = threading.local()

    def on_start(self, event: event.Event) -> None:
        """Disable garbage collection when the outermost compilation starts."""
        del event
        depth = getattr(self._mine, "depth", 0)
        self._mine.depth = depth + 1
        if depth == 0:
            self._mine.collected = gc.isenabled()
            gc.disable()

    def on_end(self, event: event.Event) -> None:
        """Restore garbage collection when the outermost compilation has ended, successful or not."""
        del event
        self._mine.depth -= 1
        if self._mine.depth == 0 and self._mine.collected:
            gc.enable()


def _without_linear_algebra() -> None:
    """Load numba's array support without its check for scipy's linear algebra, which is slow to import."""
    try:
        from numba.np import linalg
    except ImportError:  # another numba: it asks
        return
    asks = getattr(linalg, _ASKS, None)
    if asks is None:
        return
    setattr(linalg, _ASKS, lambda: None)
    try:
        from numba.np import arraymath
    except ImportError:
        return
    finally:
        setattr(linalg, _ASKS, asks)
    if hasattr(arraymath, _ASKS):
        setattr(arraymath, _ASKS, asks)


_without_linear_algebra()
event.register("numba:compile", _Uncollected())  # type: ignore[no-untyped-call]
