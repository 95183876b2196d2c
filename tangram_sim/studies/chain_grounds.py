"""Where stages of a chain are placed: on each node group alone, or cut from several groups joined."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from tangram_sim.clusters import NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.layouts import Layout
from tangram_sim.planners.uniform.layouts import AMONG
from tangram_sim.studies.chain_roads import stages_held

_SUBSETS = 5  # grounds of which every set is looked at; of more all, all but one, and the fastest ones


@dataclass(frozen=True, slots=True)
class Ground:
    """Node groups that every stage here spans; `among`: the joined groups from which they were cut."""

    groups: tuple[str, ...]
    among: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The names of its groups, as `stage_ranks` takes them."""
        return "+".join(self.groups) + (AMONG + "+".join(self.among) if self.among else "")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Grounds that have no group in common, and how many stages of a width each holds."""

    grounds: tuple[Ground, ...]
    slots: tuple[int, ...]


def arrangements(groups: Sequence[NodeGroup], tp: int, width: int, *, ordered: bool) -> list[Arrangement]:
    """Arrangements of stages of `width` GPUs: each group alone; groups joined where they then hold more.

    `ordered`: only adjacent groups are joined.
    """
    groups = [group for group in groups if group.node.gpus % tp == 0]
    alone = {group.name: stages_held(group, Layout(tp, width // tp)) for group in groups}
    found = [{Ground((name,)): slots for name, slots in alone.items() if slots}]
    for some in _joined(groups, adjacent=ordered):
        together = _side_by_side(some, width)
        names = {group.name for group in some}
        if sum(together.values()) > sum(alone[name] for name in names):
            others = {ground: slots for ground, slots in found[0].items() if not names & {*ground.groups}}
            found.append(together | others)
    return [Arrangement(tuple(held), tuple(held.values())) for held in found if held]


def _side_by_side(some: tuple[NodeGroup, ...], width: int) -> dict[Ground, int]:
    """Number of stages of `width` GPUs by the groups that each spans, taking GPUs group by group."""
    owners = [group.name for group in some for _ in range(group.count * group.node.gpus)]
    names = tuple(dict.fromkeys(owners))
    stages = [owners[start : start + width] for start in range(0, len(owners) - width + 1, width)]
    return Counter(Ground(tuple(dict.fromkeys(stage)), names) for stage in stages)


def _joined(groups: Sequence[NodeGroup], *, adjacent: bool) -> Iterator[tuple[NodeGroup, ...]]:
    """Sets of groups to join: all up to _SUBSETS groups, else all and pairs; `adjacent`: neighbours only."""
    count = len(groups)
    if adjacent:
        yield from (tuple(groups[a:b]) for a in range(count) for b in range(a + 2, count + 1))
    elif count <= _SUBSETS:
        for size in range(2, count + 1):
            yield from combinations(groups, size)
    else:
        yield tuple(groups)
        yield from combinations(groups, 2)


def subsets(rates: Floats, together: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Sets of ground numbers to try, all first; beyond _SUBSETS only all but one, and the fastest.

    `together`: grounds whose stages span several groups; if there are any, every set holds one of them.
    """
    grounds = range(len(rates))
    if len(rates) <= _SUBSETS:
        every: Iterable[tuple[int, ...]] = (
            some for size in range(len(rates), 0, -1) for some in combinations(grounds, size)
        )
    else:
        fastest = np.argsort(-rates, kind="stable").tolist()
        few = (tuple(sorted(fastest[:size])) for size in range(1, len(rates) - 1))
        every = (tuple(grounds), *combinations(grounds, len(rates) - 1), *few)
    yield from (some for some in every if not together or set(together) & set(some))
