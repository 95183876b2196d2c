"""The question of `tangram islands`: which GPUs of a cluster count as equal."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.fields import SEARCH, described, option, part
from tangram_sim.questions.question import Question
from tangram_sim.questions.shared_fields import Hardware, cluster_argument
from tangram_sim.training.job import Job

if TYPE_CHECKING:
    from tangram_sim.studies.documents import IslandsDocument

_SPREAD: dict[str, Any] = {"least": 0, "example": "0.1", "group": SEARCH, "basic": True}


@described
@dataclass(frozen=True, slots=True)
class IslandsQuestion(Question):
    """Cut CLUSTER into islands of equal GPUs and say why each cut is made.

    Memory of a GPU is shown as sold (GB are 1e9 bytes), usable (what the driver hands out; "of" in tables of
    plans), and planned (what a plan may fill: less the driver's context and what the software stack keeps).
    """

    VERB: ClassVar[str] = "islands"

    cluster: str = cluster_argument()
    job: Job = field(default=Job(), metadata=part("dtype"))
    compute_tolerance: float = option(
        0.10, "Largest relative difference in compute throughput within one island.", **_SPREAD
    )
    memory_tolerance: float = option(
        0.05, "Largest relative difference in memory within one island.", **_SPREAD
    )
    link_tolerance: float = option(
        0.10, "Largest relative difference in link bandwidth within one island.", **_SPREAD
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())

    def answer(self) -> "IslandsDocument":
        """The islands, in the order of the cluster's groups."""
        from tangram_sim.hwdb import load_cluster
        from tangram_sim.placement.islands import Tolerances
        from tangram_sim.studies.islands import islands_document

        database = self.hardware.load()
        spread = Tolerances(self.compute_tolerance, self.memory_tolerance, self.link_tolerance)
        cluster = load_cluster(self.cluster, database)
        return self.with_answer(islands_document(cluster, self.job, spread, database))
