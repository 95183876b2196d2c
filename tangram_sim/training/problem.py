"""The input of every search for a training plan."""

from dataclasses import dataclass

from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.training.job import Job


@dataclass(frozen=True)
class TrainingProblem:
    """A model to train as a job on a cluster, priced by a hardware database."""

    model: Model
    cluster: Cluster
    job: Job
    hwdb: Hwdb
