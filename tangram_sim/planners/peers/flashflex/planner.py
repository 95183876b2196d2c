"""FlashFlex: pipelines of unlike shapes side by side, found by partitioning the graph of devices twice.

Yan et al., "FlashFlex: Accommodating Large Language Model Training over Heterogeneous Environment"
(arXiv:2409.01143). Where this differs from the published code: docs/models/planners.md.
"""

from tangram_sim.clusters import Cluster
from tangram_sim.errors import TangramError
from tangram_sim.models import Model
from tangram_sim.planners.coarse.profile import SimulatedProfile
from tangram_sim.planners.peers.flashflex.ensemble import plan_of
from tangram_sim.planners.peers.flashflex.savings import savings
from tangram_sim.planners.peers.flashflex.search import PartitionSearch
from tangram_sim.planners.whole_cluster import TRIED, CannotAnswerError, Price, WholeClusterPlanner, no_answer
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan

PLAYED = 24  # ensembles that fit, best by closed form, that are simulated whole


class FlashFlex(WholeClusterPlanner):
    """FlashFlex: all GPUs partitioned into pipelines; in each, machines in order, cut into stages."""

    name = "flashflex"
    limits = (
        "it uses every GPU, one tensor-parallel group per stage of a pipeline, and knows neither experts nor "
        "context parallelism"
    )

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The plan with the shortest simulated step among the ensembles that are best by closed form."""
        profile = price.profile
        if not isinstance(profile, SimulatedProfile):
            raise CannotAnswerError(f"{self.name}: it needs prices of recomputed layers; {self.limits}")
        found = PartitionSearch(profile, job.global_batch, savings(profile), deadline=price.deadline).ranked()
        best_s, best, looked, played = float("inf"), None, 0, 0
        for _, ensemble in found[:TRIED]:
            if looked and price.deadline.over():
                break
            looked += 1
            plan = plan_of(ensemble, model, cluster, job, profile)
            try:
                seconds = price.step_s(plan)
            except TangramError as error:
                raise CannotAnswerError(f"{self.name}: {error}") from error
            if seconds < float("inf"):
                played += 1
                if seconds < best_s:
                    best_s, best = seconds, plan
                if played == PLAYED:
                    break
        if best is None:
            why = (
                f"none of its {looked} best plans fits memory when simulated"
                if looked
                else "no plan fits memory"
            )
            raise no_answer(self, price, f"{why} for {model.name} on {cluster.name}")
        return best
