"""Restricts a process to certain files, and forbids it to start programs or open network connections.

Files of a request may name other files (a catalogue its nodes, a fleet its plan). An audit hook (PEP 578)
checks each file before the interpreter opens it, so that a request can use only its own folder.
"""

import os
import sys
import sysconfig
import zoneinfo
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tangram_sim
from tangram_sim.datafiles import shipped
from tangram_sim.errors import BadInputError
from tangram_sim.keeping import spare_folder, users_folder

_FORBIDDEN = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "socket.connect")
_READING = ("open", "os.listdir", "os.scandir")
_CHANGING = ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.utime")
_MOVING = ("os.rename", "os.link", "os.symlink")  # from one place to another
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_COMPILED = "__pycache__"  # where Python and numba keep compiled code beside the source


def put_up(own: Path, also: Sequence[Path] = ()) -> None:
    """From now on let this process read only `own`, `also`, and Python's and the package's folders.

    It may write only under `own` and into the caches of compiled code. This cannot be undone. Anything else
    raises BadInputError when it is tried.
    """
    readable = tuple(_real(place) for place in (own, *also, *_interpreter()))
    sys.addaudithook(_hook(readable, (_real(own), *map(_real, _compiled_code()), os.devnull)))


def _interpreter() -> list[Path]:
    """The folders of Python's code, of this package's code and data, and of compiled code."""
    code = [Path(path) for path in sysconfig.get_paths().values()]
    code += [Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    own = [Path(tangram_sim.__file__).parent, shipped("hwdb"), shipped("traces")]
    memory = [Path("/proc/meminfo"), Path("/sys/fs/cgroup")]  # how much of it is free
    zones = [Path(place) for place in zoneinfo.TZPATH]  # pandas asks for UTC
    return [*code, *own, *_compiled_code(), *memory, *zones, Path("/dev"), Path("/proc/self")]


def _compiled_code() -> list[Path]:
    """Folders where numba stores compiled code that it cannot store beside the source."""
    return [place for place in (users_folder(), spare_folder()) if place is not None]


def _real(place: Path) -> str:
    return os.path.realpath(place)


def _hook(readable: tuple[str, ...], writable: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    def require(place: Any, *, written: bool) -> None:
        if not isinstance(place, str | bytes | os.PathLike):
            return  # a descriptor: its file was asked about when it was opened
        real = os.path.realpath(os.fsdecode(place))
        compiled = _COMPILED in Path(real).parts
        if not _under(real, writable if written and not compiled else readable):
            raise BadInputError(
                f"{Path(real).name}: not a file of this request; drop it into the page beside the others"
            )

    def asked(event: str, given: tuple[Any, ...]) -> None:
        if event in _FORBIDDEN:
            raise BadInputError("a page's request starts no program and opens no connection")
        if event in _READING and given:
            require(given[0], written=event == "open" and bool(given[2] & _WRITING))
        elif event in _CHANGING:
            require(given[0], written=True)
        elif event in _MOVING:
            for place in given[:2]:
                require(place, written=True)

    return asked


def _under(real: str, places: tuple[str, ...]) -> bool:
    return any(real == place or real.startswith(place + os.sep) for place in places)
