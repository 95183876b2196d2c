"""Tangram as a whole-cluster planner, like any other."""

from tangram_sim.clusters import Cluster
from tangram_sim.models import Model
from tangram_sim.planners.search_options import SearchOptions
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan


class Tangram(WholeClusterPlanner):
    """The Tangram planner as a `WholeClusterPlanner`; see `tangram_sim.planners.tangram`."""

    name = "tangram"
    limits = "Tangram tries few stages over several islands, and few pipelines side by side"

    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """The fastest plan found."""
        wishes = SearchOptions(jobs=price.jobs)
        found = tangram(model, cluster, job, price.hwdb, wishes, deadline=price.deadline)
        price.deadline.over()  # this notes that it ran into it, also where there was no time at all
        return found.ranked[0].plan
