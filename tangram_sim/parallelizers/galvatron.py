"""Galvatron and Galvatron-BMW: strategies of decision trees, chosen layer by layer.

Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism",
arXiv:2211.13878; "Galvatron-BMW", arXiv:2307.02031, which doubles the candidates by checkpointing (CKPT). A
candidate is an ordered choice of paradigms, each with a degree > 1, whose product is the stage's GPUs;
pruned: DP and SDP never together, since SDP alone is better than both. Formulation:
docs/models/parallelizers.md.
"""

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from tangram_sim.layouts import Layout
from tangram_sim.parallelizers import partition
from tangram_sim.parallelizers.api import Request
from tangram_sim.parallelizers.assembly import held_in
from tangram_sim.parallelizers.inner_cuts import balanced_cuts
from tangram_sim.parallelizers.layerwise import LayerWise, useful_recompute
from tangram_sim.parallelizers.layouts import divisors, expert_degrees
from tangram_sim.parallelizers.menu import Menu

PARADIGMS = ("DP", "SDP", "TP")

# ((paradigm, degree), ...), innermost ranks last.
Candidate = tuple[tuple[str, int], ...]


def _splits(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations of `number` into `parts` factors above 1."""
    if parts == 0:
        if number == 1:
            yield ()
        return
    for factor in divisors(number)[1:]:
        for rest in _splits(number // factor, parts - 1):
            yield (factor, *rest)


def candidates(gpus: int, pruned: bool = True) -> tuple[Candidate, ...]:
    """The leaves of the tree of one stage of `gpus` GPUs. One GPU has one candidate, without any paradigm."""
    if gpus == 1:
        return ((),)
    found = []
    for parts in range(1, len(PARADIGMS) + 1):
        for paradigms in permutations(PARADIGMS, parts):
            if pruned and {"DP", "SDP"} <= set(paradigms):
                continue
            found += [tuple(zip(paradigms, degrees, strict=True)) for degrees in _splits(gpus, parts)]
    return tuple(found)


def count(gpus: int, pruned: bool = True, checkpointing: bool = False) -> int:
    """Candidates over all pipeline depths of a power of two that divide `gpus`; 22 pruned of 34 on 8 GPUs."""
    total = sum(
        len(candidates(gpus // depth, pruned)) for depth in divisors(gpus) if depth & (depth - 1) == 0
    )
    return total * (2 if checkpointing else 1)


# ZeRO stages that each paradigm stands for. Galvatron's DP is set to plain or optimizer-sharded data
# parallelism for a whole run; here each layer may have either.
ZERO = {"DP": (0, 1, 2), "SDP": (3,)}


def tree_layouts(request: Request, gpus: int) -> Iterator[Layout]:
    """Yields the leaves of the decision tree as layouts, each without and with recomputation.

    Ranks are numbered TP first, so both orders of a pair are one layout. TP shards the sequence too where tp
    divides the sequence length. Experts are either on every rank or spread as widely as possible.
    """
    model, job = request.slice.model, request.job
    recompute = useful_recompute(request)
    for candidate in candidates(gpus):
        degrees = dict(candidate)
        tp = degrees.pop("TP", 1)
        dp = gpus // tp
        sharded = tp > 1 and job.seq % tp == 0 and request.constraints.sequence_parallel is not False
        spread = expert_degrees(model, dp)
        for zero in ZERO[next(iter(degrees))] if degrees else (0,):
            for ep in dict.fromkeys((spread[0], spread[-1])):
                for kind in recompute:
                    yield Layout(
                        tp, dp, cp=1, ep=ep, pp=1, zero_stage=zero, recompute=kind, sequence_parallel=sharded
                    )


class Galvatron(LayerWise):
    """Galvatron: layer-wise hybrid strategies; equal layers use at most two."""

    name = "galvatron"

    def strategies(self, request: Request, gpus: int) -> Iterator[Layout]:
        """The candidates of the decision tree."""
        return tree_layouts(request, gpus)


class GalvatronExact(Galvatron):
    """Galvatron with the exact program over layers: slower, and up to a few percent better."""

    name = "galvatron-exact"
    exact = True


class GalvatronBMW(Galvatron):
    """Galvatron with inner cuts searched between the memory-balanced and the time-balanced partition."""

    name = "galvatron-bmw"

    def cuts(self, request: Request, menu: Menu, behind: int) -> tuple[int, ...] | None:
        """The best cuts found between the two balanced partitions; never slower than either."""
        start, stop = request.slice.start, request.slice.stop
        time_balanced = balanced_cuts(menu.pricer, start, stop, menu.depth)
        if menu.depth == 1:
            return time_balanced
        # Bytes of each atom under the strategy that holds least of it, by the stage it would stand in.
        atoms = [menu.prices(atom, atom + 1) for atom in range(start, stop)]
        weights = [
            np.array([float((atom.static_bytes + held * atom.activation_bytes).min()) for atom in atoms])
            for held in held_in(request, menu.depth, behind)
        ]

        def evaluate(cuts: tuple[int, ...]) -> tuple[float, list[float]] | None:
            stages = self.chosen(request, menu, cuts, behind)
            if stages is None:
                return None
            priced = [menu.stage(runs) for runs in stages]
            seconds = [stage.forward_s + stage.backward_s for stage in priced]
            tail = max(stage.gradient_sync_s + stage.optimizer_s for stage in priced)
            return sum(seconds) + (request.microbatches - 1) * max(seconds) + tail, seconds

        found = partition.between(partition.balanced(weights, start), time_balanced, evaluate)
        return found[0] if found else None
