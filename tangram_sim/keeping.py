"""Folders for compiled code and kept answers; numba, which is slow to import, is not needed here."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path


def users_folder() -> Path:
    """NUMBA_CACHE_DIR, or numba's folder in the user's cache, for code not cached beside its source."""
    if told := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "numba"


def spare_folder() -> Path | None:
    """Fallback cache folder among the temporary ones, which may not exist yet, if no other is writable.

    None where no temporary file can be written either.
    """
    try:
        return Path(tempfile.gettempdir()) / f"tangram-sim-{_user()}"
    except OSError:
        return None


def made_private(folder: Path) -> bool:
    """Make a folder that only this user can use; return whether it is one (others could plant code in it)."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    alone = os.name == "nt" or (found.st_uid == _user() and not found.st_mode & 0o077)
    return stat.S_ISDIR(found.st_mode) and alone


def drop_oldest(
    files: Iterable[Path], most_bytes: float, goes_last: Callable[[Path], bool] = lambda _: False
) -> None:
    """Delete the least recently used of some files until they hold `most_bytes` at most.

    Those for which `goes_last` is true stay as long as there are others.
    """
    found = list[tuple[bool, float, int, Path]]()
    for path in files:
        with suppress(OSError):
            told = path.stat()
            found.append((goes_last(path), told.st_mtime, told.st_size, path))
    held = sum(size for _, _, size, _ in found)
    for _, _, size, path in sorted(found):
        if held <= most_bytes:
            break
        with suppress(OSError):
            path.unlink()
            held -= size


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without one
        return Path()
