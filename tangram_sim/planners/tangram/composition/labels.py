"""A table of partial plans as arrays for the compiled label-setting, and the loop that runs it in turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster, Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.placement.between import group_limits
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.composed import Composed, Placed
from tangram_sim.planners.tangram.composition.states import Ints, NodeStates
from tangram_sim.planners.tangram.enumeration.table import PartialPlanTable
from tangram_sim.training.job import Job

# slice classes, options of a class, option floats and ints, states without what an option takes.
Options: TypeAlias = tuple[Ints, Ints, NDArray[np.float64], Ints, Ints]

TURN = 20_000_000  # work of one compiled call, a tenth of a second: between two the deadline is looked at
NEAR = 0.02  # share by which limits may differ that use the same table of what is still to come
PASSES_OF_TURN = 5_000_000  # microbatches through stages played in one call


@dataclass(frozen=True, slots=True)
class LinkBounds:
    """Lower bounds on transfers between stages on two kinds of island; exact except on stated graphs."""

    size: float  # bytes of one microbatch at a boundary
    latency_s: NDArray[np.float64]  # (kinds, kinds); infinite where --order forbids the neighbourhood
    bytes_per_s: NDArray[np.float64]  # (kinds, kinds): what groups allow between them
    node_bytes_per_s: NDArray[np.float64]  # (kinds): what leaves one node
    estimate_s: NDArray[np.float64]  # (kinds, kinds): node to node; where `rough`, the better estimate
    rough: bool


def roads(
    islands: Sequence[Island],
    cluster: Cluster,
    hwdb: Hwdb,
    size: float,
    estimate_s: NDArray[np.float64],
) -> LinkBounds:
    """Link bounds as `Placement.road` prices links; inf in `estimate_s` marks forbidden neighbours."""
    kinds = len(islands)
    latency, rate = np.zeros((kinds, kinds)), np.full((kinds, kinds), np.inf)
    nodes = np.full(kinds, np.inf)
    rough = cluster.wiring.full or any(island.scale_up_nodes > 1 for island in islands)
    if not rough:
        efficiency = hwdb.network_efficiency.value
        nodes = np.array([island.nic_bytes_per_s * efficiency for island in islands])
        limits, lags = group_limits(cluster)
        for a, source in enumerate(islands):
            for b, target in enumerate(islands):
                both = np.ix_(source.groups, target.groups)
                # All groups at once: traffic may spread over them.
                rate[a, b] = sum(limits[both].ravel().tolist()) * efficiency
                latency[a, b] = lags[both].min()
    latency[np.isinf(estimate_s)] = np.inf
    return LinkBounds(float(size), latency, rate, nodes, estimate_s, rough)


@dataclass(frozen=True, slots=True)
class Look:
    """Parameters of one run of label-setting, which finds what may end below `limit_s`.

    `width`: labels kept of a state, those with the smallest bounds (0: all). `dropping`: leave out dominated
    labels, and those that are better by no more than the tolerance; else all labels are kept. `proving`: a
    label's times also hold for the labels it replaced, so that the smallest bound holds for those too.
    Suffixes are played for labels until `passes` microbatches have passed through stages.
    """

    limit_s: float
    work: int
    labels: int
    width: int = 0
    dropping: bool = True
    tolerance_s: float = 0.0
    proving: bool = True
    passes: int = 0


@dataclass(frozen=True, slots=True)
class Labels:
    """Result of a run: facts of all labels, complete labels, their bounds, and the smallest bound of a
    dropped label. `dropped_s` covers the labels left out for the width."""

    facts: NDArray[np.int32]
    complete: NDArray[np.int64]
    bounds: NDArray[np.float64]
    dropped_s: float


class PipelineTable:
    """Partial plans, nodes and links as arrays; runs label-setting and simulates what it finds."""

    def __init__(
        self,
        table: PartialPlanTable,
        counts: Sequence[int],
        ways: LinkBounds,
        model: Model,
        job: Job,
        one_by_one: bool = False,
    ) -> None:
        self.table, self.ways = table, ways
        states = NodeStates.of(counts, one_by_one)
        takes = states.taken(table.joint)
        moves, number = np.unique(table.ints[:, :2], axis=0, return_inverse=True)
        self.before = np.array(
            [states.without(takes[kind] * nodes) for kind, nodes in moves.tolist()], dtype=np.int64
        ).reshape(-1, len(states.codes))
        self.reached = states.reached(self.before)
        self.ints = table.ints.copy()
        self.ints[:, 1] = number.reshape(-1)
        self._least: tuple[float, NDArray[np.float64]] = float("inf"), np.empty(0)  # and the limit it is for
        repeats = table.microbatches - 1.0
        slowest, latency, forward, closing = table.floats.T
        kinds, depth = table.ints[:, 0], table.ints[:, 2]
        inner = np.zeros(len(slowest))
        for option in np.flatnonzero(depth > 1).tolist():
            inner[option] = table.partials[option].hop_s
        passes = latency - 2 * (depth - 1) * inner
        ahead = forward - (depth - 1) * inner
        units = np.array([partial.nodes for partial in table.partials], dtype=np.float64)
        # Cuts between inner stages may move when a plan is refined, and with them times and tails: what
        # holds for all cuts is that the times add up.
        own = passes / (1.0 - (1.0 - 1.0 / table.microbatches) ** depth)
        rate = ways.node_bytes_per_s[kinds] * units / depth
        self.floats = np.column_stack(
            [
                latency,
                forward,
                own,
                repeats * passes / depth,
                np.minimum(ahead, passes - ahead) / depth,
                np.where(depth > 1, 0.0, closing - slowest),
                inner,
                rate,
                np.where(depth > 1, 0.0, np.maximum(ahead, passes - ahead)),
                rate / np.array([partial.end_copies for partial in table.partials]),
            ]
        )
        stages = [stage for partial in table.partials for stage in partial.stages]
        self.times = np.array(
            [
                (
                    stage_price.forward_s,
                    stage_price.backward_s,
                    stage_price.gradient_sync_s,
                    stage_price.optimizer_s,
                )
                for stage_price in stages
            ]
        ).reshape(-1, 4)
        self.stage_ptr = np.concatenate([[0], np.cumsum(depth)])
        self.lost = {"1f1b": 1, "gpipe": 2}.get(job.schedule, 0)
        self.between = np.stack([ways.latency_s, ways.bytes_per_s])
        # Floats where they may be whole numbers: compiled code knows one signature.
        self.tied_bytes = float(job.tied_bytes(model))
        self.deepest = sum(
            int(count) * int(depth[kinds == kind].max(initial=0)) for kind, count in enumerate(counts)
        )
        self.spent, self.spent_labels = 0, 0  # work and labels of the last look
        self.least_s = 0.0  # no pipeline is played in less, as far as the last look has shown
        behind = min(self.deepest, len(table.slice_class) - 1) - 1
        self.most_behind = float({0: 0.0, 1: min(behind, repeats), 2: repeats}[self.lost])

    def below(self, look: Look, deadline: Deadline) -> Labels | None:
        """Labels that a run finds; None where work, labels or time ran out before its end."""
        from tangram_sim.planners.tangram.composition import exact_kernels as kernels
        from tangram_sim.planners.tangram.composition import play_kernels as columns

        table = self.table
        kept = self.floats[:, columns.OWN] < look.limit_s
        pointers = np.concatenate([[0], np.cumsum(kept)])[table.option_ptr]
        floats, ints = np.ascontiguousarray(self.floats[kept]), np.ascontiguousarray(self.ints[kept])
        options = table.slice_class, pointers, floats, ints, self.before
        least = self._still_to_come(options, look.limit_s, deadline)
        if least is None:
            return None
        atoms, states = len(table.slice_class) - 1, self.before.shape[1]
        stage_ptr = np.concatenate([[0], np.cumsum(ints[:, columns.STAGES])])
        times = self.times[np.repeat(kept, table.ints[:, columns.STAGES])]
        values, facts, bounds = np.zeros((4096, 4)), np.full((4096, 8), -1, np.int32), np.zeros(4096)
        facts[0, [columns.DEPTH, columns.SHADOW, columns.NESTED]] = 0
        facts[0, columns.DEEPEST] = np.iinfo(np.int32).max
        first, last = np.zeros((2, atoms + 1, states), np.int64)
        last[atoms, 0] = 1
        cursor, edge = np.zeros(10, np.int64), np.full(2, np.inf)
        cursor[[kernels.COUNT, kernels.START, kernels.USED]] = 1, atoms - 1, 1
        cursor[kernels.PASSES] = look.passes
        while not cursor[kernels.DONE]:
            spent = cursor[kernels.WORK] >= look.work or cursor[kernels.COUNT] >= look.labels
            if spent or deadline.over():
                return None
            self.spent, self.spent_labels = int(cursor[kernels.WORK]), int(cursor[kernels.COUNT])
            if cursor[kernels.COUNT] == len(values):
                values, facts = np.concatenate((values, values)), np.concatenate((facts, facts))
                bounds = np.concatenate((bounds, bounds))
            kernels.below(
                *options,
                reached=self.reached,
                between=self.between,
                size=self.ways.size,
                tied_bytes=self.tied_bytes,
                least=least,
                microbatches=table.microbatches,
                stage_ptr=stage_ptr,
                times=times,
                lost=self.lost,
                whole_depth=table.whole_depth,
                limit_s=look.limit_s,
                proving=look.proving,
                dropping=look.dropping,
                tolerance_s=look.tolerance_s,
                width=look.width,
                most_work=min(TURN, look.work - int(cursor[kernels.WORK])),
                values=values,
                facts=facts,
                bounds=bounds,
                first=first,
                last=last,
                cursor=cursor,
                edge=edge,
            )
        self.spent, self.spent_labels = int(cursor[kernels.WORK]), int(cursor[kernels.COUNT])
        ended = np.flatnonzero(last[0] > first[0])  # states with a complete pipeline: few of many
        runs = [np.arange(first[0, state], last[0, state]) for state in ended]
        complete = np.concatenate([np.empty(0, np.int64), *runs])
        facts, original = facts[: int(cursor[kernels.COUNT])].copy(), np.append(np.flatnonzero(kept), -1)
        for column in (columns.OPTION, columns.BACK):
            facts[:, column] = original[facts[:, column]]
        least_s = bounds[complete] - values[complete, kernels.DEBT]
        return Labels(facts, complete, least_s, float(edge[kernels.LEAST_DROPPED]))

    def _still_to_come(
        self, options: Options, limit_s: float, deadline: Deadline
    ) -> NDArray[np.float64] | None:
        """Lower bounds on what unplaced atoms add, for every state (see `still_to_come`); None: out of time.
        Bounds computed for a slightly higher limit are slightly looser and are reused."""
        from tangram_sim.planners.tangram.composition.rest_kernels import still_to_come

        known_s, least = self._least
        if not len(least) or not limit_s <= known_s <= (1 + NEAR) * limit_s:
            atoms = len(self.table.slice_class) - 1
            least = np.full((atoms + 1, 4, self.before.shape[1]), np.inf)
            for stop in range(atoms + 1):
                still_to_come(*options, self.most_behind, limit_s, least, stop)
                if deadline.over():
                    return None
            self._least = limit_s, least
        root = least[-1, :, 0]
        self.least_s = min(limit_s, max(float(root[0]), float(root[2]), float(root[0] + root[3])))
        return least

    def any_order_s(self, limit_s: float, deadline: Deadline) -> float:
        """Lower bound in seconds on all pipelines of the table, for any order of passes; 0: no time.

        A stage processes all microbatches after the first has passed forward through the stages before it.
        """
        from tangram_sim.planners.tangram.composition import play_kernels as columns
        from tangram_sim.planners.tangram.composition.rest_kernels import still_to_come

        table, floats = self.table, self.floats.copy()
        depth = table.ints[:, 2]
        floats[:, columns.LATENCY] = floats[:, columns.FORWARD]
        share = 1.0 / table.microbatches
        # Of one stage all; of several inner ones at least what the slowest does.
        floats[:, columns.OWN] *= np.minimum((1.0 - (1.0 - share) ** depth) / (depth * share), 1.0)
        options = table.slice_class, table.option_ptr, floats, self.ints, self.before
        least = np.full((len(table.slice_class), 4, self.before.shape[1]), np.inf)
        for stop in range(len(least)):
            still_to_come(*options, self.most_behind, limit_s, least, stop)
            if deadline.over():
                return 0.0
        return min(limit_s, float(least[-1, :3, 0].max()))

    def played(
        self, facts: NDArray[np.int32], complete: NDArray[np.int64], deadline: Deadline
    ) -> NDArray[np.float64]:
        """Simulated seconds of complete pipelines without shared links; inf for those that time did not
        suffice for. At least the first batch of them is simulated."""
        return self._played(facts, complete, self.floats, self.between, self.ways.size, deadline)

    def estimated(
        self, facts: NDArray[np.int32], complete: NDArray[np.int64], deadline: Deadline
    ) -> NDArray[np.float64]:
        """Seconds as of `played`, with the more realistic estimate of transfers, which is no lower bound."""
        from tangram_sim.planners.tangram.composition.play_kernels import RATE

        floats = self.floats.copy()
        floats[:, RATE] = np.inf
        infinite = np.full(self.between.shape[1:], np.inf)
        between = np.stack([self.ways.estimate_s, infinite])
        return self._played(facts, complete, floats, between, 0.0, deadline)

    def _played(
        self,
        facts: NDArray[np.int32],
        complete: NDArray[np.int64],
        floats: NDArray[np.float64],
        between: NDArray[np.float64],
        size: float,
        deadline: Deadline,
    ) -> NDArray[np.float64]:
        from tangram_sim.planners.tangram.composition import play_kernels

        steps = np.full(len(complete), np.inf)
        most = max(int(facts[complete, play_kernels.DEPTH].max(initial=1)), 1) * self.table.microbatches
        turn = max(PASSES_OF_TURN // most, 1)
        for begin in range(0, len(complete), turn):
            if begin and deadline.over():
                break
            steps[begin : begin + turn] = play_kernels.play_all(
                complete=complete[begin : begin + turn],
                facts=facts,
                floats=floats,
                ints=self.table.ints,
                stage_ptr=self.stage_ptr,
                times=self.times,
                between=between,
                size=size,
                tied_bytes=self.tied_bytes if size else 0.0,
                microbatches=self.table.microbatches,
                every_forward_first=self.lost == 2,
            )
        return steps

    def composed(self, value: float, facts: NDArray[np.int32], label: int) -> Composed:
        """The pipeline of a label, collected from its front stage to its last."""
        from tangram_sim.planners.tangram.composition.play_kernels import OPTION, PARENT

        places: list[Placed] = []
        start = 0
        while facts[label, OPTION] >= 0:
            option = int(facts[label, OPTION])
            partial = self.table.partials[option]
            stop = start + partial.stop - partial.start
            places.append(Placed(int(self.table.ints[option, 0]), start, stop, partial))
            label, start = int(facts[label, PARENT]), stop
        return Composed(value, tuple(places), self.table.microbatch, self.table.microbatches)
