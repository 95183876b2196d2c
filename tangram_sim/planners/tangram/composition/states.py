"""States of the label-setting: the numbers of nodes that part of a pipeline uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NodeStates:
    """States of the label-setting: node counts by kind, encoded as the digits of one number, ascending."""

    strides: Ints  # (kinds): what one node of each kind adds to a code
    codes: Ints  # (states)
    used: Ints  # (states, kinds)

    @staticmethod
    def of(counts: Sequence[int], one_by_one: bool = False) -> "NodeStates":
        """All node counts up to `counts`; with `one_by_one` only those with at most one kind used in part.

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
        """(kinds and joint kinds, kinds): nodes of each kind that one unit takes; joint kinds come last."""
        kinds = len(self.strides)
        together = np.array(joint, dtype=np.int64).reshape(len(joint), kinds)
        return np.concatenate([np.eye(kinds, dtype=np.int64), together])

    def without(self, nodes: Ints) -> Ints:
        """(states): index of the state with `nodes` fewer nodes in use; -1 where no such state exists."""
        wanted = self.codes - int(nodes @ self.strides)
        places = np.searchsorted(self.codes, wanted)
        known = (self.used >= nodes).all(axis=1) & (self.codes[places] == wanted)
        return np.where(known, places, -1)

    def reached(self, before: Ints) -> NDArray[np.bool_]:
        """(states): whether some sequence of these moves reaches exactly this state.

        With `one_by_one` states all are reported as reached.
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
