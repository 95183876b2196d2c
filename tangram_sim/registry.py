"""Discovery of plug-ins by entry point: which parallelizers are installed, and loading one by name.

The library finds its own parallelizers the same way as everybody else's: group `tangram_sim.parallelizers`.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tangram_sim.errors import TangramError, unknown_name

PARALLELIZERS = "tangram_sim.parallelizers"
VERBS = "tangram_sim.verbs"


def parallelizer_names() -> tuple[str, ...]:
    """Names of the installed parallelizers, sorted; nothing is imported."""
    return tuple(sorted(_entries(PARALLELIZERS)))


def parallelizer(name: str) -> Any:
    """The parallelizer registered as `name` (the class; call it for an instance).

    Raises UnknownNameError with the nearest names, and TangramError naming the distribution when its
    plug-in cannot be imported or two distributions claim the name.
    """
    return _load(PARALLELIZERS, "parallelizer", name)


def verb_names() -> tuple[str, ...]:
    """Verbs that other packages add to `tangram`, like "validate testbed", sorted; nothing is imported."""
    return tuple(sorted(_entries(VERBS)))


def verb(name: str) -> Any:
    """The function behind a verb; raises like `parallelizer`."""
    return _load(VERBS, "verb", name)


def _entries(group: str) -> dict[str, list[EntryPoint]]:
    """Entry points by name; one that a second copy of its distribution repeats counts once."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        same_name = found.setdefault(entry.name, [])
        if all(entry.value != other.value for other in same_name):
            same_name.append(entry)
    return found


def _load(group: str, kind: str, name: str) -> Any:
    entries = _entries(group)
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
