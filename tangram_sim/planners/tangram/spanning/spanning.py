"""Stages that span islands, and finer islands: composed again, simulated, kept where they are faster.

The second part of a search, limited by the first part's best step. Joint islands are additional kinds in the
same composition, so a pipeline may mix stages on one island and on several. Where tolerances have merged
unequal GPUs, islands of equal GPUs replace the merged ones, and every stage may combine them differently.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_sim.findings import Finding
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.placement.islands import finer_islands
from tangram_sim.planners.api import Scored
from tangram_sim.planners.budget import SearchBudget
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.planners.tangram.composition.exact import find
from tangram_sim.planners.tangram.composition.finalists import (
    Finalist,
    PlanEvaluator,
    StageAssignment,
    seats_of,
)
from tangram_sim.planners.tangram.composition.labels import roads
from tangram_sim.planners.tangram.composition.search import hop_seconds
from tangram_sim.planners.tangram.enumeration.enumerate import Enumeration
from tangram_sim.planners.tangram.enumeration.table import Beside, PartialPlanTable, slice_classes
from tangram_sim.planners.tangram.findings import (
    SPANNING_ALONE,
    SPANNING_FAR,
    SPANNING_FASTER,
    SPANNING_SLOWER,
)
from tangram_sim.planners.tangram.fleet_budget import FLEETS
from tangram_sim.planners.tangram.spanning.joint import JOINT, Nodes, joint_islands
from tangram_sim.planners.tangram.spanning.mixed import MixedPrices
from tangram_sim.training.plan import PartialPlan, Pipeline

_SLACK = 0.03  # how near to the best step pipelines are kept
_WORTH = 0.01  # distance to the least work below which nothing is looked for
# The whole model on several islands: tokens of a microbatch on each GPU where sizes begin; with so many
# kernels are as efficient as with more.
_TOKENS = 8192

Pipelines = dict[Finalist, float]


class Prospect(NamedTuple):
    """A slice on a joint island, with the estimated least step of a pipeline that contains it."""

    least_s: float
    microbatch: int
    joint: int
    group: int  # slice class


def node_rates(table: PartialPlanTable, work: NDArray[np.float64], kinds: int) -> NDArray[np.float64]:
    """Work per second and node of the fastest partial plan in a table, for each kind of island."""
    rates = np.zeros(kinds)
    for (kind, nodes, _, _), slowest, partial in zip(
        table.ints.tolist(), table.floats[:, 0].tolist(), table.partials, strict=True
    ):
        rates[kind] = max(rates[kind], float(work[partial.stop] - work[partial.start]) / (nodes * slowest))
    return rates


def spanning_over(
    enumeration: Enumeration, referee: PlanEvaluator, free: bool, budget: SearchBudget
) -> "Spanning":
    """The search for stages over several islands; if `free`, islands are first split into equal GPUs."""
    job, hwdb, model = enumeration.job, enumeration.hwdb, enumeration.model
    finer = tuple(enumeration.islands)
    enumeration = replace(enumeration, joint=True)
    if free:
        finer = finer_islands(referee.cluster, job.precision.compute, enumeration.islands, hwdb, job.stack)
    large = FLEETS[budget.effort].is_large([island.nodes for island in finer])
    if large or finer == tuple(enumeration.islands):
        return Spanning(enumeration, referee, budget)
    # Both cuts share what was answered; which pairs were visited goes by the number of an island.
    bound = WorkBound(model, job, finer, hwdb, referee.cluster)
    return Spanning(
        replace(enumeration, islands=finer, bound=bound, _visited=set()), referee, budget, finer=True
    )


@dataclass
class Spanning:
    """Searches for pipelines with stages on several islands, or on more finely split islands.

    `finer`: the enumeration's islands are the finer ones, not those of the main search.
    """

    enumeration: Enumeration
    referee: PlanEvaluator
    budget: SearchBudget
    finer: bool = False
    best_s: float = float("inf")  # of the pipelines played here, transfers not sharing links
    asked: int = 0  # slices on joint islands
    nearest: Scored | None = None  # the best of what was refined, faster than the limit or not
    _prices: MixedPrices = field(init=False)
    # By microbatch size: (slice class, joint island, partial plan) of the prospects so far.
    _offered: dict[int, list[tuple[int, int, PartialPlan]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counts = [island.nodes for island in self.enumeration.islands]
        self.work = np.concatenate([[0.0], np.cumsum(self.enumeration.bound.seconds.min(axis=0))])
        self.joint = joint_islands(self.counts)
        self.spend = JOINT[self.budget.effort]
        self._prices = MixedPrices(self.enumeration, self.referee.lowering, self.budget)

    def improve(self, usual: int, limit_s: float) -> Scored | None:
        """The fastest such plan below `limit_s`, simulated with shared links; None where none is found.

        `usual` is the microbatch size of the best plan on single islands.
        """
        if (
            not self.joint
            or self.enumeration.deadline.over()
            or limit_s <= self.enumeration.bound.step_s() * (1 + _WORTH)
        ):
            return None
        sizes = self._sizes(usual)
        tables = {size: self._table(size, limit_s * (1 + _SLACK)) for size in sizes}
        prospects = sorted(one for size in sizes for one in self._prospects(tables[size], limit_s))
        rounds = self._rounds(prospects)
        # One stage first: it takes few questions, and where it wins it limits all others.
        found: Pipelines = dict(self._undivided(limit_s * (1 + _SLACK)))
        for kept in rounds:
            near = self._round(sizes, limit_s, kept)
            found |= near
            if not near:
                break
        contenders = sorted(found, key=lambda one: (found[one], len(one[0])))[: 2 * self.spend.refined]
        contenders = [one for one in contenders if found[one] < limit_s * (1 + _SLACK)]
        if not contenders:
            return None
        contenders = self.referee.in_time(contenders)
        refined = [(self._refined(*one), one[1]) for one in contenders[: self.spend.refined]]
        contenders = self.referee.in_time([*dict.fromkeys([*refined, *contenders])])
        scored = [self.referee.scored(*one) for one in contenders]
        self.nearest = min(scored, key=lambda one: one.step_s, default=None)
        return self.nearest if self.nearest is not None and self.nearest.step_s < limit_s else None

    def _rounds(self, prospects: Sequence[Prospect]) -> list[list[Prospect]]:
        """Prospects in two rounds: the most promising ones, then as many more as are allowed."""
        most = min(self.spend.questions(self.enumeration.counts.asked), self.spend.most)
        first, others = prospects[: self.spend.least], prospects[self.spend.least : most]
        # Questions about one place follow each other.
        return [
            sorted(some, key=lambda one: (one.joint, one.group))
            for some in ([first, others] if others else [first])
        ]

    def _round(self, sizes: Sequence[int], limit_s: float, kept: Sequence[Prospect]) -> Pipelines:
        """Pipelines near or below the best step that use partial plans of these or earlier prospects."""
        found: Pipelines = {}
        for number, microbatch in enumerate(sizes):
            limit = min(limit_s, self.best_s) * (1 + _SLACK)
            chosen = [one for one in kept if one.microbatch == microbatch and one.least_s < limit]
            if (chosen or self.finer) and not self.enumeration.deadline.over():
                others = [
                    one for one in kept if one.microbatch in sizes[number + 1 :] and one.least_s < limit
                ]
                found |= dict(self._played(microbatch, limit, chosen, others))
        return {one: seconds for one, seconds in found.items() if seconds < limit}

    def lasting(self, limit_s: float) -> list[Scored]:
        """The fastest plan below a limit that is one stage over several islands, even if other plans are
        faster. Each part of such a stage holds the whole model, so the loss of a node costs only that node's
        share of the speed. Empty where there is none."""
        self.best_s = float("inf")
        found = dict(self._undivided(limit_s))
        if not found:
            return []
        seats, microbatch = min(found, key=lambda one: found[one])
        return [self.referee.scored(self._refined(seats, microbatch), microbatch)]

    def finding(self, limit_s: float) -> Finding:
        """Finding: what stages over several islands came to, against the best other step, `limit_s`."""
        names = [island.name for island in self.enumeration.islands]
        figures: dict[str, Any] = {"slices": self.asked, "joint": len(self.joint), "islands": names}
        figures["apart"] = f"{', '.join(names)} taken apart, " if self.finer else ""
        if self.nearest is None:
            return SPANNING_FAR(**figures, within=_SLACK)
        joined = joined_stages(self.nearest.plan.pipelines[0])
        figures["stages"] = joined or [f"stages of their own on {', '.join(names)}"]
        figures["step_s"] = step_s = self.nearest.step_s
        if limit_s == float("inf"):
            return SPANNING_ALONE(**figures)
        kind = SPANNING_FASTER if step_s < limit_s else SPANNING_SLOWER
        return kind(**figures, others_s=limit_s, gain=1 - step_s / limit_s)

    def _sizes(self, usual: int) -> list[int]:
        """Microbatch sizes near the usual one, preferably larger, since these divide more finely."""
        divided = divisors(self.enumeration.job.global_batch)
        near = sorted(divided, key=lambda size: (abs(np.log2(size / usual) - 0.1), size))
        return near[: self.spend.sizes]

    def _table(self, microbatch: int, limit_s: float, beside: Beside | None = None) -> PartialPlanTable:
        return self.enumeration.table(microbatch, limit_s, [1] * len(self.counts), beside)

    def _prospects(self, table: PartialPlanTable, limit_s: float) -> Iterator[Prospect]:
        """Yields slices on joint islands that could be part of a pipeline below the limit.

        Estimated from the fastest partial plans per node of each island: the slice on the nodes it takes, the
        rest of the model on the others.
        """
        rates = node_rates(table, self.work, len(self.counts))
        firsts, _ = slice_classes(self.enumeration.model)
        for group, (start, stop) in enumerate(firsts):
            done = float(self.work[stop] - self.work[start])
            for joint, nodes in enumerate(self.joint):
                own = float((rates * nodes).sum())
                left = float((rates * self.counts).sum()) - own
                rest = float(self.work[-1]) - done
                if own <= 0 or (rest > 0 and left <= 0):
                    continue
                pace_s = max(done / own, rest / left if rest > 0 else 0.0)
                # A second stage, where there is one, works on the first microbatch once the first has.
                least_s = (table.microbatches + (rest > 0)) * pace_s
                if least_s < limit_s:
                    yield Prospect(least_s, table.microbatch, joint, group)

    def _played(
        self, microbatch: int, limit_s: float, prospects: Sequence[Prospect], later: Sequence[Prospect]
    ) -> Iterator[tuple[Finalist, float]]:
        """(pipeline, step seconds) of one microbatch size, with a stage on several islands, that fit."""
        enumeration, job = self.enumeration, self.enumeration.job
        islands, placement = enumeration.islands, self.referee.lowering.placement
        known = self._offered.setdefault(microbatch, [])
        new = list(self._partials(limit_s, prospects, later))
        if known and not new:
            return
        known += new
        beside = Beside(self.joint, tuple(known))
        if not beside.partials and not self.finer:
            return
        table = self._table(microbatch, limit_s, beside)
        size = job.boundary_bytes(enumeration.model, microbatch)
        kinds = [*islands, *(self._prices.island(nodes) for nodes in self.joint)]
        hops = hop_seconds(kinds, placement.cluster, enumeration.hwdb, size, ())
        ways = roads(kinds, placement.cluster, enumeration.hwdb, size, hops)
        asked = table, self.counts, ways, enumeration.model, job, limit_s, self.best_s
        budget = replace(self.budget, widths=self.spend.widths)
        composed = find(*asked, _SLACK, budget, enumeration.deadline, proving=False).pipelines
        spanning = [
            one for one in composed if self.finer or any(place.partial.portions for place in one.places)
        ]
        enumeration.counts.composed += len(spanning)
        different = dict.fromkeys(seats_of(one, islands, placement) for one in spanning)
        for seats in list(different)[: self.spend.played]:
            seconds = self.referee.step_s(seats, microbatch)
            if seconds < float("inf"):
                self.best_s = min(self.best_s, seconds)
                yield (seats, microbatch), seconds

    def _undivided(self, limit_s: float) -> Iterator[tuple[Finalist, float]]:
        """Yields (pipeline, step seconds) for the whole model as one stage on all nodes of some islands.

        Data parallelism with uneven shares needs microbatch sizes far from those of pipelines, and few
        requests. The combinations of islands with the highest ideal speed come first.
        """
        bound = self.enumeration.bound
        speeds = bound.gpus / bound.seconds.sum(axis=1)
        whole = [
            (self.enumeration.job.global_batch / float(speeds[np.array(nodes) > 0].sum()), kind)
            for kind, nodes in enumerate(self.joint)
            if all(count in (0, every) for count, every in zip(nodes, self.counts, strict=True))
        ]
        for least_s, kind in sorted(whole):
            if least_s >= min(limit_s, self.best_s * (1 + _SLACK)):
                return
            yield from self._whole_by_size(kind, limit_s).items()

    def _whole_by_size(self, kind: int, limit_s: float) -> dict[Finalist, float]:
        """{pipeline: step seconds} for the whole model on one joint island, over microbatch sizes.

        From a usual size down, then up, each until two sizes in a row bring no improvement. If a size fits
        but is too slow, most smaller ones are, too; if it does not fit, no larger one does.
        """
        job, nodes = self.enumeration.job, self.joint[kind]
        gpus = sum(
            count * one.gpus_per_node for count, one in zip(nodes, self.enumeration.islands, strict=True)
        )
        middle = gpus * max(_TOKENS / job.seq, 1.0)
        sizes = divisors(job.global_batch)
        below = sum(size <= middle for size in sizes)
        found: dict[Finalist, float] = {}
        best_s = float("inf")
        for upward, side in enumerate((sizes[:below][::-1], sizes[below:])):
            worse = 0
            for microbatch in side:
                if worse == 2 or self.enumeration.deadline.over():
                    break
                self.asked += 1
                alone_s, some = self._whole(kind, microbatch, limit_s)
                found |= some
                # What is too slow for the limit counts as well: others may be still slower, or less so.
                least_s = min(some.values(), default=max(alone_s, limit_s))
                if upward and least_s == float("inf"):
                    break
                worse = worse + 1 if least_s >= best_s < float("inf") else 0
                best_s = min(best_s, least_s)
        return found

    def _whole(self, kind: int, microbatch: int, limit_s: float) -> tuple[float, dict[Finalist, float]]:
        """(seconds of all passes alone, {pipeline: step seconds below `limit_s`}) for the whole model on a
        joint island. The passes are inf where the model does not fit."""
        passes = self.enumeration.job.global_batch // microbatch
        asked = self.joint[kind], 0, len(self.work) - 1, microbatch
        alone_s = passes * self._prices.fastest_s(*asked)
        found: dict[Finalist, float] = {}
        if alone_s >= limit_s:
            return alone_s, found
        for one in self._prices.partials(*asked, limit_s / passes):
            place = Placed(len(self.counts) + kind, 0, len(self.work) - 1, one)
            composed = Composed(0.0, (place,), microbatch, passes)
            seats = seats_of(composed, self.enumeration.islands, self.referee.lowering.placement)
            seconds = self.referee.step_s(seats, microbatch)
            if seconds < limit_s:
                self.best_s = min(self.best_s, seconds)
                found[seats, microbatch] = seconds
        return alone_s, found

    def _partials(
        self, limit_s: float, prospects: Sequence[Prospect], later: Sequence[Prospect]
    ) -> Iterator[tuple[int, int, PartialPlan]]:
        """(slice class, joint island, partial plan) for every prospect; `later` ones are priced ahead."""
        asked = [self._asked(one, limit_s) for one in prospects]
        questions, others = (
            [one for given in some for one in self._prices.questions(*given)]
            for some in (asked, [self._asked(one, limit_s) for one in later])
        )
        self.enumeration.ahead(questions, others)
        for prospect, given in zip(prospects, asked, strict=True):
            if self.enumeration.deadline.over():
                return
            self.asked += 1
            for partial in self._prices.partials(*given):
                yield prospect.group, prospect.joint, partial

    def _asked(self, one: Prospect, limit_s: float) -> tuple[Nodes, int, int, int, float]:
        """Arguments of `MixedPrices` methods for a prospect: (nodes, start, stop, microbatch, pace_s)."""
        start, stop = slice_classes(self.enumeration.model)[0][one.group]
        pace_s = limit_s / (self.enumeration.job.global_batch // one.microbatch)
        return self.joint[one.joint], start, stop, one.microbatch, pace_s

    def _refined(self, seats: tuple[StageAssignment, ...], microbatch: int) -> tuple[StageAssignment, ...]:
        """The stages after moving atoms and sequences while the simulated step gets shorter."""
        best = self.referee.step_s(seats, microbatch)
        while True:
            seats = self.referee.refine(seats, microbatch)
            seconds, moved = min(
                ((self.referee.step_s(one, microbatch), one) for one in self._reshared(seats)),
                key=lambda one: one[0],
                default=(best, seats),
            )
            best = min(best, self.referee.step_s(seats, microbatch))
            if self.referee.deadline.over() or seconds >= best * (1 - 1e-9):
                return seats
            best, seats = seconds, moved

    def _reshared(self, seats: tuple[StageAssignment, ...]) -> Iterator[tuple[StageAssignment, ...]]:
        """Variants in which one part of a stage passes a sequence, or one per replica, to another part."""
        allows = self.enumeration.constraints.allows
        for index, seat in enumerate(seats):
            parts = (seat, *(replace(one, beside=()) for one in seat.beside))
            for giver, taker in permutations(range(len(parts)), 2):
                for count in sorted({1, parts[giver].layout.dp, parts[taker].layout.dp}):
                    changed = list(parts)
                    changed[giver] = replace(parts[giver], sequences=parts[giver].sequences - count)
                    changed[taker] = replace(parts[taker], sequences=parts[taker].sequences + count)
                    if all(
                        one.sequences >= one.layout.dp and allows(one.layout, one.sequences)
                        for one in changed
                    ):
                        whole = replace(changed[0], beside=tuple(changed[1:]))
                        yield (*seats[:index], whole, *seats[index + 1 :])


def joined_stages(pipeline: Pipeline) -> list[str]:
    """Descriptions of a pipeline's stages that use GPUs of several islands."""
    found = []
    for number, stage in enumerate(pipeline.stages):
        parts = [
            f"{len(part.ranks)} GPUs of {part.island} ({part.sequences_per_microbatch} sequences)"
            for part in stage.parts
        ]
        if len(parts) > 1:
            found.append(f"stage {number} on {' and '.join(parts)}")
        elif "+" in stage.parts[0].island:
            found.append(f"stage {number} on {len(stage.ranks)} GPUs of {stage.parts[0].island} as one")
    return found
