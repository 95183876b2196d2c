"""AMP: one (tp, dp, pp) over all GPUs in rank order, and layers split by the speed of each stage.

Li et al., "AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness" (NeurIPS 2022).
Where this differs from the published code: docs/models/planners.md.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations

from tangram_sim.clusters import Cluster
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.coarse.coarse_plan import CoarsePlan, ReplicaGroup, balanced
from tangram_sim.planners.coarse.profile import Profile
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.peers.metis import occupied
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner, best_that_fits, ranked
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan


class Amp(WholeClusterPlanner):
    """AMP: every (pp, dp, tp, microbatch) that uses all GPUs, each with its best layer split."""

    name = "amp"
    limits = (
        "it lays one tp and dp over all GPUs, whose product with pp is their number, and knows neither "
        "recomputation nor ZeRO, experts or context parallelism"
    )

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The best plan by AMP's own closed form that fits memory when simulated."""
        found = ranked(outlines(price.profile, job.global_batch, price.deadline), price.profile)
        return best_that_fits((outline for _, outline in found), price, self)


def outlines(profile: Profile, global_batch: int, deadline: Deadline | None = None) -> Iterator[CoarsePlan]:
    """The best layer split for every layout, microbatch size and order of kinds, until the deadline."""
    deadline = deadline or Deadline()
    gpus = sum(kind.gpus for kind in profile.kinds)
    common = set(profile.tps(0)).intersection(*(profile.tps(kind) for kind in range(len(profile.kinds))))
    for tp in sorted(common):
        if any(kind.gpus_per_node % tp for kind in profile.kinds):
            continue
        for dp in divisors(gpus // tp):
            depth = gpus // tp // dp
            if depth > profile.atoms or global_batch % dp:
                continue
            for order in permutations(range(len(profile.kinds))):
                places = occupied(profile, order, [tp * dp] * depth)
                for size in divisors(global_batch // dp):
                    if deadline.over():
                        return
                    stages = stages_of(places, tp, size)
                    microbatches = global_batch // dp // size
                    found = balanced(stages, microbatches, profile)
                    if found is not None:
                        yield CoarsePlan(microbatches, dp * size, found[0], stages)


def stages_of(
    places: Sequence[Sequence[tuple[int, int]]], tp: int, size: int
) -> tuple[tuple[ReplicaGroup, ...], ...]:
    """Replica groups of every stage, with `size` sequences for each replica whatever its GPU kind."""
    return tuple(
        tuple(ReplicaGroup(kind, count // tp, tp, count // tp * size) for kind, count in place)
        for place in places
    )
