"""Seconds and bytes of a model's atoms on one node group, under many layouts at once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tangram_sim.clusters import Island
from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import atom_kinds, atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.models import Block, Model
from tangram_sim.training.job import Job
from tangram_sim.training.stage import state
from tangram_sim.training.stage.pricing import WINDOW, Pricer
from tangram_sim.training.stage.reductions import backward_directions
from tangram_sim.training.stage.setting import Setting

PASSED = 0.5  # of what the first microbatch takes through all stages the pipeline works on nothing else


class StageRoom(NamedTuple):
    """The fields of `ChainPrices` that decide how many blocks stages can hold."""

    sums: Floats
    fixed: Floats
    held: Floats


class ChainPrices(NamedTuple):
    """Seconds and bytes of stages on G groups, for a model of A atoms."""

    # [5, G, A + 1] of the atoms in front of each boundary: seconds of a microbatch, forward seconds of it,
    # seconds after the last pass, bytes kept of a microbatch, bytes of state.
    sums: Floats
    # [6, G]: usable bytes, bytes beside what is kept (of blocks, with the embedding, with the head), seconds
    # of a microbatch and after the last pass whatever the stage holds.
    fixed: Floats
    hops: Floats  # [G, G]: seconds to hand a microbatch on
    # [2, G]: stages that a node holds, and seconds from one to the next of them; they fill nodes from the
    # last stage backwards.
    beside: Floats
    tied: Floats  # [G, G]: seconds in which the ends add up gradients of a matrix of both; 0 for none
    held: Floats  # microbatches in flight with so many stages behind


def group_prices(
    model: Model, island: Island, job: Job, hwdb: Hwdb, layouts: Sequence[Layout], microbatch: Sequence[int]
) -> tuple[Floats, Floats]:
    """`sums` [5, K, A + 1] and `fixed` [6, K] of `ChainPrices` under K layouts on one group.

    `microbatch`: sequences of a whole stage, by layout. Every kind of atom is simulated in a chain of equal
    atoms: the cost of one more, and the extra cost of the first (exposed gathers and reductions). A layout
    may leave GPUs of the island idle.
    """
    setting = Setting(model, island, job, tuple(microbatch), tuple(layouts), hwdb)
    pricer, kinds, count = Pricer(setting), atom_kinds(model), len(layouts)
    atoms = dict(zip(kinds, atoms_of(model), strict=True))
    backward, last = backward_directions(job)
    each = {kind: np.zeros((5, count)) for kind in atoms}
    alone, beside = np.zeros((2, count)), np.zeros((3, count))
    for kind, atom in atoms.items():
        run = (atom,) * (WINDOW + 1)
        forward = pricer.play(run, "forward").done
        passed = pricer.play(run, backward)
        ended = passed if last == backward else pricer.play(run, last)
        back = np.maximum(passed.done, passed.synced)
        closed = np.maximum(ended.done, ended.closed if last == backward else ended.synced)
        tail = np.maximum(closed - back, 0.0)
        behind = state.behind_last_pass_s(setting, atom) + state.optimizer_s(setting, atom)
        added_tail = np.maximum(tail[-1] - tail[-2], 0.0)
        forward_s, back_s = forward[-1] - forward[-2], back[-1] - back[-2]
        held = state.held(setting, atom)
        each[kind][:] = forward_s + back_s, forward_s, added_tail + behind, held.activation, held.static
        block = isinstance(atom, Block)
        place = 0 if block else (1 if kind == kinds[0] else 2)
        beside[place] = np.maximum(beside[place], held.transient + held.scratch)
        if block:
            first_s = forward[-1] + back[-1] - len(run) * (forward_s + back_s)
            alone[0] = np.maximum(alone[0], first_s)
            alone[1] = np.maximum(alone[1], tail[-1] - len(run) * added_tail)
    sums = np.zeros((5, count, len(kinds) + 1))
    np.cumsum(np.stack([each[kind] for kind in kinds], axis=2), axis=2, out=sums[:, :, 1:])
    reserve = 1.0 + setting.rates.fragmentation
    sums[3] *= reserve
    usable = np.full((1, count), setting.rates.usable_memory_bytes)
    return sums, np.concatenate([usable, reserve * beside, np.maximum(alone, 0.0)])
