"""Least seconds of a microbatch through a whole model on one stage, for every node group.

All degrees are priced together, once for every group, as single stages alone: no gradient reduction, no
weight gathering, mixtures of experts at their best expert degree.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd

import numpy as np

from tangram_sim.clusters import NodeGroup
from tangram_sim.cost.kernels import Floats
from tangram_sim.layers.atoms import atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.models import Block, Model
from tangram_sim.parallelizers.layouts import divisors, expert_counts, head_counts
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.layouts import rank_order
from tangram_sim.studies.launchable_layouts import CONTEXT, Degrees, LaunchLayouts
from tangram_sim.training.stage import state
from tangram_sim.training.stage.pricing import Pricer
from tangram_sim.training.stage.setting import Setting

# Blocks in the middle of a stage take what they add to a chain of blocks; the first of a chain may hide a
# little more behind others than the periodic rest.
SURE = 0.98


@dataclass
class PassBounds:
    """Lower bounds on a microbatch's pass for one model, cluster and job."""

    layouts: LaunchLayouts
    _known: dict[str, dict[tuple[int, int, int, str], float]] = field(default_factory=dict)

    def whole_s(self, group: NodeGroup, degrees: Sequence[Degrees]) -> Floats:
        """Least seconds of a microbatch through the whole model as one stage on a group, by `degrees`."""
        if group.name not in self._known:
            self._known[group.name] = self._priced(group)
        known, found = self._known[group.name], np.empty(len(degrees))
        for number, (tp, cp, _, size, recompute) in enumerate(degrees):
            fewer = cp
            while (tp, fewer, size, recompute) not in known:  # more ranks than the group has
                fewer //= 2
            found[number] = SURE * known[tp, fewer, size, recompute] * fewer / cp
        return found

    def _priced(self, group: NodeGroup) -> dict[tuple[int, int, int, str], float]:
        """Seconds by (tensor- and context-parallel degree, sequences per rank, recomputation)."""
        layouts, recompute = self.layouts, self.layouts.options.constraints.recompute
        model, job, sizes = layouts.model, layouts.job, layouts.microbatches
        ranks = tuple(rank_order(layouts.cluster, [group.name]))
        rows: list[tuple[Layout, int]] = [
            (Layout(tp, dp, cp, ep, recompute=kind, sequence_parallel=tp > 1), size)
            for tp in divisors(gcd(group.node.gpus, *head_counts(model)))
            for cp in CONTEXT
            if job.seq % cp == 0 and tp * cp <= len(ranks)
            for ep, dp in _expert_shares(model, len(ranks) // (tp * cp), cp)
            for kind in recompute
            for size in sizes
        ]
        island = Placement(layouts.cluster, layouts.hwdb).island(ranks).anonymous()
        microbatch = tuple(size * layout.dp for layout, size in rows)
        setting = Setting(model, island, job, microbatch, tuple(item for item, _ in rows), layouts.hwdb)
        pricer, atoms = Pricer(setting), atoms_of(model)
        seconds = np.zeros(len(rows))
        for atom in dict.fromkeys(atoms):
            # What adds gradients up is not there from ZeRO-2 on.
            added = state.accumulation_s(setting, atom) if isinstance(atom, Block) else 0.0
            seconds += atoms.count(atom) * (pricer.added_s(atom) - added)
        found: dict[tuple[int, int, int, str], float] = {}
        for (layout, size), taken in zip(rows, seconds.tolist(), strict=True):
            key = layout.tp, layout.cp, size, layout.recompute
            found[key] = min(taken, found.get(key, taken))
        return found


def _expert_shares(model: Model, most: int, cp: int) -> Iterator[tuple[int, int]]:
    """Yields (expert degree, fewest replicas that hold it beside `cp` ranks), up to `most` replicas."""
    for ep in divisors(gcd(*expert_counts(model)) or 1):
        dp = ep // gcd(ep, cp)
        if dp <= most:
            yield ep, dp
