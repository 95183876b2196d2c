"""Prices of slices under K layouts: seconds and bytes of one stage, by simulating the slice's op graph.

Forward over atoms [s, e) is a prefix of forward over [s, e'), so one simulation of a chain prices every slice
that starts at `s`; backward mirrors it. The last atom of the pipeline's other end (head in forward, embedding
in backward) is added as its marginal time after the WINDOW atoms before it: after a few equal blocks a chain
of ops is periodic, which a test checks against the simulation of the whole slice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats
from tangram_sim.layers.atoms import Atom, End, atoms_of, borrowers, one_copy_of
from tangram_sim.layers.chain import Played, play_chain
from tangram_sim.layers.program import Program
from tangram_sim.models import Model
from tangram_sim.training.stage.atom_prices import AtomPrices
from tangram_sim.training.stage.reductions import backward_directions
from tangram_sim.training.stage.setting import Setting

WINDOW = 4
SHORT = 4  # slices up to this share of a chain are priced without playing all of it


@dataclass(frozen=True, slots=True)
class SlicePrices:
    """Slices as single stages under K layouts: seconds per microbatch, bytes per rank.

    Arrays of K for one slice, of (slices, K) for many.
    """

    forward_s: Floats
    backward_s: Floats  # input and weight gradients, and what ZeRO-2/3 reduce per microbatch
    backward_weight_s: Floats  # the part of it that only weight gradients need
    gradient_sync_s: Floats  # after the last backward: reduction not hidden, gather of updated weights
    optimizer_s: Floats
    static_bytes: Floats
    activation_bytes: Floats  # per microbatch in flight
    transient_bytes: Floats

    def of(self, index: int | slice | tuple[int, slice]) -> "SlicePrices":
        """Prices of slice `index` of many, of a range of them, or of one under some of the layouts."""
        return SlicePrices(*(getattr(self, column.name)[index] for column in fields(self)))

    def row(self, index: int) -> "SlicePrices":
        """Prices under layout `index`, as arrays of length 1."""
        return SlicePrices(*(getattr(self, column.name)[index : index + 1] for column in fields(self)))


@lru_cache(maxsize=64)
def _representatives(model: Model, backward: bool) -> tuple[int, ...]:
    """For every block, the index of the first block of a chain that has the block's chain as a prefix.

    Forward chains run from block `i` up to the last block, backward ones from `i` down to the first.
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
    """Prices every slice of a model under the K layouts of a setting; each distinct chain is simulated once.

    Atoms may have been `lowered` for more layouts; `rows` then selects the layouts of this setting.
    """

    def __init__(
        self,
        setting: Setting,
        lowered: AtomPrices | None = None,
        rows: slice | NDArray[np.int64] = slice(None),
    ) -> None:
        self.setting = setting
        self.atoms = atoms_of(setting.model)
        self.lowered, self._rows = lowered or AtomPrices(setting), rows
        self._programs: dict[tuple[Atom, str], Program] = {}
        self._plays: dict[tuple[str, int, bool], Played] = {}
        self._backward, self._last = backward_directions(setting.job)
        self._kinds = self.lowered.kinds
        self._ended: dict[tuple[str, tuple[int, ...]], Floats] = {}  # by kinds of a window
        self._working: dict[frozenset[int], Floats] = {}  # bytes beside what is kept, by kinds of atoms

    def borrower(self, start: int, stop: int) -> End | None:
        """The end (embedding, head) of atoms [start, stop) that reads the other's tied matrix; None: none."""
        return borrowers(self.setting.model, [(start, stop)])[0]

    def stage_atoms(self, start: int, stop: int, borrower: End | None = None) -> tuple[Atom, ...]:
        """Atoms [start, stop); the end `borrower` reads a tied matrix that another run of the stage holds."""
        borrower = borrower or self.borrower(start, stop)
        atoms = one_copy_of(self.setting.model, borrower) if borrower else self.atoms
        return atoms[start:stop]

    def forget_plays(self) -> None:
        """Drop programs and simulated chains, most of a pricer's memory; they are recomputed on demand."""
        self._programs.clear()
        self._plays.clear()

    def program(self, atom: Atom, direction: str) -> Program:
        """The ops of `atom` in one direction (see `reductions`)."""
        key = (atom, direction)
        if key not in self._programs:
            whole = self.lowered.program(atom, direction)
            same = self.lowered.setting is self.setting
            self._programs[key] = whole if same else whole.under(self._rows)
        return self._programs[key]

    def programs(self, atoms: tuple[Atom, ...], direction: str) -> tuple[Program, ...]:
        """The programs of `atoms`, in the order given; each atom object is looked up once."""
        different = {id(atom): atom for atom in atoms}  # hashing every block of a deep model takes longer
        found = {number: self.program(atom, direction) for number, atom in different.items()}
        return tuple(map(found.__getitem__, map(id, atoms)))

    def play(self, atoms: tuple[Atom, ...], direction: str) -> Played:
        """Simulate the programs of `atoms`, in the order given."""
        return play_chain(self.programs(atoms, direction))

    def _chain(self, direction: str, first: int, length: int, borrower: End | None) -> Played:
        """A simulated chain of at least `length` atoms that begins like the chain from atom `first`.

        Chains never contain the atom that ends the pipeline in their direction (see `_margin`). Times of a
        chain's first atoms do not depend on the rest, so short slices use a chain of a quarter of the length.
        """
        forward, size = direction == "forward", len(self.atoms)
        at_end = first == 0 if forward else first == size - 1
        if at_end:
            start = first
        else:
            index = first - 1 if forward else size - 2 - first
            found = _representatives(self.setting.model, not forward)[index]
            start = found + 1 if forward else size - 2 - found
        borrowing = borrower == "head" and start == size - 1
        key = (direction, start, borrowing)
        if key not in self._plays or len(self._plays[key].done) < length:
            atoms = one_copy_of(self.setting.model, "head") if borrowing else self.atoms
            ordered = atoms[start : size - 1] if forward else atoms[start:0:-1]
            short = len(ordered) // SHORT
            self._plays[key] = self.play(ordered[:short] if length <= short else ordered, direction)
        return self._plays[key]

    def _margin(self, direction: str, places: range) -> Floats:
        """Seconds that the last of these atoms adds to a pass over those before it.

        An end that borrows its matrix takes as long as one that holds it: only their reductions differ.
        """
        places = places[-WINDOW - 1 :]
        key = direction, tuple(self._kinds[place] for place in places)
        if key not in self._ended:
            done = self.play(tuple(self.atoms[place] for place in places), direction).done
            self._ended[key] = done[-1] - done[-2] if len(places) > 1 else done[-1]
        return self._ended[key]

    def _pass(
        self, direction: str, start: int, stop: int, borrower: End | None
    ) -> tuple[Floats, Floats, Floats]:
        """(compute end, gradient-reduction end, the same in a step's last pass) over atoms [start, stop).

        Seconds, arrays of K.
        """
        forward, size = direction == "forward", len(self.atoms)
        borrower = None if forward else borrower  # weights are read where they are kept: there is no gradient
        places = range(start, stop) if forward else range(stop - 1, start - 1, -1)
        ending = (stop == size) if forward else (start == 0)
        length = len(places) - ending
        if length:
            played = self._chain(direction, places[0], length, borrower)
            done, synced, closed = (ends[length - 1] for ends in played)
        else:
            done = synced = closed = np.zeros(len(self.setting.layouts))
        if not ending:
            return done, synced, closed
        done = done + self._margin(direction, places)
        atoms = one_copy_of(self.setting.model, borrower) if borrower else self.atoms
        end = self.program(atoms[places[-1]], direction)
        at_end = end.gradients if end.closing is None else end.closing
        return done, np.maximum(synced, done) + end.gradients, np.maximum(closed, done) + at_end

    @cached_property
    def _additive(self) -> Floats:
        """Additive costs under this pricer's layouts, see `AtomPrices.additive`: (5, kinds, K)."""
        return self.lowered.additive[:, :, self._rows]

    def _totals(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Floats:
        """Additive costs summed over the atoms [start, stop) of each slice: (5, slices, K)."""
        counts = self.lowered.counts[stops] - self.lowered.counts[starts]
        totals = np.zeros((len(self._additive), len(counts), len(self.setting.layouts)))
        for kind in np.flatnonzero(counts.any(axis=0)):
            totals += counts[:, kind, None] * self._additive[:, kind, None]
        return totals

    @cached_property
    def atom_seconds(self) -> Floats:
        """Forward plus backward seconds of every atom alone, under the first layout, [atoms]."""
        alone = {
            atom: float(
                self.play((atom,), "forward").done[-1, 0] + self.play((atom,), self._backward).done[-1, 0]
            )
            for atom in dict.fromkeys(self.atoms)
        }
        return np.array([alone[atom] for atom in self.atoms])

    @property
    def compute_s(self) -> Floats:
        """Seconds of compute ops of every atom, forward and backward: (atoms, K).

        They run sequentially, so their sum over a slice's atoms is a lower bound on a pass over the slice.
        """
        of_atoms: Floats = self.lowered.compute_s[:, self._rows][self.lowered.rows]
        return of_atoms

    def added_s(self, atom: Atom) -> Floats:
        """Seconds, forward and backward, that one more atom adds to a run of equal atoms, [K]."""
        passes = [
            self.play((atom,) * (WINDOW + 1), direction).done for direction in ("forward", self._backward)
        ]
        added: Floats = np.sum([done[-1] - done[-2] for done in passes], axis=0)
        return added

    def _transient(self, start: int, stop: int) -> Floats:
        """Peak bytes for work on atoms [start, stop) beyond what is kept, [K].

        Atoms run sequentially: the largest of their transients, plus the largest of their scratch.
        """
        kinds = frozenset(self._kinds[start:stop])
        if kinds not in self._working:
            some = {self._kinds[place]: self.atoms[place] for place in range(start, stop)}
            held = [self.lowered.held(kind, atom) for kind, atom in some.items()]
            extra = [(item.transient[self._rows], item.scratch[self._rows]) for item in held]
            self._working[kinds] = np.max(extra, axis=0).sum(axis=0)
        return self._working[kinds]

    def price(self, start: int, stop: int, borrower: End | None = None) -> SlicePrices:
        """Prices of atoms [start, stop) under every layout of the setting (see `price_many`)."""
        return self.price_many([(start, stop)], [borrower]).of(0)

    def price_many(
        self, slices: Sequence[tuple[int, int]], borrowing: Sequence[End | None] = ()
    ) -> SlicePrices:
        """Prices of atoms [start, stop) of each slice under every layout: arrays of (slices, K).

        `borrowing` names for every slice the end of the model in it that reads a tied matrix held by another
        run or chunk of the same stage; without it none does. A slice with both ends holds one copy anyway.
        """
        starts, stops = (np.array(ends, dtype=np.int64) for ends in zip(*slices, strict=True))
        lent = [
            borrower or self.borrower(*ends)
            for ends, borrower in zip(slices, borrowing or [None] * len(slices), strict=True)
        ]
        forward = self._passes("forward", slices, lent)[0]
        middle, synced, closed = self._passes(self._backward, slices, lent)
        last = middle
        if self._last != self._backward:
            last, closed, _ = self._passes(self._last, slices, lent)
        weight, behind, optimizer, static, activation = self._totals(starts, stops)
        for place, borrower in enumerate(lent):
            if borrower:
                for column, saved in zip(
                    (behind, optimizer, static), self.lowered.saved(borrower), strict=True
                ):
                    column[place] -= saved[self._rows]
        backward = np.maximum(middle, synced)
        return SlicePrices(
            forward_s=forward,
            backward_s=backward,
            backward_weight_s=np.minimum(weight, backward),
            gradient_sync_s=np.maximum(np.maximum(last, closed) - backward, 0.0) + behind,
            optimizer_s=optimizer,
            static_bytes=static,
            activation_bytes=activation,
            transient_bytes=np.array([self._transient(start, stop) for start, stop in slices]),
        )

    def _passes(
        self, direction: str, slices: Sequence[tuple[int, int]], lent: Sequence[End | None]
    ) -> tuple[Floats, Floats, Floats]:
        """(end of compute, end of gradient reduction, the same in a step's last pass) over every slice.

        Seconds, arrays of (slices, K).
        """
        ends = [self._pass(direction, *of, borrower) for of, borrower in zip(slices, lent, strict=True)]
        done, synced, closed = (np.array(of_each) for of_each in zip(*ends, strict=True))
        return done, synced, closed
