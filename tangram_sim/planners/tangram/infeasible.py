"""Error text for a request without a plan: the memory needed and available, and what was tried."""

from collections.abc import Sequence

from tangram_sim.clusters import Cluster, Island
from tangram_sim.cost.device import device_rates
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.training.job import Job
from tangram_sim.training.schedules import chunked, in_flight
from tangram_sim.units import show_bytes

_MANY = 1000  # microbatches, more than stages that hold by their place would


def why_not(
    model: Model, cluster: Cluster, job: Job, islands: Sequence[Island], hwdb: Hwdb, constraints: Constraints
) -> str:
    """Error text for a request without a plan: the memory needed and available, and what was tried."""
    needed = model.parameters * job.bytes_per_parameter
    there = sum(
        device_rates(island.gpu, job.precision.types, hwdb, job.stack).usable_memory_bytes * island.gpus
        for island in islands
    )
    text = (
        f"{model.name} fits no plan on {cluster.name}: weights, gradients and {job.optimizer} state need "
        f"{show_bytes(needed)} ({job.bytes_per_parameter:g} bytes per parameter), the usable islands hold "
        f"{show_bytes(there)}."
    )
    fixed = [f"{name.removesuffix('_stage')}={value}" for name, value in constraints.fixed]
    if constraints.microbatch_per_rank:
        fixed.append(f"microbatch per rank {constraints.microbatch_per_rank}")
    if len(constraints.recompute) == 1:
        fixed.append(f"recompute {constraints.recompute[0]}")
    if needed <= there:
        text += " Activations, or layouts that divide neither heads nor batch, do not fit beside them."
        if not chunked(job.schedule) and in_flight(job.schedule, 1, 2, 1, _MANY) == _MANY:
            text += (
                f" A pipeline under {job.schedule} holds every microbatch of the step at once; under "
                "`schedule=1f1b` a stage holds its own and one for each stage behind it."
            )
    kinds = "/".join(constraints.recompute)
    zero = dict(constraints.fixed).get("zero_stage", "0-3")
    text += f" Tried: ZeRO {zero}, recompute {kinds}, sequence parallelism, every split over stages."
    if fixed:
        text += f" Fixed by you: {', '.join(fixed)}; relax one of them."
    else:
        text += " Use more or larger GPUs, a smaller model or shorter `seq=`."
    return text
