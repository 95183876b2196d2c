"""Prices of slices under K layouts: seconds and bytes of one stage, from playing the slice's op graph.

Forward over atoms [s, e) is a prefix of forward over [s, e'), so one play of a chain prices every slice
that starts at `s`; backward mirrors it. The last atom of the pipeline's other end (head in forward,
embedding in backward) is added as its marginal time behind the WINDOW atoms before it: behind a few equal
blocks a chain of ops is periodic, and a test holds this to the play of the whole slice.
"""

from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.layers.atoms import Atom, Embedding, Head, atoms_of
from tangram_sim.layers.chain import Played, play_chain
from tangram_sim.layers.program import Program
from tangram_sim.models import Block, Model
from tangram_sim.training.stage import block, state
from tangram_sim.training.stage import model_ends as ends
from tangram_sim.training.stage.setting import Setting

WINDOW = 4
SHORT = 4  # slices up to this share of a chain are priced without playing all of it


@dataclass(frozen=True, slots=True)
class SlicePrices:
    """One slice as a single stage under K layouts; arrays of K: seconds per microbatch, bytes per rank."""

    forward_s: Floats
    backward_s: Floats  # input and weight gradients, and what ZeRO-2/3 reduce per microbatch
    backward_weight_s: Floats  # the part of it that only weight gradients need
    gradient_sync_s: Floats  # after the last backward: reduction not hidden by it, gather of updated weights
    optimizer_s: Floats
    static_bytes: Floats
    activation_bytes: Floats  # per microbatch in flight
    transient_bytes: Floats

    def row(self, index: int) -> "SlicePrices":
        """Prices of one layout, as arrays of one."""
        return SlicePrices(*(getattr(self, column.name)[index : index + 1] for column in fields(self)))


@lru_cache(maxsize=64)
def _representatives(model: Model, backward: bool) -> tuple[int, ...]:
    """For every first block of a chain the chain that contains it as a prefix (index of its first atom).

    Forward chains run from atom `i` up to the last block, backward ones from `i` down to the first.
    """
    blocks = atoms_of(model)[1:-1]
    ordered = blocks[::-1] if backward else blocks
    kinds = {atom: index for index, atom in enumerate(dict.fromkeys(ordered))}
    ids = [kinds[atom] for atom in ordered]
    found = []
    for start in range(len(ids)):
        tail = ids[start:]
        found.append(next(other for other in range(start + 1) if ids[other : other + len(tail)] == tail))
    return tuple(found)


class Pricer:
    """Prices every slice of a model under the K layouts of one setting; plays each distinct chain once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.atoms = atoms_of(setting.model)
        self._programs: dict[tuple[Atom, str], Program] = {}
        self._times: dict[Block, block.Times] = {}
        self._plays: dict[tuple[str, int], Played] = {}
        self._ended: dict[tuple[str, tuple[Atom, ...]], Played] = {}  # windows with their end atom

    def program(self, atom: Atom, direction: str) -> Program:
        """The ops of `atom`; direction is `forward`, `backward` or `last` (backward that ends the step)."""
        key = (atom, direction)
        if key not in self._programs:
            self._programs[key] = self._lower(atom, direction)
        return self._programs[key]

    def _lower(self, atom: Atom, direction: str) -> Program:
        setting, last = self.setting, direction == "last"
        if isinstance(atom, Embedding):
            if direction == "forward":
                return ends.embedding_forward(setting, atom)
            return ends.embedding_backward(setting, atom, last)
        if isinstance(atom, Head):
            return (
                ends.head_forward(setting, atom)
                if direction == "forward"
                else ends.head_backward(setting, atom, last)
            )
        if atom not in self._times:
            self._times[atom] = block.block_times(setting, atom)
        times = self._times[atom]
        if direction == "forward":
            return block.block_forward(setting, atom, times)
        return block.block_backward(setting, atom, times, last)

    def programs(self, atoms: tuple[Atom, ...], direction: str) -> tuple[Program, ...]:
        """The programs of `atoms`, in the order given; equal neighbours are looked up once."""
        found: dict[int, Program] = {}  # by identity: hashing every block of a deep model takes longer
        for atom in atoms:
            if id(atom) not in found:
                found[id(atom)] = self.program(atom, direction)
        return tuple(found[id(atom)] for atom in atoms)

    def play(self, atoms: tuple[Atom, ...], direction: str) -> Played:
        """Play the programs of `atoms`, in the order given."""
        return play_chain(self.programs(atoms, direction))

    def _chain(self, direction: str, first: int, length: int) -> Played:
        """A played chain of at least `length` atoms that starts like the one at atom `first`.

        Chains never contain the atom that ends the pipeline in their direction (see `_margin`). What the
        first atoms of a chain take does not depend on the rest: short slices play a quarter of it.
        """
        forward, size = direction == "forward", len(self.atoms)
        at_end = first == 0 if forward else first == size - 1
        if at_end:
            start = first
        else:
            index = first - 1 if forward else size - 2 - first
            found = _representatives(self.setting.model, not forward)[index]
            start = found + 1 if forward else size - 2 - found
        key = (direction, start)
        if key not in self._plays or self._plays[key].done.shape[1] < length:
            ordered = self.atoms[start : size - 1] if forward else self.atoms[start:0:-1]
            short = len(ordered) // SHORT
            self._plays[key] = self.play(ordered[:short] if length <= short else ordered, direction)
        return self._plays[key]

    def _margin(self, direction: str, before: tuple[Atom, ...], end: Atom) -> Floats:
        """Seconds that the end atom adds to a pass behind the atoms played before it."""
        window = before[-WINDOW:]
        key = (direction, window)
        if key not in self._ended:
            self._ended[key] = self.play((*window, end), direction)
        played = self._ended[key]
        previous = played.done[:, -2] if window else np.zeros(len(self.setting.layouts))
        return played.done[:, -1] - previous

    def _pass(self, direction: str, start: int, stop: int) -> tuple[Floats, Floats]:
        """(compute end, gradient end) of one pass over atoms [start, stop). Arrays of K."""
        forward, size = direction == "forward", len(self.atoms)
        ordered = self.atoms[start:stop] if forward else self.atoms[start:stop][::-1]
        first = start if forward else stop - 1
        closing = (stop == size) if forward else (start == 0)
        body = ordered[:-1] if closing else ordered
        if body:
            played = self._chain(direction, first, len(body))
            done, synced = played.done[:, len(body) - 1], played.synced[:, len(body) - 1]
        else:
            done = synced = np.zeros(len(self.setting.layouts))
        if not closing:
            return done, synced
        done = done + self._margin(direction, body, ordered[-1])
        return done, np.maximum(synced, done) + self.program(ordered[-1], direction).gradients

    @cached_property
    def _sums(self) -> tuple[Floats, ...]:
        """Prefix sums over atoms of what is additive: weight-gradient, gather, optimizer seconds; bytes."""
        zero = np.zeros(len(self.setting.layouts))
        columns: tuple[list[Floats], ...] = tuple([zero] for _ in range(5))
        cache: dict[Atom, tuple[Floats, ...]] = {}
        for atom in self.atoms:
            if atom not in cache:
                kept = state.held(self.setting, atom)
                cache[atom] = (
                    self.program(atom, "backward").weight_gradient,
                    state.updated_weights_gather_s(self.setting, atom),
                    state.optimizer_s(self.setting, atom),
                    kept.static,
                    kept.activation,
                )
            for column, value in zip(columns, cache[atom], strict=True):
                column.append(column[-1] + value)
        return tuple(np.stack(column, axis=1) for column in columns)

    @cached_property
    def atom_seconds(self) -> Floats:
        """Forward and backward seconds of every atom alone, under the first layout. Array of atoms."""
        alone = {
            atom: float(
                self.play((atom,), "forward").done[0, -1] + self.play((atom,), "backward").done[0, -1]
            )
            for atom in dict.fromkeys(self.atoms)
        }
        return np.array([alone[atom] for atom in self.atoms])

    @cached_property
    def _transients(self) -> dict[Atom, tuple[Floats, Floats]]:
        held = {atom: state.held(self.setting, atom) for atom in dict.fromkeys(self.atoms)}
        return {atom: (one.transient, one.scratch) for atom, one in held.items()}

    def price(self, start: int, stop: int) -> SlicePrices:
        """Prices of atoms [start, stop) under every layout of the setting."""
        forward, _ = self._pass("forward", start, stop)
        middle, middle_synced = self._pass("backward", start, stop)
        last, last_synced = self._pass("last", start, stop)
        weight, gather, optimizer, static, activation = (
            column[:, stop] - column[:, start] for column in self._sums
        )
        if self.setting.model.tied and stop - start == len(self.atoms):
            # Both ends on the same ranks hold the shared matrix once.
            shared = Embedding(self.setting.model.vocabulary_parameters)
            static = static - state.static_bytes(self.setting, shared)
            optimizer = optimizer - (state.optimizer_s(self.setting, shared) - self.setting.rates.launch_s)
        backward = np.maximum(middle, middle_synced)
        extra = [self._transients[atom] for atom in dict.fromkeys(self.atoms[start:stop])]
        # Atoms run one after another; what is kept beside them is kept by the largest.
        transient = np.max(extra, axis=0).sum(axis=0)
        return SlicePrices(
            forward_s=forward,
            backward_s=backward,
            backward_weight_s=np.minimum(weight, backward),
            gradient_sync_s=np.maximum(np.maximum(last, last_synced) - backward, 0.0) + gather,
            optimizer_s=optimizer,
            static_bytes=static,
            activation_bytes=activation,
            transient_bytes=transient,
        )
