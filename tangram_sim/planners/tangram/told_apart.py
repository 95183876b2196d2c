"""What a composition over node counts can tell apart: states grow as a product over islands."""

from collections.abc import Sequence
from math import prod

from tangram_sim.clusters import Island


def node_units(islands: Sequence[Island], most_states: int) -> tuple[int, ...]:
    """Nodes taken at a time from each island so that the composition has so many count states at most.

    Every island keeps one unit at least: of many islands some have to be left out (`likeliest`).
    """
    units = [1] * len(islands)
    while prod(island.nodes // unit + 1 for island, unit in zip(islands, units, strict=True)) > most_states:
        widest = max(range(len(islands)), key=lambda kind: islands[kind].nodes // units[kind])
        if islands[widest].nodes // units[widest] == 1:
            break
        units[widest] *= 2
    return tuple(units)


def likeliest(work: Sequence[float], most_states: int) -> tuple[int, ...]:
    """The islands that do most of the `work`, so many that each can be used or not in as many states.

    `work`: of every island; indices come in ascending order.
    """
    most = max(most_states.bit_length() - 1, 1)
    ordered = sorted(range(len(work)), key=lambda kind: (-work[kind], kind))
    return tuple(sorted(ordered[:most]))


def grouped_note(islands: Sequence[Island], units: Sequence[int]) -> str:
    """A note that says what is lost where nodes are taken in groups."""
    taken = ", ".join(
        f"{island.name} by {unit}" + (f", {island.nodes % unit} left over" if island.nodes % unit else "")
        for island, unit in zip(islands, units, strict=True)
        if unit > 1
    )
    return f"nodes are taken in groups ({taken}): stages that split a group were not searched"
