"""The work bound by GPU kind, however nodes are grouped, for callers without islands."""

from tangram_sim.clusters import Cluster, Gpu, Island
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.training.job import Job


def bound_by_kinds(model: Model, job: Job, cluster: Cluster, hwdb: Hwdb) -> WorkBound:
    """The work bound by GPU kind for a job whose number format is settled, without plans or islands.

    Raises InfeasibleError where no GPU has units for the format.
    """
    gpus = dict[Gpu, int]()
    for group in cluster.groups:
        gpu = group.node.gpu
        if gpu.peak_flop_per_s(job.precision.compute):
            gpus[gpu] = gpus.get(gpu, 0) + group.count * group.node.gpus
    if not gpus:
        raise InfeasibleError(f"no GPU of {cluster.name} has {job.dtype} units")
    link = cluster.groups[0].node.intra
    kinds = [
        Island(
            gpu.name, gpu, nodes=count, gpus_per_node=1, intra=link, nic_bytes_per_s=0.0, nic_latency_s=0.0
        )
        for gpu, count in gpus.items()
    ]
    return WorkBound(model, job, kinds, hwdb)
