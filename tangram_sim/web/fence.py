"""A fence around a process: which files it may open, and that it starts nothing and calls nobody.

Files of a request may name other files (a catalogue its nodes, a fleet its plan). Here the interpreter itself
is asked before each one is opened (PEP 578), so that a request reads and writes its own folder only.
"""

import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tangram_sim
from tangram_sim.datafiles import shipped
from tangram_sim.errors import BadInputError

_FORBIDDEN = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "socket.connect")
_OPENING = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link")


def put_up(own: Path, also: Sequence[Path] = ()) -> None:
    """From now on this process opens files under `own`, `also`, the interpreter's and the package's alone.

    There is no way back. What is refused raises BadInputError where it is tried.
    """
    sys.addaudithook(_hook(tuple(_real(place) for place in (own, *also, *_interpreter()))))


def _interpreter() -> list[Path]:
    """Where code, data of the package and compiled code lie."""
    code = [Path(path) for path in sysconfig.get_paths().values()]
    code += [Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    own = [Path(tangram_sim.__file__).parent, shipped("hwdb"), shipped("traces")]
    return [*code, *own, _numba_cache(), Path("/dev"), Path("/proc/self")]


def _numba_cache() -> Path:
    return Path(os.environ.get("NUMBA_CACHE_DIR") or Path.home() / ".cache" / "numba")


def _real(place: Path) -> str:
    return os.path.realpath(place)


def _hook(allowed: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    def asked(event: str, given: tuple[Any, ...]) -> None:
        if event in _FORBIDDEN:
            raise BadInputError("a page's request starts no program and opens no connection")
        if event in _OPENING and given and isinstance(given[0], (str, bytes, os.PathLike)):
            real = os.path.realpath(os.fsdecode(given[0]))
            if not any(real == place or real.startswith(place + os.sep) for place in allowed):
                raise BadInputError(
                    f"{Path(real).name}: not a file of this request; drop it into the page beside the others"
                )

    return asked
