"""Ours against the paper's: the order of systems, and how much faster Tangram is."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

TOLD_APART = 1.10  # the paper's times must differ by this for their order to count
WITHIN = 0.25  # of the paper's speed-up
METIS, PUBLISHED = "Metis", "Metis as published"  # ours repaired, and the one that the paper ran

Times = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Ratio:
    """`slower` over `faster`: the paper's, and ours (None where ours has no plan).

    Where Metis as published is the slower one, `repaired` is ours with the repaired Metis.
    """

    slower: str
    faster: str
    paper: float
    ours: float | None
    repaired: float | None = None


def _ratio(slower: str, faster: str, paper: Times, ours: Times) -> Ratio:
    a, b = paper[slower], paper[faster]
    assert a is not None and b is not None
    c, d = ours.get(slower), ours.get(faster)
    other = ours.get(METIS) if slower == PUBLISHED else None
    return Ratio(slower, faster, a / b, c / d if c and d else None, other / d if other and d else None)


def _shown(paper: Times) -> list[str]:
    """Systems with a bar; of two Metis the published one, which the paper ran."""
    known = [name for name, value in paper.items() if value is not None]
    return [name for name in known if name != METIS or PUBLISHED not in known]


def orders(paper: Times, ours: Times) -> list[Ratio]:
    """Pairs that the paper tells apart; the order agrees where our ratio is above 1, too."""
    found = []
    for item, other in combinations(_shown(paper), 2):
        slower, faster = sorted((item, other), key=lambda name: -(paper[name] or 0.0))
        if (paper[slower] or 0.0) > TOLD_APART * (paper[faster] or 0.0):
            found.append(_ratio(slower, faster, paper, ours))
    return found


def own(system: str) -> str:
    """The parallelizer that a Tangram is made of, alone."""
    return "Galvatron-uniform" if system == "Tangram" else system.removeprefix("Tangram-")


def speed_ups(paper: Times, ours: Times) -> list[Ratio]:
    """Of each Tangram over its own parallelizer, and of the paper's fastest one over all others."""
    made = [name for name, seconds in paper.items() if name.split("-")[0] == "Tangram" and seconds]
    if not made:
        return []
    best = min(made, key=lambda name: paper[name] or 0.0)
    pairs = [(own(name), name) for name in made]
    pairs += [(name, best) for name in _shown(paper) if name not in made and "," not in name]
    known = [pair for pair in dict.fromkeys(pairs) if paper.get(pair[0]) and paper.get(pair[1])]
    return [_ratio(*pair, paper, ours) for pair in known]


def within(ratio: Ratio) -> bool:
    """Whether our speed-up lies within WITHIN of the paper's."""
    return ratio.ours is not None and abs(ratio.ours / ratio.paper - 1) <= WITHIN
