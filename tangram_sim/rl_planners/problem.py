"""A placement problem: a step, the fleet it may use, and the staleness allowed for its sequences."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from tangram_sim.clusters import Cluster
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.post_training.overheads import Overheads
from tangram_sim.post_training.plan import (
    ASYNC,
    DRAIN,
    IN_FLIGHT,
    ONE_STEP_OFF,
    SYNC,
    Mode,
    RlPlan,
)
from tangram_sim.post_training.step import StepOutcome, play_step
from tangram_sim.post_training.sync import weight_bytes
from tangram_sim.post_training.workload import PostTraining

Counts = tuple[int, ...]  # nodes of each group of the fleet
ANY = "any"


@dataclass(frozen=True)
class RlProblem:
    """A step on a fleet. `staleness`: greatest age in versions of a sequence that trains; 0: on-policy.

    `placement`: any, colocated, split, hybrid. `engine`: of rollout. `pack_tokens`: of a rank's micro-batch.
    """

    work: PostTraining
    fleet: Cluster
    hwdb: Hwdb
    overheads: Overheads
    staleness: int
    placement: str = ANY
    engine: str = "vllm"
    pack_tokens: int = 16384
    stack: str = "megatron"
    sync_method: str = "auto"

    @property
    def counts(self) -> Counts:
        """Number of nodes in each group of the fleet."""
        return tuple(group.count for group in self.fleet.groups)

    @property
    def kinds(self) -> tuple[str, ...]:
        """GPU name of each group of the fleet."""
        return tuple(group.node.gpu.name for group in self.fleet.groups)

    def gpus(self, counts: Counts) -> int:
        """Total GPUs of these numbers of nodes."""
        return sum(count * group.node.gpus for count, group in zip(counts, self.fleet.groups, strict=True))

    def part(self, counts: Counts) -> Cluster:
        """The fleet with these numbers of nodes; groups without nodes are left out."""
        groups = tuple(
            replace(group, count=count)
            for count, group in zip(counts, self.fleet.groups, strict=True)
            if count
        )
        return Cluster(self.fleet.name, groups, self.fleet.network)

    def rest(self, counts: Counts) -> Counts:
        """Remaining nodes of each group when these are taken."""
        return tuple(whole - used for whole, used in zip(self.counts, counts, strict=True))

    def vectors(self) -> Iterator[Counts]:
        """Yields every choice of at least one node, up to all nodes."""
        for counts in product(*(range(count + 1) for count in self.counts)):
            if any(counts):
                yield counts

    def widths(self, place: int, gpus: int, share: float) -> list[int]:
        """Tensor-parallel degrees of an engine on `gpus` GPUs of a group, within a node if it fits there.

        `share`: fraction of a GPU's memory that the engine may use.
        """
        work, node = self.work, self.fleet.groups[place].node
        heads = min(block.attention.heads for block in work.model.blocks)
        size = weight_bytes(work.model, work.rollout_precision)
        every = [tp for tp in (1, 2, 4, 8, 16, 32) if heads % tp == 0 and tp <= gpus]
        inside = [tp for tp in every if tp <= node.gpus] or every[:1]
        if size / inside[-1] > 0.9 * share * node.gpu.memory_bytes:
            inside = every
        return [tp for tp in inside if size / tp < 0.95 * share * node.gpu.memory_bytes]

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Every mode that split pools may use within the limit on staleness.

        In addition to the plain ones: rollout that continues across one weight sync, and on-policy steps
        whose updates begin as soon as their own sequences are complete (verl's streaming, staleness 0).
        """
        updates = self.work.updates
        modes = list(self.plain_modes)
        if self.staleness:
            modes.append(Mode(ASYNC, eta=self.staleness, at_sync=IN_FLIGHT, fetches=updates))
        elif updates > 1:
            modes.append(Mode(ASYNC, share=0.0, at_sync=DRAIN, fetches=updates))
        return tuple(dict.fromkeys(modes))

    @property
    def plain_modes(self) -> tuple[Mode, ...]:
        """Modes that frameworks offer split pools by default, within the limit on staleness."""
        modes = [Mode(SYNC)]
        if self.staleness >= 1:
            modes.append(Mode(ONE_STEP_OFF, eta=1))
        if self.staleness >= 2:
            modes.append(Mode(ASYNC, eta=self.staleness, at_sync=IN_FLIGHT))
        return tuple(modes)


@dataclass
class Judge:
    """Simulates plans of one problem, for all planners alike; results are cached."""

    problem: RlProblem
    played: dict[RlPlan, StepOutcome | TangramError] = field(default_factory=dict)

    def step_s(self, plan: RlPlan) -> float:
        """Seconds of a step of the plan; inf where the plan does not fit or is invalid."""
        found = self.outcome(plan)
        return found.step_s if isinstance(found, StepOutcome) else float("inf")

    def outcome(self, plan: RlPlan) -> StepOutcome | TangramError:
        """The simulated plan, or the error that prevents it."""
        if plan not in self.played:
            rl_problem = self.problem
            try:
                self.played[plan] = play_step(
                    rl_problem.work, plan, rl_problem.hwdb, overheads=rl_problem.overheads
                )
            except TangramError as error:
                self.played[plan] = error
        return self.played[plan]
