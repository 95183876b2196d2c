"""Discovery of plug-ins by entry point: what is installed, and loading one by name.

The library registers its own parallelizers and planners as other packages do, in the groups
`tangram_sim.parallelizers` and `tangram_sim.planners`. Schedules of other packages join the built-in ones
through the group `tangram_sim.schedules`.
"""

import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from tangram_sim.errors import TangramError, unknown_name

PARALLELIZERS = "tangram_sim.parallelizers"
PLANNERS = "tangram_sim.planners"  # of whole clusters
VERBS = "tangram_sim.verbs"  # names are GROUP.VERB, as in `calibrate.kernels`
DOCUMENTS = "tangram_sim.documents"  # answers of other packages' verbs, for their JSON Schemas
SCHEDULES = "tangram_sim.schedules"  # of pipelines, beside the built-in ones
COLLECTIVES = "tangram_sim.collectives"  # algorithms beside the built-in ones; private so far


# What a plug-in of each group is called in messages.
_KINDS = {
    PARALLELIZERS: "parallelizer",
    PLANNERS: "planner",
    VERBS: "verb",
    DOCUMENTS: "document",
    SCHEDULES: "schedule",
    COLLECTIVES: "collective algorithm",
}


def names(group: str) -> tuple[str, ...]:
    """Names of what installed packages register under a group, sorted; nothing is imported."""
    return tuple(sorted(_entries(group)))


def parallelizer(name: str) -> Any:
    """The parallelizer registered as `name` (the class; call it for an instance).

    Raises UnknownNameError with the nearest names, and TangramError naming the distribution when its
    plug-in cannot be imported or two distributions claim the name.
    """
    return load(PARALLELIZERS, name)


def planner(name: str) -> Any:
    """The whole-cluster planner registered as `name` (the class). Raises as `parallelizer` does."""
    return load(PLANNERS, name)


def verb_names(group: str) -> tuple[str, ...]:
    """Verbs that other distributions add to a command group, sorted; nothing is imported."""
    prefix = f"{group}."
    return tuple(name.removeprefix(prefix) for name in names(VERBS) if name.startswith(prefix))


def verb(group: str, name: str) -> Any:
    """What is registered as `GROUP.NAME`: a click command, a typer app or a function with typer options.

    Raises as `parallelizer` does.
    """
    return load(VERBS, f"{group}.{name}")


def _entries(group: str) -> dict[str, list[EntryPoint]]:
    """Entry points by name; what is installed is read again where a folder of `sys.path` has changed."""
    return _read(entry_points, group, tuple((folder, _changed(folder)) for folder in sys.path))


def _changed(folder: str) -> float:
    """When something was last put into a folder or taken out of it, seconds since 1970; 0: no such folder."""
    try:
        return Path(folder or ".").stat().st_mtime
    except OSError:
        return 0.0


@lru_cache(maxsize=32)  # every plan file that is read asks for schedules: a hundred packages' files each time
def _read(
    ask: Callable[..., Iterable[EntryPoint]], group: str, _folders: tuple[tuple[str, float], ...]
) -> dict[str, list[EntryPoint]]:
    """Entry points by name; one that a second copy of its distribution repeats counts once."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in ask(group=group):
        same_name = found.setdefault(entry.name, [])
        if all(entry.value != other.value for other in same_name):
            same_name.append(entry)
    return found


def load(group: str, name: str) -> Any:
    """What is registered under a group as `name`. Raises as `parallelizer` does."""
    entries, kind = _entries(group), _KINDS[group]
    if name not in entries:
        hint = (
            ""
            if entries
            else f"None is installed: `pip install tangram-sim` registers its own under {group}."
        )
        raise unknown_name(kind, name, entries, hint)
    if len(entries[name]) > 1:
        owners = ", ".join(f"{_owner(entry)} ({entry.value})" for entry in entries[name])
        raise TangramError(f"{kind} {name!r} is registered more than once: {owners}; uninstall all but one")
    entry = entries[name][0]
    try:
        return entry.load()
    except Exception as error:  # a plug-in's module may raise anything while it is imported
        raise TangramError(
            f"{kind} {name!r} of {_owner(entry)} cannot be loaded from {entry.value}: "
            f"{type(error).__name__}: {error}; reinstall or uninstall {_owner(entry)}"
        ) from error


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown distribution"
