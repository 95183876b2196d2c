"""The whole model as one stage on some nodes of one island, or on some GPUs of one node.

Patterns put a stage on at most two nodes and reduce gradients between copies. A stage of hundreds of GPUs may
split sequences over nodes, gather weights as needed (ZeRO-3), or leave most of an island idle where its NICs
are slow or batches small. A composition takes whole nodes, and a small batch may be faster on fewer GPUs than
one node has. Few requests: numbers of nodes are halved, doubled and divided, and so are microbatches, until
that no longer helps.
"""

from collections.abc import Iterator, Sequence
from math import gcd

from tangram_sim.clusters import Island
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.layers.atoms import Slice
from tangram_sim.parallelizers.api import Parallelizer, Request
from tangram_sim.parallelizers.layouts import divisors, head_counts
from tangram_sim.planners.api import Counts, Scored
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.search_memory import parallelizer_in_use
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, seats_of
from tangram_sim.planners.tangram.fleets.patterns import FleetProblem
from tangram_sim.training.plan import PartialPlan
from tangram_sim.training.step.lowered import Lowering

_PATIENCE = 2  # sizes in a row, of parts and of microbatches, no better before the rest is left out
_PLAYED = 3  # best ones played

ONE_STAGE = declare(
    "gain-one-stage",
    Severity.DETAIL,
    "the whole model as one stage is {gain:percent1} faster than what the search composed",
)


class LoneStages:
    """Searches for single-stage plans that are faster than a known plan."""

    def __init__(
        self,
        ground: FleetProblem,
        bound: WorkBound,
        lowering: Lowering,
        counts: Counts,
        deadline: Deadline,
        *,
        shares_only: bool = False,
    ) -> None:
        self.ground, self.bound, self.counts, self.deadline = ground, bound, counts, deadline
        self.shares_only = shares_only  # of a node: all numbers of whole nodes were looked at
        self.asked: Parallelizer = parallelizer_in_use(ground.parallelizer)
        self.referee = PlanEvaluator(ground.model, ground.cluster, ground.job, lowering, counts, deadline)

    def best(self, limit_s: float) -> Scored | None:
        """The fastest single-stage plan found below `limit_s`, simulated whole; None where there is none."""
        found: list[tuple[float, int, Island, int, PartialPlan]] = []
        seen: set[Island] = set()
        for kind, island in enumerate(self.ground.islands):
            if island.anonymous() not in seen:  # islands that are equal but for their names: asked once
                seen.add(island.anonymous())
                for step_s, part, microbatch, partial in self._on(kind, limit_s):
                    found.append((step_s, kind, part, microbatch, partial))
                    limit_s = min(limit_s, step_s)
        best: Scored | None = None
        found.sort(key=lambda item: item[:2])
        for step_s, kind, part, microbatch, partial in found[:_PLAYED]:
            if best is not None and (step_s >= best.step_s or self.deadline.over()):
                break
            scored = self._scored(kind, part, microbatch, partial)
            if scored is not None and (best is None or scored.step_s < best.step_s):
                best = scored
        return best

    def _on(self, kind: int, limit_s: float) -> Iterator[tuple[float, Island, int, PartialPlan]]:
        """(step seconds, part, microbatch, partial plan) for each improvement on a part of an island."""
        island, tried = self.ground.islands[kind], set[Island]()
        work_s = self.ground.job.global_batch * float(self.bound.seconds[kind].sum())
        for parts in (self._fewer(island), self._more(island), self._shares(island)):
            worse, least_s = 0, float("inf")
            for part in parts:
                if worse == _PATIENCE:
                    break
                if work_s / part.gpus >= limit_s or part in tried:
                    continue
                tried.add(part)
                best_s = float("inf")
                for step_s, microbatch, partial in self._of_part(part, limit_s):
                    best_s = min(best_s, step_s)
                    if step_s < limit_s:
                        limit_s = step_s
                        yield step_s, part, microbatch, partial
                worse = worse + 1 if best_s >= least_s < float("inf") else 0
                least_s = min(least_s, best_s)

    def _fewer(self, island: Island) -> Iterator[Island]:
        """Parts of an island, the nodes about halving, whose GPUs divide sequences x tokens x heads."""
        most = 0 if self.shares_only else island.nodes
        while most:
            fitting = (nodes for nodes in range(most, 0, -1) if self._divide(nodes * island.gpus_per_node))
            nodes = next(fitting, most)
            yield island.part(nodes)
            most = nodes // 2

    def _more(self, island: Island) -> Iterator[Island]:
        """Parts of 1, 2, 4, ... nodes: halving alone may stop where many nodes are no better than more."""
        nodes = 0 if self.shares_only else 1
        while 0 < nodes <= island.nodes:
            yield island.part(nodes)
            nodes *= 2

    def _shares(self, island: Island) -> Iterator[Island]:
        """Parts of one node with fewer GPUs than it has, most first."""
        for gpus in range(island.gpus_per_node - 1, 0, -1):
            if self._divide(gpus):
                yield island.part(1, gpus)

    def _divide(self, gpus: int) -> bool:
        job = self.ground.job
        return job.global_batch * job.seq * gcd(*(head_counts(self.ground.model) or (1,))) % gpus == 0

    def _of_part(self, part: Island, limit_s: float) -> Iterator[tuple[float, int, PartialPlan]]:
        """(step seconds, microbatch, best partial plan) for each microbatch size, largest first."""
        ground, batch = self.ground, self.ground.job.global_batch
        whole, sizes = Slice(ground.model, 0, ground.model.layers + 2), divisors(batch)[::-1]
        best_s, worse = float("inf"), 0
        for microbatch in sizes:
            if worse == _PATIENCE or self.deadline.over():
                break
            passes = batch // microbatch
            request = Request(
                slice=whole,
                island=part,
                job=ground.job,
                microbatch=microbatch,
                microbatches=passes,
                hwdb=ground.hwdb,
                constraints=ground.constraints,
                pace_s=limit_s / passes,
                sizes=tuple(sizes),
            )
            self.counts.asked += 1
            answer = self.asked.parallelize(request)
            steps = [(_step_s(partial, passes), place) for place, partial in enumerate(answer.partials)]
            step_s, place = min(steps, default=(float("inf"), 0))
            if steps:
                yield step_s, microbatch, answer.partials[place]
                worse = worse + 1 if step_s >= best_s else 0
            best_s = min(best_s, step_s)

    def _scored(self, kind: int, part: Island, microbatch: int, partial: PartialPlan) -> Scored | None:
        """The plan simulated with shared links; None where it does not fit memory."""
        ground = self.ground
        placed = (Placed(kind, partial.start, partial.stop, partial),)
        composed = Composed(0.0, placed, microbatch, ground.job.global_batch // microbatch)
        islands = [*ground.islands[:kind], part, *ground.islands[kind + 1 :]]
        seats = seats_of(composed, islands, self.referee.lowering.placement)
        if self.referee.step_s(seats, microbatch) == float("inf"):
            return None
        return self.referee.scored(seats, microbatch)


def lone_stage(
    ground: FleetProblem,
    bound: WorkBound,
    lowering: Lowering,
    counts: Counts,
    deadline: Deadline,
    known: Sequence[Scored],
    *,
    shares_only: bool = False,
) -> tuple[list[Scored], list[Finding]]:
    """The fastest single-stage plan if it beats all `known` plans, and a finding on its gain."""
    limit_s = min((scored_plan.step_s for scored_plan in known), default=float("inf"))
    tools = bound, lowering, counts, deadline
    hopeless = deadline.over() or (shares_only and not known)
    found = None if hopeless else LoneStages(ground, *tools, shares_only=shares_only).best(limit_s)
    if found is None or found.step_s >= limit_s:
        return [], []
    return [found], [ONE_STAGE(gain=1 - found.step_s / limit_s)] if known else []


def _step_s(partial: PartialPlan, passes: int) -> float:
    """Seconds of a step of this partial plan alone; approximate for several inner stages."""
    if partial.stages_behind < 0:
        return float("inf")
    return partial.latency_s + (passes - 1) * partial.slowest_s + partial.tail_s
