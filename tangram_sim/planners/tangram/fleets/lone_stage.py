"""The whole model as one stage on many nodes of one island: what copies of patterns do not see.

Patterns put a stage on two nodes at most and share gradients between copies; a stage of hundreds of GPUs may
divide sequences over nodes, gather weights as it goes (ZeRO-3), or leave most of an island idle where its
NICs are slow. Few questions: nodes are halved and microbatches divided until that is no better.
"""

from collections.abc import Iterator, Sequence
from math import gcd

from tangram_sim.clusters import Island
from tangram_sim.layers.atoms import Slice
from tangram_sim.parallelizers.api import Parallelizer, Request
from tangram_sim.parallelizers.layouts import divisors, head_counts
from tangram_sim.planners.api import Counts, Scored
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, seats_of
from tangram_sim.planners.tangram.fleets.patterns import FleetProblem
from tangram_sim.registry import parallelizer as parallelizer_named
from tangram_sim.training.plan import PartialPlan
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.units import percent


class LoneStages:
    """Looks for plans of one stage that are faster than a plan at hand."""

    def __init__(
        self, ground: FleetProblem, bound: WorkBound, lowering: Lowering, counts: Counts, deadline: Deadline
    ) -> None:
        self.ground, self.bound, self.counts, self.deadline = ground, bound, counts, deadline
        self.referee = PlanEvaluator(ground.model, ground.cluster, ground.job, lowering, counts, deadline)

    def best(self, limit_s: float) -> Scored | None:
        """The fastest of those found below `limit_s`, played whole; None where none is."""
        asked = parallelizer_named(self.ground.parallelizer)()
        found: list[tuple[float, int, int, PartialPlan]] = []
        seen: set[Island] = set()
        for kind, island in enumerate(self.ground.islands):
            if island.anonymous() not in seen:  # islands that are equal but for their names: asked once
                seen.add(island.anonymous())
                for one in self._on(asked, kind, limit_s):
                    found.append((one[0], kind, *one[1:]))
                    limit_s = min(limit_s, one[0])
        best: Scored | None = None
        for step_s, kind, microbatch, partial in sorted(found, key=lambda one: one[:3])[: self._played]:
            if best is not None and (step_s >= best.step_s or self.deadline.over()):
                break
            scored = self._scored(kind, microbatch, partial)
            if scored is not None and (best is None or scored.step_s < best.step_s):
                best = scored
        return best

    @property
    def _played(self) -> int:
        return self.ground.budget.fleets.lone_played

    def _on(self, asked: Parallelizer, kind: int, limit_s: float) -> Iterator[tuple[float, int, PartialPlan]]:
        """(step, microbatch, partial plan) of each better one, on fewer and fewer nodes of an island."""
        island, least_s = self.ground.islands[kind], float("inf")
        work_s = self.ground.job.global_batch * float(self.bound.seconds[kind].sum())
        worse = 0
        for nodes in self._nodes(island):
            part = island.part(nodes)
            if worse == self.ground.budget.fleets.lone_patience or work_s / part.gpus >= limit_s:
                break
            best_s = float("inf")
            for one in self._of_part(asked, part, limit_s):
                best_s = min(best_s, one[0])
                if one[0] < limit_s:
                    limit_s = one[0]
                    yield one
            worse = worse + 1 if best_s >= least_s < float("inf") else 0
            least_s = min(least_s, best_s)

    def _nodes(self, island: Island) -> Iterator[int]:
        """Numbers of nodes, halving, whose GPUs divide sequences, tokens and heads."""
        model, job = self.ground.model, self.ground.job
        whole = job.global_batch * job.seq * gcd(*(head_counts(model) or (1,)))
        most = island.nodes
        while most:
            fitting = (nodes for nodes in range(most, 0, -1) if whole % (nodes * island.gpus_per_node) == 0)
            nodes = next(fitting, most)
            yield nodes
            most = nodes // 2

    def _of_part(
        self, asked: Parallelizer, part: Island, limit_s: float
    ) -> Iterator[tuple[float, int, PartialPlan]]:
        """(step, microbatch, partial plan) of the best layout of each microbatch size, largest first."""
        ground, batch = self.ground, self.ground.job.global_batch
        whole, sizes = Slice(ground.model, 0, ground.model.layers + 2), divisors(batch)[::-1]
        best_s, worse = float("inf"), 0
        for microbatch in sizes:
            if worse == ground.budget.fleets.lone_patience or self.deadline.over():
                break
            passes = batch // microbatch
            request = Request(
                whole,
                part,
                ground.job,
                microbatch,
                passes,
                ground.hwdb,
                ground.constraints,
                limit_s / passes,
                tuple(sizes),
            )
            self.counts.asked += 1
            answer = asked.parallelize(request)
            steps = [(_step_s(one, passes), place) for place, one in enumerate(answer.partials)]
            step_s, place = min(steps, default=(float("inf"), 0))
            if steps:
                yield step_s, microbatch, answer.partials[place]
                worse = worse + 1 if step_s >= best_s else 0
            best_s = min(best_s, step_s)

    def _scored(self, kind: int, microbatch: int, partial: PartialPlan) -> Scored | None:
        """The plan played, links shared; None where it does not fit whole."""
        ground = self.ground
        placed = (Placed(kind, partial.start, partial.stop, partial),)
        composed = Composed(0.0, placed, microbatch, ground.job.global_batch // microbatch)
        seats = seats_of(composed, ground.islands, self.referee.lowering.placement)
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
) -> tuple[list[Scored], list[str]]:
    """The fastest plan of one stage where it is faster than all that are `known`, and a note that says so."""
    limit_s = min((one.step_s for one in known), default=float("inf"))
    found = None if deadline.over() else LoneStages(ground, bound, lowering, counts, deadline).best(limit_s)
    if found is None or found.step_s >= limit_s:
        return [], []
    gain = percent(1 - found.step_s / limit_s, 1)
    note = f"the whole model as one stage is {gain} faster than what the search composed"
    return [found], [note] if known else []


def _step_s(partial: PartialPlan, passes: int) -> float:
    """Seconds of a step of nothing but this partial plan; of several inner stages about."""
    if partial.stages_behind < 0:
        return float("inf")
    return partial.latency_s + (passes - 1) * partial.slowest_s + partial.tail_s
