"""The planner API: a planner of whole clusters, and the prices it may use.

`plan(model, cluster, job, price) -> Plan`. Entry-point group: `tangram_sim.planners`; Tangram and its peers
are registered there like third-party planners. `tangram_sim.planners.contract` checks an implementation.
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
    """Raised when a planner's own limits keep it from finding a plan; other planners may find one."""


@dataclass(frozen=True)
class Price(TrainingProblem):
    """Prices of plans and a profile of layers for one model, cluster and job: what a planner may use.

    `job.dtype` is settled. Results are cached. When the `deadline` passes, return the best plan so far, or
    raise `no_answer`.
    """

    deadline: Deadline = field(default_factory=Deadline, compare=False)
    jobs: int = field(default=1, compare=False)  # processes that a search may use; 0: all cores

    @cached_property
    def lowering(self) -> Lowering:
        """Lowers pipelines to steps with prices of stages and links."""
        return Lowering(Placement(self.cluster, self.hwdb), StagePrices(self.model, self.job, self.hwdb))

    @cached_property
    def profile(self) -> Profile:
        """Seconds and bytes of single layers by GPU kind, as if measured on the cluster."""
        islands, _ = usable_islands(self.cluster, self.job, self.hwdb, SearchOptions())
        return SimulatedProfile(self.model, self.cluster, self.job, self.hwdb, islands, self.lowering.prices)

    def lowered(self, plan: Plan) -> LoweredPlan:
        """A plan lowered for simulation. Raises BadInputError for inconsistent decisions."""
        return lower_plan(plan, self.lowering)

    def step_s(self, plan: Plan) -> float:
        """Simulated seconds of a step without shared links; inf where it does not fit memory."""
        lowered = self.lowered(plan)
        return lowered.step_s() if lowered.fits() else float("inf")


class WholeClusterPlanner(ABC):
    """Base class of whole-cluster planners: deterministic, and constructed without arguments.

    `limits` says in one sentence what the planner does not consider; it is shown where no plan is found.
    """

    name: str
    limits: str
    compared: bool = True  # whether `compare` asks it unless told which planners to ask

    @abstractmethod
    def plan(self, model: Model, cluster: Cluster, job: Job, price: Price) -> Plan:
        """A plan for exactly this model, cluster and job that fits memory.

        Raises InfeasibleError saying why there is none; CannotAnswerError where the planner's limits are why.
        """


def best_that_fits(outlines: Iterable[CoarsePlan], price: Price, planner: WholeClusterPlanner) -> Plan:
    """The plan of the first coarse plan, in the order given, that fits memory when simulated.

    At least one is tried even after the deadline. Raises CannotAnswerError where none fits.
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
    """The error to raise without a plan: the time limit if that was it, else `why` and the limits."""
    if price.deadline.stopped:
        return CannotAnswerError(
            f"{planner.name}: no plan found ({price.deadline.why()}); raise `time_limit_s=`"
        )
    return CannotAnswerError(f"{planner.name}: {why}; {planner.limits}")


def ranked(outlines: Iterable[CoarsePlan], profile: Profile) -> list[tuple[float, CoarsePlan]]:
    """(closed-form seconds, coarse plan) of those that fit by the profile, fastest first; ties by text."""
    found = dict.fromkeys(outline for outline in outlines if fits(outline, profile))
    return sorted(
        ((step_s(outline, profile), outline) for outline in found), key=lambda item: (item[0], str(item[1]))
    )
