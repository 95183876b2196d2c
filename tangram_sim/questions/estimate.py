"""The question of `tangram estimate`: prediction for one uniform layout."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import described, part
from tangram_sim.planners.uniform.degrees import Uniform
from tangram_sim.questions.shared_fields import (
    JOB_AND_SOFTWARE,
    OnTrainingCluster,
    Run,
    slow_option,
)
from tangram_sim.training.job import Job

if TYPE_CHECKING:
    from tangram_sim.clusters import Cluster
    from tangram_sim.studies.results import Result

_LAYOUT = part(
    *("tp", "pp", "dp", "cp", "ep", "vpp", "zero_stage", "micro_batch", "recompute", "sequence_parallel"),
    *("layers", "order"),
)


@described
@dataclass(frozen=True, slots=True)
class EstimateQuestion(OnTrainingCluster):
    """Predict one uniform layout of MODEL on CLUSTER; ranks go node by node, tp fastest, then cp, dp, pp."""

    VERB: ClassVar[str] = "estimate"

    job: Job = field(default=Job(), metadata=JOB_AND_SOFTWARE)
    layout: Uniform = field(default=Uniform(), metadata=_LAYOUT)
    slow: tuple[str, ...] = slow_option()
    run: Run = field(default=Run(), metadata=part())

    def answer(self) -> "Result":
        """Prediction for the layout, whether or not it fits in memory.

        Raises BadInputError or InfeasibleError for degrees that contradict each other or the cluster.
        """
        from tangram_sim.hwdb import load_cluster, load_model
        from tangram_sim.studies import api
        from tangram_sim.studies.training_run import with_run

        wanted = self.run.wanted
        database, model = self.hardware.load(), load_model(self.model)
        cluster = load_cluster(self.cluster, database)
        terms = self.run.power.terms(database, run=wanted)
        if terms is not None and self.slow:
            raise BadInputError("`slow=` and options of power: give one of the two")

        def estimated(where: "Cluster") -> "Result":
            return api.estimate(model, where, self.trained, self.layout, hwdb=database)

        if terms is None:
            result = estimated(cluster)
        else:
            from tangram_sim.studies.power_choice import plan_under_power

            result = plan_under_power(cluster, terms, database, estimated)
        if self.slow:
            from tangram_sim.studies.slow_files import read_every_slow
            from tangram_sim.studies.slow_plans import replayed

            given = read_every_slow(list(self.slow), result.forecast.plan.cluster)
            result = result if given.is_nothing else replayed(result.forecast.plan, given, database)
        result = with_run(result, database, wanted, terms)
        return replace(result, document=self.with_answer(result.document))
