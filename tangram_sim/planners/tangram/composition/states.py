"""Numbers of nodes that a part of a pipeline has used, each a state of the label-setting."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NodeStates:
    """States in ascending order of their codes: counts as the digits of one number."""

    strides: Ints  # (kinds): what one node of each kind adds to a code
    codes: Ints  # (states)
    used: Ints  # (states, kinds)

    @staticmethod
    def of(counts: Sequence[int], one_by_one: bool = False) -> "NodeStates":
        """All numbers of nodes up to `counts`; `one_by_one`: those with at most one kind used in part.

        That is many fewer where copies are wide: 496 of 83,521 for 16 nodes of each of four kinds.
        """
        most = np.asarray(counts, dtype=np.int64)
        strides = np.concatenate([[1], np.cumprod(most + 1)])
        if one_by_one:
            alone = [np.arange(count + 1) for count in counts]
            ends = [np.array([0, count]) for count in counts]
            found = [
                state
                for kind in range(len(counts))
                for state in product(*ends[:kind], alone[kind], *ends[kind + 1 :])
            ]
            codes = np.unique(np.array(found, dtype=np.int64) @ strides[:-1])
        else:
            codes = np.arange(strides[-1])
        return NodeStates(strides[:-1], codes, codes[:, None] // strides[:-1] % (most + 1))

    def taken(self, joint: Sequence[Sequence[int]]) -> Ints:
        """(all kinds, kinds): nodes of each kind that one unit takes; joint kinds come last."""
        kinds = len(self.strides)
        together = np.array(joint, dtype=np.int64).reshape(len(joint), kinds)
        return np.concatenate([np.eye(kinds, dtype=np.int64), together])

    def without(self, nodes: Ints) -> Ints:
        """(states): the state that has so many nodes less in use; -1 where it is none."""
        wanted = self.codes - int(nodes @ self.strides)
        places = np.searchsorted(self.codes, wanted)
        known = (self.used >= nodes).all(axis=1) & (self.codes[places] == wanted)
        return np.where(known, places, -1)

    def reached(self, before: Ints) -> NDArray[np.bool_]:
        """(states): whether stages that take as many nodes as these moves use just so many together.

        Of states with at most one kind used in part all are said to be.
        """
        reached = np.zeros(len(self.codes), np.bool_)
        reached[0] = True
        if len(self.codes) <= self.codes[-1]:
            return ~np.zeros_like(reached)
        for without in before:  # the order of stages does not matter: each move as often as it can be made
            while (without >= 0).any() and not reached.all():
                reached |= (without >= 0) & reached[without]
                without = np.where(without >= 0, without[without], -1)  # twice as often
        return reached
