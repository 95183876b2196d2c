"""HAP: one SPMD program on all GPUs with uneven shares, by best-first search and linear programming.

Zhang et al., "HAP: SPMD DNN Training on Heterogeneous GPU Clusters with Automated Program Synthesis" (EuroSys
2024). Where this differs from the published code: docs/models/planners.md.
"""

from tangram_sim.clusters import Cluster
from tangram_sim.errors import TangramError
from tangram_sim.models import Model
from tangram_sim.planners.peers.hap.candidates import ProgramCandidate, candidates, pipeline_of
from tangram_sim.planners.whole_cluster import TRIED, CannotAnswerError, Price, WholeClusterPlanner, no_answer
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan


class Hap(WholeClusterPlanner):
    """HAP: data or features of every layer split over all GPUs, in the shares that suit the program best."""

    name = "hap"
    limits = (
        "it runs one program on all GPUs at once: no pipeline, no recomputation, no expert parallelism, and "
        "tensor parallelism only over all of them"
    )

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The cheapest program by HAP's own cost that fits memory when simulated."""
        found = sorted(candidates(model, job, price.profile, price.deadline), key=ProgramCandidate.rank)
        for looked, candidate in enumerate(found[:TRIED]):
            if looked and price.deadline.over():
                break
            plan = Plan(model, cluster, job, (pipeline_of(candidate, price.profile),))
            try:
                if price.lowered(plan).fits():
                    return plan
            except TangramError as error:
                raise CannotAnswerError(f"{self.name}: {error}") from error
        why = f"none of its {len(found)} programs fits when simulated" if found else "no program fits memory"
        raise no_answer(self, price, f"{why} for {model.name} on {cluster.name}")
