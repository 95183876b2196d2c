"""Plans for large clusters: patterns on few nodes, many copies side by side, simulated whole.

Replication and column generation (Dantzig and Wolfe, Operations Research 8(1), 1960) instead of counts of
single nodes: the work depends on the GPU kinds and the model, hardly on the number of nodes.
"""

from dataclasses import dataclass, field, replace

from tangram_sim.clusters import Island
from tangram_sim.findings import Finding, Severity, declare
from tangram_sim.planners.api import Counts, Progress, Scored
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.finalists import PlanEvaluator, StageAssignment
from tangram_sim.planners.tangram.enumeration.parallel import Pieces
from tangram_sim.planners.tangram.fleet_budget import FLEETS, FleetBudget
from tangram_sim.planners.tangram.fleets.fleet import (
    Master,
    PipelineCopies,
    apportion,
    master,
    pipelines_of,
    whole,
)
from tangram_sim.planners.tangram.fleets.patterns import (
    SEQUENCES,
    WIDEST,
    WIDTHS,
    Climb,
    FleetProblem,
    PatternLimits,
    PipelinePattern,
    patterns_of,
    shapes,
    shares,
)
from tangram_sim.sim import fast
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import LoweredPlan, lower_plan

_BETTER = 0.005  # share of the best step that counts as better in a row of shapes
_ROUND = 2  # shapes searched side by side, at least: what the first finds is not known to the others
_WORTH = 1.05  # pipelines over some islands this close to the step through all may be worth mixing in
# Of that step: where mixes of pipelines over some islands take longer after so many turns of shapes, no
# further shapes are looked for. Gradients between unlike copies set mixes back, by 1.9 and 3.8 times on
# 16,384 GPUs, and later shapes were seen to make mixes a fifth faster at most.
FAR = 1.5
FAR_TURNS = 2
LEAST_SHARE = 0.01  # of all nodes, below which another pattern is not worth a pipeline
_NEAR = 0.03  # how near to the best step the objective of mixes that are played lies
_PASSES = 60_000  # of microbatches through stages in fleets played, after which no mix is tried
_MOVES = 3  # rounds of moving atoms over boundaries, where the plan is one pipeline

COPIES_OF_PATTERNS = declare(
    "copies-of-patterns",
    Severity.NOTE,
    "{nodes} nodes: searched as copies of {patterns} pipeline patterns side by side (copies of "
    "{widths:listed} nodes of an island, or as many of each; stages of at most {widest} nodes in copies of "
    "more; {sequences:listed} sequences per microbatch); pipelines over some islands only were not searched. "
    "A mix could take {mix_s:.4g} s if copies and microbatches came in fractions and gradients were "
    "synchronised within each pattern only",
)


@dataclass(slots=True)
class Family:
    """State of the search over shapes of copies on the same islands. Shapes on whole nodes first, until some
    in a row bring no improvement; then the best of these with stages on parts of nodes."""

    like: list[tuple[int, ...]]  # sets of islands that are equal but for their names: searched as the first
    share: float  # of the batch
    shapes: list[PatternLimits]
    best_s: float
    finer: int  # how many of the best are searched again with stages on parts of nodes
    usual: int  # sequences per microbatch of the best pattern, here or of others before
    budget: FleetBudget
    near: list[tuple[float, PatternLimits]] = field(
        default_factory=list
    )  # searched, by the seconds of their best
    worse: int = 0

    def next(self, most: int) -> list[tuple[PatternLimits, int, Climb]]:
        """The next shapes to search, `most` at a time: (shape, first sequences, which others to try)."""
        if self.worse < self.budget.patience and self.shapes:
            taken, self.shapes = self.shapes[:most], self.shapes[most:]
            # The first shapes look around even where the usual number of sequences gives nothing.
            return [(shape, self.usual, "yes" if len(self.near) > 1 else "anyway") for shape in taken]
        self.shapes = []
        near = sorted(self.near, key=lambda one: one[0])[: self.finer]
        self.near = []
        return [
            (finer, sequences, "no")
            for seconds, shape in near
            if seconds <= self.best_s * (1 + self.budget.slack) and (finer := shape.finer()) is not None
            for sequences in SEQUENCES
        ]

    def reached(self, shape: PatternLimits, best_s: float, sequences: int) -> None:
        """Record that `shape` was searched, its best step, and the sequences per microbatch of that."""
        if best_s < self.best_s:
            self.usual = sequences  # of the next shapes', too
        self.near.append((best_s, shape))
        self.worse = 0 if best_s < self.best_s * (1 - _BETTER) else self.worse + (self.best_s < float("inf"))
        self.best_s = min(best_s, self.best_s)


class Fleets:
    """Searches for the best fleet of one request."""

    def __init__(
        self,
        ground: FleetProblem,
        bound: WorkBound,
        lowering: Lowering,
        counts: Counts,
        pieces: Pieces,
        deadline: Deadline,
        progress: Progress | None = None,
    ) -> None:
        self.progress, self.searched = progress, 0  # shapes, over all sets of islands
        self.ground, self.bound, self.lowering, self.deadline = ground, bound, lowering, deadline
        self.counts, self.pieces, self.budget = counts, pieces, FLEETS[ground.budget.effort]
        self.nodes = [island.nodes for island in ground.islands]
        self.master_s = float("inf")  # the linear program's step, over the patterns found
        self.patterns: list[PipelinePattern] = []
        self._plays: dict[tuple[object, ...], tuple[Scored | None, LoweredPlan]] = {}
        self.passes = 0  # of microbatches through stages, in fleets played

    def best(self) -> Scored | None:
        """The fastest simulated fleet; None when no pattern fits or time ran out before one was found."""
        share = shares(self.bound)
        everything = tuple(range(len(self.nodes)))
        best: Scored | None = None
        usual = SEQUENCES[0]
        if len(everything) > 1:  # stages of every kind in one pipeline: no gradients between kinds
            usual = self._search([(everything, 1.0)], float("inf"), usual)
            best = self._best_of(self._pools())
        limit_s = _WORTH * best.step_s if best else float("inf")
        self._search([((kind,), share[kind]) for kind in everything], limit_s, usual, best)
        lone = {_only(pattern) for pattern in self.patterns} - {-1}
        # Islands that hold no pipeline of their own may hold some stages of another's.
        strong = max(lone, key=lambda kind: share[kind], default=None)
        if strong is not None and len(everything) > 2 and not self._far_from(best):
            lacking = [kind for kind in everything if kind not in lone]
            self._search(
                [((strong, kind), share[strong] + share[kind]) for kind in lacking], limit_s, usual, best
            )
        return self._refined(self._one_kind_of_copy(self._best_of(self._pools(), best)))

    def findings(self) -> list[Finding]:
        """A finding that says which restricted search replaced the full one; empty without patterns."""
        if not self.patterns:
            return []
        return [
            COPIES_OF_PATTERNS(
                nodes=sum(self.nodes),
                patterns=len(self.patterns),
                widths=list(WIDTHS),
                widest=WIDEST,
                sequences=list(SEQUENCES),
                mix_s=self.master_s,
            )
        ]

    def _best_of(self, pools: list[list[PipelinePattern]], best: Scored | None = None) -> Scored | None:
        for pool in pools:
            if best and self.passes > _PASSES:
                break
            found = self._mix(pool, best.step_s if best else float("inf"))
            if found is not None and (best is None or found.step_s < best.step_s):
                best = found
        return best

    def _pools(self) -> list[list[PipelinePattern]]:
        """Sets of patterns to mix: all, and those of one ZeRO stage, whose rings span pipelines."""
        pools = [[one for one in self.patterns if _zero(one) == {stage}] for stage in range(4)]
        return [self.patterns] + [pool for pool in pools if pool and len(pool) < len(self.patterns)]

    def _far_from(self, best: Scored | None) -> bool:
        """Whether mixes of pipelines over subsets of islands are FAR times slower than the best plan."""
        some = [one for one in self.patterns if not all(one.nodes)]
        if best is None or not some or self.deadline.over():
            return False
        passes = self.passes
        mixed = self._best_of([some])
        self.passes = passes  # a look: what is mixed in the end has all of them
        return mixed is not None and mixed.step_s > FAR * best.step_s

    def _search(
        self,
        work: list[tuple[tuple[int, ...], float]],
        best_s: float,
        usual: int,
        beside: Scored | None = None,
    ) -> int:
        """Search patterns on these sets of islands until time is up; equal sets are searched once.

        Starts with `usual` sequences per microbatch; returns those of the best pattern of the last set. Ends
        early where mixes of the patterns found are far slower than the plan `beside`.
        """
        like: dict[tuple[Island, ...], list[tuple[int, ...]]] = {}
        share_of = dict(work)
        for kinds, _ in work:
            like.setdefault(tuple(self.ground.islands[kind].anonymous() for kind in kinds), []).append(kinds)
        finer = self.budget.finer if sum(self.nodes) <= self.budget.few else 0
        families = [
            Family(
                like=alike,
                share=share_of[alike[0]],
                shapes=shapes(self.ground, alike[0]),
                best_s=best_s,
                finer=finer if len(alike[0]) == len(self.nodes) else 0,
                usual=usual,
                budget=self.budget,
            )
            for alike in like.values()
        ]
        # Rounds are the same whatever the number of processes, and so is what is found.
        most = -(-_ROUND // max(len(families), 1))
        turns = 0
        while not self.deadline.over():
            if turns == FAR_TURNS and self._far_from(beside):
                break
            turn = [(family, *piece) for family in families for piece in family.next(most if turns else 1)]
            if not turn:
                break
            turns += 1
            left = len(turn) + sum(len(family.shapes) for family in families if family.worse <= 2)
            found = self.pieces.run(
                patterns_of,
                [
                    (self.ground, shape, start, climb, family.share, family.best_s, self.deadline)
                    for family, shape, start, climb in turn
                ],
                lambda answered, left=left: self._tell(answered, left),  # type: ignore[misc]
            )
            self.searched += len(turn)
            for (family, shape, *_), (patterns, reached_s, sequences, counts) in zip(
                turn, found, strict=True
            ):
                self.counts.add(counts)
                family.reached(shape, reached_s, sequences)
                for kinds in family.like:
                    self.patterns += [_moved(pattern, family.like[0], kinds) for pattern in patterns]
        return families[-1].usual if families else usual

    def _tell(self, answered: int, left: int) -> None:
        """Report how many shapes of copies have been searched, out of those known so far."""
        if self.progress:
            done = self.searched + answered
            self.progress(
                done, self.searched + left, f"{done} shapes of copies, {len(self.patterns)} patterns"
            )

    def _one_kind_of_copy(self, best: Scored | None) -> Scored | None:
        """The best plan after also trying fleets of one pattern whose objective is near the best step."""
        batch, found = self.ground.job.global_batch, list[tuple[float, int, list[PipelineCopies]]]()
        for number, pattern in enumerate(self.patterns):
            pairs = zip(self.nodes, pattern.nodes, strict=True)
            copies = min(int(count // width) for count, width in pairs if width)
            copies -= copies % pattern.granule
            groups = apportion({pattern: copies}, batch) if copies else None
            if groups:
                ends = [one.pattern.first_s + (one.microbatches - 1) * one.pattern.pace_s for one in groups]
                found.append((max(ends), number, groups))
        for objective_s, _, groups in sorted(found, key=lambda one: one[:2])[: self.budget.alike]:
            if best and (objective_s > best.step_s * (1 + _NEAR) or self.deadline.over()):
                break
            scored = self._played(groups)[0]
            if scored is not None and (best is None or scored.step_s < best.step_s):
                best = scored
        return best

    def _refined(self, best: Scored | None) -> Scored | None:
        """The plan with atoms moved between stages, where it is a single pipeline and gets faster."""
        if best is None or len(best.plan.pipelines) > 1 or self.deadline.over():
            return best
        ground, (pipeline,) = self.ground, best.plan.pipelines
        if pipeline.microbatch * pipeline.microbatches != ground.job.global_batch:
            return best
        tools = self.lowering, self.counts, self.deadline
        referee = PlanEvaluator(ground.model, ground.cluster, ground.job, *tools)
        seats, start = list[StageAssignment](), 0
        for stage in pipeline.stages:
            blocks = sum(last - first for first, last in stage.chunks)
            stop = start + blocks + stage.embedding + stage.head
            (part,) = stage.parts
            if len(part.layouts) > 1:
                return best
            seats.append(StageAssignment(part.island, part.ranks, part.layouts[0].layout, start, stop))
            start = stop
        moved = referee.refine(tuple(seats), pipeline.microbatch, _MOVES)
        step_s, pipeline, step = referee.play(moved, pipeline.microbatch)
        if step_s >= best.step_s:
            return best
        return Scored(replace(best.plan, pipelines=(pipeline,)), step, step_s)

    def _mix(self, pool: list[PipelinePattern], limit_s: float) -> Scored | None:
        """The fastest plan from solving the master program and correcting patterns by simulation."""
        best: Scored | None = None
        seen: set[tuple[object, ...]] = set()
        for _ in range(self.budget.rounds):
            if best and (self.deadline.over() or self.passes > _PASSES):
                break
            answer = master(pool, self.nodes, self.ground.job.global_batch)
            groups = self._groups(pool, answer) if answer else None
            if answer is None or not groups:
                break
            if not seen:
                self.master_s = min(self.master_s, answer.step_s)
            key = tuple((group.pattern.composed, group.copies, group.microbatches) for group in groups)
            if key in seen or answer.step_s >= min(limit_s, best.step_s if best else limit_s):
                break
            seen.add(key)
            scored, lowered = self._played(groups)
            if scored is None:  # fewer copies than priced share their state more thickly
                steps = zip(groups, lowered.steps, strict=True)
                full = [one.pattern for one, step in steps if not step.fits()]
                pool = [one for one in pool if one not in full]
                continue
            if best is None or scored.step_s < best.step_s:
                best = scored
            pool = _corrected(pool, groups, lowered)
        return best

    def _groups(self, pool: list[PipelinePattern], answer: Master) -> list[PipelineCopies] | None:
        chosen = whole(pool, answer, self.nodes, LEAST_SHARE)
        while chosen:
            groups = apportion(chosen, self.ground.job.global_batch)
            if groups is not None:
                return groups
            # Sums that do not meet the batch: without the coarsest pattern they may.
            chosen.pop(max(chosen, key=lambda one: one.granule * one.sequences))
        return None

    def _played(self, groups: list[PipelineCopies]) -> tuple[Scored | None, LoweredPlan]:
        """The fleet simulated without shared links, cached; the plan is None where it does not fit memory."""
        key = tuple((group.pattern.composed, group.copies, group.microbatches) for group in groups)
        if key in self._plays:
            return self._plays[key]
        ground = self.ground
        pipelines = pipelines_of(groups, ground.islands, self.lowering.placement, ground.model.layers)
        plan = Plan(ground.model, ground.cluster, ground.job, pipelines)
        lowered = lower_plan(plan, self.lowering)
        scored = Scored(plan, lowered.steps[0], lowered.step_s()) if lowered.fits() else None
        self.passes += sum(len(one.stages) * one.microbatches for one in pipelines)
        self.counts.played += 1
        self._plays[key] = scored, lowered
        return scored, lowered


def _moved(pattern: PipelinePattern, source: tuple[int, ...], target: tuple[int, ...]) -> PipelinePattern:
    """The same pattern on other islands, equal to its own."""
    if source == target:
        return pattern
    nodes = [0.0] * len(pattern.nodes)
    to = dict(zip(source, target, strict=True))
    for kind in source:
        nodes[to[kind]] = pattern.nodes[kind]
    places = tuple(replace(place, kind=to[place.kind]) for place in pattern.composed.places)
    return replace(pattern, nodes=tuple(nodes), composed=replace(pattern.composed, places=places))


def _only(pattern: PipelinePattern) -> int:
    """Number of the only island that a pattern uses; -1 where it uses several."""
    used = [kind for kind, width in enumerate(pattern.nodes) if width]
    return used[0] if len(used) == 1 else -1


def _zero(pattern: PipelinePattern) -> set[int]:
    return {place.partial.layout.zero_stage for place in pattern.composed.places}


def _family(pattern: PipelinePattern) -> tuple[object, ...]:
    """Key of patterns whose synchronisation times are assumed to be off by the same amount."""
    layouts = [place.partial.layout for place in pattern.composed.places]
    return pattern.nodes, tuple((one.tp, one.ep, one.zero_stage) for one in layouts)


def _corrected(
    pool: list[PipelinePattern], groups: list[PipelineCopies], lowered: LoweredPlan
) -> list[PipelinePattern]:
    """The pool with `first_s` increased by what simulated pipelines took longer than expected."""
    late: dict[tuple[object, ...], float] = {}
    for group, step in zip(groups, lowered.steps, strict=True):
        expected = group.pattern.first_s + (group.microbatches - 1) * group.pattern.pace_s
        played, family = fast.makespan(step.bare_graph()), _family(group.pattern)
        late[family] = max(late.get(family, -float("inf")), played - expected)
    return [replace(one, first_s=max(one.first_s + late.get(_family(one), 0.0), 1e-9)) for one in pool]
