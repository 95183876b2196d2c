"""Uniform: the best single Megatron layout over all GPUs, as planned by software that assumes equal GPUs."""

from tangram_sim.clusters import Cluster
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import Counts
from tangram_sim.planners.uniform.trivial import PlayLimits, fastest_uniform
from tangram_sim.planners.whole_cluster import CannotAnswerError, Price, WholeClusterPlanner, no_answer
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan


class BestUniform(WholeClusterPlanner):
    """One layout with even stages, ranks in file order; a stage with several kinds runs at its slowest."""

    name = "uniform"
    limits = "it lays one layout with even stages over all GPUs"

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The fastest uniform layout that fits memory."""
        short = [kind for kind in cluster.groups if not kind.node.gpu.peak_flop_per_s(job.precision.compute)]
        if short:
            raise CannotAnswerError(
                f"uniform: {', '.join(group.node.gpu.name for group in short)}: no {job.dtype} units; "
                f"{self.limits}"
            )
        found = fastest_uniform(
            model,
            cluster,
            job,
            price.lowering,
            orders=[()],
            constraints=Constraints(),
            counts=Counts(),
            limits=PlayLimits(price.deadline),
        )
        if found is None:
            raise no_answer(self, price, f"no layout of {model.name} on {cluster.name} fits")
        return found.plan
