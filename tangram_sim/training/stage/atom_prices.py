"""Ops, memory and costs of single atoms under K layouts of one setting, each computed once.

Lowering an atom takes a few hundred operations on arrays of K, whose length hardly matters: layouts for
several microbatch sizes are lowered in one setting, and pricers of one size use its rows.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats
from tangram_sim.layers.atoms import Atom, Embedding, End, Head, atom_kinds, atoms_of, one_copy_of
from tangram_sim.layers.program import COMPUTE, Program
from tangram_sim.models import Block
from tangram_sim.training.stage import block, state
from tangram_sim.training.stage import model_ends as ends
from tangram_sim.training.stage.reductions import backward_directions
from tangram_sim.training.stage.setting import Setting


class AtomPrices:
    """Programs, bytes and additive costs of the atoms of a model under the K layouts of one setting.

    With weights shared with other parts, results that sharing does not change are taken from `alone`, the
    prices of the same layouts without sharing.
    """

    def __init__(self, setting: Setting, alone: "AtomPrices | None" = None) -> None:
        self.setting = setting
        self.atoms = atoms_of(setting.model)
        self.kinds = atom_kinds(setting.model)  # numbers for atoms: hashing them takes longer
        self.different = dict(zip(self.kinds, self.atoms, strict=True))  # an atom of each kind
        row = {kind: number for number, kind in enumerate(self.different)}
        self.rows = np.array([row[kind] for kind in self.kinds])  # of each atom's kind among the different
        self._programs: dict[tuple[Atom, str], Program] = {}
        self._times: dict[Block, block.Times] = alone._times if alone else {}
        # Layouts that gather weights gather them from whoever shares them; other forward passes ask nobody.
        gathers = (setting.zero == 3) | setting.fsep
        self._forward = None if gathers.any() else alone
        self._holding: dict[int, state.Held] = {}  # by kind of atom
        self._savings: dict[End, tuple[Floats, ...]] = {}

    def program(self, atom: Atom, direction: str) -> Program:
        """The ops of `atom` in one direction (see `reductions`)."""
        key = (atom, direction)
        if key not in self._programs:
            if self._forward and direction == "forward":
                return self._forward.program(atom, direction)
            both = backward_directions(self.setting.job)[0] == "backwards"
            if both and direction in ("backward", "last"):
                found = self.program(atom, "backwards").ending(step=direction == "last")
            else:
                found = self._lower(atom, direction)
            self._programs[key] = found
        return self._programs[key]

    def _lower(self, atom: Atom, direction: str) -> Program:
        setting = self.setting
        if isinstance(atom, Embedding):
            if direction == "forward":
                return ends.embedding_forward(setting, atom)
            return ends.embedding_backward(setting, atom, direction)
        if isinstance(atom, Head):
            return (
                ends.head_forward(setting, atom)
                if direction == "forward"
                else ends.head_backward(setting, atom, direction)
            )
        if atom not in self._times:
            self._times[atom] = block.block_times(setting, atom)
        times = self._times[atom]
        if direction == "forward":
            return block.block_forward(setting, atom, times)
        return block.block_backward(setting, atom, times, direction)

    def held(self, kind: int, atom: Atom) -> state.Held:
        """Memory of an atom of this kind."""
        if kind not in self._holding:
            self._holding[kind] = state.held(self.setting, atom)
        return self._holding[kind]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of atoms of each kind among the first 0, 1, ... atoms: (atoms + 1, kinds)."""
        own = self.rows[:, None] == np.arange(len(self.different))
        return np.concatenate([np.zeros((1, len(self.different)), np.int64), np.cumsum(own, axis=0)])

    @cached_property
    def additive(self) -> Floats:
        """Costs that are additive over atoms, for each kind: (5, kinds, K).

        Seconds of weight gradients, after the last pass, and of the optimizer; static and activation bytes.
        """
        backward, _ = backward_directions(self.setting.job)
        held = [self.held(kind, atom) for kind, atom in self.different.items()]
        atoms = self.different.values()
        return np.array(
            [
                [self.program(atom, backward).weight_gradient for atom in atoms],
                [state.behind_last_pass_s(self.setting, atom) for atom in atoms],
                [state.optimizer_s(self.setting, atom) for atom in atoms],
                [kept.static for kept in held],
                [kept.activation for kept in held],
            ]
        )

    def saved(self, borrower: End) -> tuple[Floats, ...]:
        """Savings of an end that borrows its matrix: (seconds after the last pass, of the optimizer, static
        bytes)."""
        if borrower not in self._savings:
            place = 0 if borrower == "embedding" else -1
            own, borrowed = self.atoms[place], one_copy_of(self.setting.model, borrower)[place]
            self._savings[borrower] = tuple(
                of(self.setting, own) - of(self.setting, borrowed)
                for of in (state.behind_last_pass_s, state.optimizer_s, state.static_bytes)
            )
        return self._savings[borrower]

    @cached_property
    def compute_s(self) -> Floats:
        """Seconds of compute ops of every kind of atom, forward and backward: (kinds, K)."""
        backward, _ = backward_directions(self.setting.job)
        alone = [
            np.sum(
                [
                    op.seconds
                    for direction in ("forward", backward)
                    for op in self.program(atom, direction).ops
                    if op.stream == COMPUTE
                ],
                axis=0,
            )
            for atom in self.different.values()
        ]
        return np.array(alone)
