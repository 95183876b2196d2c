"""The second API: a planner of whole clusters, and the prices it may ask for.

`plan(model, cluster, job, price) -> Plan`. Entry-point group: `tangram_sim.planners`; Tangram itself and its
peers are found there like everybody else's. `tangram_sim.planners.contract` checks an implementation.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from tangram_sim.clusters import Cluster
from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.models import Model
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.coarse.coarse_plan import CoarsePlan, fits, plan_of, step_s
from tangram_sim.planners.coarse.profile import Profile, SimulatedProfile
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.usable import usable_islands
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan
from tangram_sim.training.problem import TrainingProblem
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.side_by_side import LoweredPlan, lower_plan

TRIED = 400  # outlines, best first, that are held against the simulator's memory before a planner gives up


class CannotAnswerError(InfeasibleError):
    """A planner's own limits keep it from answering; others may know a plan."""


@dataclass(frozen=True)
class Price(TrainingProblem):
    """What a planner may ask about one model, cluster and job: prices of plans, and a profile of layers.

    `job.dtype` is settled. Answers are kept, so ask as often as you like. When the `deadline` is over, answer
    with the best plan so far, or raise `no_answer`.
    """

    deadline: Deadline = field(default_factory=Deadline, compare=False)
    jobs: int = field(default=1, compare=False)  # processes that a search may use; 0: all cores

    @cached_property
    def lowering(self) -> Lowering:
        """Prices of stages and roads between them."""
        return Lowering(Placement(self.cluster, self.hwdb), StagePrices(self.model, self.job, self.hwdb))

    @cached_property
    def profile(self) -> Profile:
        """Seconds and bytes of single layers by GPU kind: what profiling the cluster would give."""
        islands, _ = usable_islands(self.cluster, self.job, self.hwdb, SearchOptions())
        return SimulatedProfile(self.model, self.cluster, self.job, self.hwdb, islands, self.lowering.prices)

    def lowered(self, plan: Plan) -> LoweredPlan:
        """A plan ready to be played. Raises BadInputError for decisions that do not hold together."""
        return lower_plan(plan, self.lowering)

    def step_s(self, plan: Plan) -> float:
        """Simulated seconds of a step, transfers not sharing links; inf where it does not fit memory."""
        lowered = self.lowered(plan)
        return lowered.step_s() if lowered.fits() else float("inf")


class WholeClusterPlanner(ABC):
    """A planner of whole clusters. Implementations are deterministic and made by calling them with nothing.

    `limits` says in one sentence what it does not consider; people read it where it cannot answer.
    """

    name: str
    limits: str
    compared: bool = True  # whether `compare` asks it unless told which planners to ask

    @abstractmethod
    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """A plan for exactly this model, cluster and job that fits memory.

        Raises InfeasibleError saying why there is none; CannotAnswerError where its own limits are why.
        """


def best_that_fits(outlines: Iterable[CoarsePlan], price: Price, planner: WholeClusterPlanner) -> Plan:
    """The plan of the first outline (they come best first) that the simulator, too, finds to fit memory.

    One is looked at though the deadline is over.
    """
    looked = 0
    for looked, outline in enumerate(outlines, 1):
        if looked > TRIED or (looked > 1 and price.deadline.over()):
            break
        plan = plan_of(outline, price.model, price.cluster, price.job, price.profile)
        try:
            if price.lowered(plan).fits():
                return plan
        except TangramError as error:
            raise CannotAnswerError(f"{planner.name}: {error}") from error
    why = (
        f"none of its {min(looked, TRIED)} best plans fits memory when simulated"
        if looked
        else f"no plan it considers for {price.model.name} on {price.cluster.name} fits memory"
    )
    raise no_answer(planner, price, why)


def no_answer(planner: WholeClusterPlanner, price: Price, why: str) -> CannotAnswerError:
    """Why there is no plan: the time limit where that cut the search short, else `why` and its limits."""
    if price.deadline.stopped:
        return CannotAnswerError(
            f"{planner.name}: no plan found ({price.deadline.why()}); raise `time_limit_s=`"
        )
    return CannotAnswerError(f"{planner.name}: {why}; {planner.limits}")


def ranked(outlines: Iterable[CoarsePlan], profile: Profile) -> list[tuple[float, CoarsePlan]]:
    """Outlines that fit by their profile, with their closed-form step, fastest first; ties by their words."""
    found = dict.fromkeys(outline for outline in outlines if fits(outline, profile))
    return sorted(
        ((step_s(outline, profile), outline) for outline in found), key=lambda item: (item[0], str(item[1]))
    )
