"""Runs of layers with their own settings, consecutively on the same ranks, priced as one stage.

Between two runs with different layouts, activations are re-sharded: a rank that needs more of the microbatch
than it has gathers the rest (forward from the first layout to the second, gradients in the opposite
direction; the mirrored step only drops what other ranks keep, which is free).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import lcm
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.collectives import group
from tangram_sim.errors import BadInputError
from tangram_sim.layers.atoms import Atom, End
from tangram_sim.layers.chain import play_chain
from tangram_sim.layers.program import PREVIOUS, TENSOR, Program
from tangram_sim.layouts import Layout
from tangram_sim.training.plan import StagePrice
from tangram_sim.training.stage import state
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.reductions import backward_directions
from tangram_sim.training.stage.setting import Setting

Integers: TypeAlias = NDArray[np.int64]


class LayerRun(NamedTuple):
    """Atoms [start, stop) under one setting with one layout.

    `borrower` is the end of the model among them that reads a tied matrix held by another run of the same
    stage.
    """

    pricer: Pricer
    start: int
    stop: int
    borrower: End | None = None

    @property
    def layout(self) -> Layout:
        """The layout of the run."""
        return self.pricer.setting.layouts[0]

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The atoms, first to last."""
        return self.pricer.stage_atoms(self.start, self.stop, self.borrower)


Chunks: TypeAlias = Sequence[tuple[LayerRun, ...]]  # the runs of each chunk of a stage, or of a part of one


def with_one_copy(chunks: Chunks) -> Chunks:
    """The same runs, with one end marked as borrower where they hold both ends of a model with a tied matrix.

    A single run with both ends needs no mark: its pricer handles this case.
    """
    front, back = chunks[0][0], chunks[-1][-1]
    model = front.pricer.setting.model
    apart = front is not back and front.start == 0 and back.stop == model.layers + 2
    if not (model.tied and apart):
        return chunks
    end = state.borrower(front.pricer.setting, back.pricer.setting)
    lender, borrower = (back, front) if end == "embedding" else (front, back)
    marked = {lender: lender, borrower: borrower._replace(borrower=end)}
    return [tuple(marked.get(run, run) for run in runs) for runs in chunks]


def _pieces(layout: Layout) -> int:
    """Number of pieces into which a layout divides the sequence."""
    return layout.cp * (layout.tp if layout.sequence_parallel else 1)


def _first(layout: Layout) -> tuple[Integers, Integers]:
    """For every rank, the index of its share of the microbatch (of `dp`) and sequence (of `_pieces`)."""
    tp, cp = layout.tp, layout.cp
    rank = np.arange(tp * cp * layout.dp)
    tensor, context, replica = rank % tp, rank // tp % cp, rank // (tp * cp)
    return replica, context * tp + tensor if layout.sequence_parallel else context


def _overlap(a: Integers, width_a: int, b: Integers, width_b: int) -> Integers:
    """Length of the overlap of [a, a + 1) x width_a and [b, b + 1) x width_b."""
    both: Integers = np.minimum((a + 1) * width_a, (b + 1) * width_b) - np.maximum(a * width_a, b * width_b)
    return np.maximum(both, 0)


@lru_cache(maxsize=1 << 16)
def _missing(before: Layout, after: Layout) -> float:
    """`missing_share`, computed in integer units of the common subdivision of both layouts."""
    batch, sequence = lcm(before.dp, after.dp), lcm(_pieces(before), _pieces(after))
    (had_replica, had_piece), (replica, piece) = _first(before), _first(after)
    area = (batch // after.dp) * (sequence // _pieces(after))
    kept = _overlap(replica, batch // after.dp, had_replica, batch // before.dp) * _overlap(
        piece, sequence // _pieces(after), had_piece, sequence // _pieces(before)
    )
    return int(area - kept.min()) / (batch * sequence)


def missing_share(before: Layout, after: Layout) -> float:
    """The largest share of a microbatch's activations that a rank has to receive between two layouts.

    Both layouts number the same ranks, tp fastest, then cp, then dp. Raises BadInputError when they occupy
    different numbers of GPUs.
    """
    if before.gpus != after.gpus:
        raise BadInputError(f"layouts {before} and {after} of one part occupy different numbers of GPUs")
    # What of a layout decides where activations lie.
    had, needed = (
        Layout(layout.tp, layout.dp, layout.cp, sequence_parallel=layout.sequence_parallel)
        for layout in (before, after)
    )
    return 0.0 if had == needed else _missing(had, needed)


@dataclass
class Handovers:
    """Times of re-sharding under one setting; links are cached by the size of the block of ranks."""

    setting: Setting
    _links: dict[int, tuple[float, float]] = field(default_factory=dict)  # bytes/s and start of a block

    def seconds(self, before: Layout, after: Layout) -> float:
        """Seconds until every rank has what `after` needs of one microbatch laid out as `before`.

        The slowest rank receives its missing share at the bandwidth of the smallest block of ranks that
        holds the same sequences under both layouts.
        """
        share = missing_share(before, after)
        if share == 0.0:
            return 0.0
        setting, job = self.setting, self.setting.job
        total = job.boundary_bytes(setting.model, int(np.max(setting.microbatch)))
        block = min(lcm(before.tp * before.cp, after.tp * after.cp), after.gpus)
        if block not in self._links:
            over = group(setting.island, np.array([block]), np.array([1]), setting.hwdb)
            self._links[block] = float(over.bytes_per_s[0]), float(over.once.start[0])
        bytes_per_s, start_s = self._links[block]
        return share * total / bytes_per_s + start_s


def _handover(setting: Setting, before: Layout, after: Layout) -> list[Program]:
    """The program of a re-sharding; empty where nothing moves."""
    seconds = Handovers(setting).seconds(before, after)
    if seconds == 0.0:
        return []
    program = Program(1)
    program.add("re-shard", TENSOR, "tensor_parallel", seconds, PREVIOUS)
    return [program]


def programs_of(runs: Sequence[LayerRun], direction: str) -> list[tuple[Program, str]]:
    """(program, name) of a stage's atoms and re-shardings in execution order; backward from the end."""
    forward = direction == "forward"
    ordered = list(runs) if forward else list(runs)[::-1]
    found: list[tuple[Program, str]] = []
    for place, run in enumerate(ordered):
        if place:
            handed = _handover(run.pricer.setting, ordered[place - 1].layout, run.layout)
            found += [(program, "between layouts") for program in handed]
        atoms = list(enumerate(run.atoms, run.start))
        found += [
            (run.pricer.program(atom, direction), f"atom {number}")
            for number, atom in (atoms if forward else reversed(atoms))
        ]
    return found


def price_runs(runs: Sequence[LayerRun], exchange_s: float = 0.0) -> StagePrice:
    """Price of consecutive runs as a stage; `exchange_s` is added for gradients of parts sharded differently.

    The whole stage is simulated forward, backward and as the last backward of a step. Additive quantities are
    summed over atoms; of transients the largest counts.
    """

    def ends(direction: str) -> tuple[float, float, float]:
        played = play_chain([program for program, _ in programs_of(runs, direction)])
        done, synced, closed = (float(of[-1, 0]) for of in played)
        return done, max(done, synced), max(done, closed)

    middle, last_of = backward_directions(runs[0].pricer.setting.job)
    forward, _, _ = ends("forward")
    _, backward, last = ends(middle)
    if last_of != middle:
        _, last, _ = ends(last_of)
    weight = behind = optimizer = static = activation = transient = scratch = 0.0
    for run in runs:
        setting = run.pricer.setting
        for atom, count in Counter(run.atoms).items():
            kept = state.held(setting, atom)
            weight += count * float(run.pricer.program(atom, middle).weight_gradient[0])
            behind += count * float(state.behind_last_pass_s(setting, atom)[0])
            optimizer += count * float(state.optimizer_s(setting, atom)[0])
            static += count * float(kept.static[0])
            activation += count * float(kept.activation[0])
            transient = max(transient, float(kept.transient[0]))
            scratch = max(scratch, float(kept.scratch[0]))
    first = runs[0].pricer.setting
    return StagePrice(
        forward_s=forward,
        backward_s=backward,
        backward_weight_s=min(weight, backward),
        gradient_sync_s=max(last - backward, 0.0) + behind + exchange_s,
        optimizer_s=optimizer,
        static_bytes=static,
        activation_bytes=activation,
        transient_bytes=transient + scratch,
        capacity_bytes=first.rates.usable_memory_bytes,
        workspace_bytes=first.rates.workspace_bytes,
        fragmentation=first.rates.fragmentation,
        context_bytes=first.rates.reserved_bytes,
    )


def parameters_of(setting: Setting, atom: Atom) -> float:
    """Total number of parameters of an atom, over all ranks of a replica."""
    dense, expert = state.parameters_per_rank(setting, atom)
    layout = setting.layouts[0]
    return float(dense[0] * layout.tp + expert[0] * layout.tp * layout.ep)
