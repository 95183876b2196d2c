"""Lower bound on the synchronisation of a matrix tied between the first and last stage."""

from collections.abc import Sequence

from tangram_sim.clusters import Island
from tangram_sim.cost.collectives import transfer_s
from tangram_sim.models import Model
from tangram_sim.training.job import Job


def tied_s(model: Model, job: Job, islands: Sequence[Island]) -> float:
    """Lower bound in seconds on the all-reduce of a tied matrix between stages; 0 if there is none."""
    if not model.tied or any(island.paths is not None for island in islands):
        return 0.0  # a stated graph may hold more than the rows of its nodes
    rates = [
        max(island.nic_bytes_per_s * island.nodes, island.intra.bytes_per_s * island.gpus)
        for island in islands
    ]
    return transfer_s(job.tied_bytes(model), max(rates), 0.0)
