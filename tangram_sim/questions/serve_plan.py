"""The questions of `tangram serve plan` and `serve compare`: GPUs, replicas and shares of requests."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import SEARCH, about, described, leaves, option, part
from tangram_sim.questions.service_goal import GoalOptions, OfService
from tangram_sim.questions.shared_fields import clusters, models
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from tangram_sim.serving_planners.flow_problem import FlowProblem
    from tangram_sim.serving_planners.offer_file import Offers
    from tangram_sim.serving_planners.problem import RentalProblem
    from tangram_sim.studies.serving_comparison import ServiceComparisonDocument
    from tangram_sim.studies.serving_plan import ServePlanDocument

# What says the same in a problem file, by field.
_IN_FILE = {
    "budget": "`budget_per_hour`",
    "objective": "`kind`",
    "utilisation": "`utilisation`",
    "scenario": "`scenarios`",
    "link_gb_per_s": "`link_gb_per_s`",
    "rate": "`rate` of every type in `workload`",
    "requests": "`requests` of every type in `workload`",
}


@dataclass(frozen=True, slots=True)
class _PlannedService(OfService):
    """Base of questions about planning a service: for models on a fleet, or from a problem file."""

    model: str = field(
        metadata=about(
            "A problem with given throughputs; or models, with `fleet=`.",
            positional="PROBLEM.json|MODEL[,MODEL]",
            suggested=models,
        )
    )
    goal: GoalOptions = field(default=GoalOptions(), metadata=part())
    id: str | None = option(None, "Of a file with several problems, the one with this `id`.")
    fleet: str | None = option(
        None,
        "GPUs on offer: YAML with `gpus` (price_per_hour, available, gpus_per_node); or a cluster: a name, a "
        "file, nodes like H100x8:4+L40Sx4:2.",
        label="GPUs on offer",
        argument="FLEET",
        suggested=clusters,
        basic=True,
    )

    def _problem(self) -> "tuple[RentalProblem | FlowProblem, list[str]]":
        """(the problem in the file, its unknown keys).

        Raises BadInputError for fields that only plans of models use, and if there is no such file.
        """
        from tangram_sim.serving_planners.problem_file import load_problem

        if not self.model.lower().endswith(".json") and not Path(self.model).exists():
            raise BadInputError(
                f"{self.model}: no such problem file; a plan of a model needs `fleet=` and `workload=`"
            )
        for part_ in (self.requests, self.goal):
            for leaf in leaves(type(part_)):
                if leaf.of(part_) != leaf.default:
                    there = _IN_FILE.get(leaf.name)
                    raise BadInputError(
                        f"`{leaf.name}=` belongs to plans of a model, on the GPUs of `fleet=`; "
                        + (
                            f"in {self.model} write {there}"
                            if there
                            else f"throughputs of {self.model} are given"
                        )
                    )
        return load_problem(Path(self.model), self.id)

    def _planned(self, offers: "Offers", limit_s: float | None, planner: str = "milp") -> "ServePlanDocument":
        """The plan of one planner for the models on offered GPUs, within `limit_s` seconds."""
        from tangram_sim.hwdb import load_model
        from tangram_sim.studies.serving_model_plan import plan_service

        hwdb, requests = self.hardware.load(), self.requests
        wanted = self.goal.goal(hwdb, requests.rate)
        if self.goal.objective == "makespan" and requests.rate is not None:
            raise BadInputError(
                f"`rate={requests.rate:g}` means nothing to `objective=makespan`, a batch that is there at "
                "once: give `objective=cost` (the least USD/h that carry the rate) or `objective=goodput` "
                "(the most requests/s), or leave `rate=` out"
            )
        return plan_service(
            {name: load_model(name) for name in name_list(self.model)},
            offers,
            requests.made(wanted.objective),
            hwdb,
            wanted,
            time_limit_s=limit_s,
            planner=planner,
        )

    def _offers(self, fleet: str, priced: bool | None = None) -> "Offers":
        """The GPUs on offer; `priced`: whether each needs a price (None: if there is a budget)."""
        from tangram_sim.serving_planners.offer_file import load_offers

        budget = self.goal.budget is not None
        return load_offers(fleet, self.hardware.load(), priced=budget if priced is None else priced)


@described
@dataclass(frozen=True, slots=True)
class ServePlanQuestion(_PlannedService):
    """Choose GPUs, replicas and shares of requests; shows a bound and the best plans of single GPU kinds.

    With PROBLEM.json the throughputs in it are used; with models those of the cost layer, on the GPUs of
    --fleet for the requests of --workload, and the plan is simulated.
    """

    VERB: ClassVar[str] = "serve plan"

    def answer(self, *, left_s: float | None = None) -> "ServePlanDocument":
        """The plan; if there is none its `status` is infeasible, with the `reason`.

        `left_s`: seconds left of the time limit. Raises BadInputError, UnknownNameError, InfeasibleError.
        """
        limit_s = self.time_limit_s if left_s is None else left_s
        if self.fleet is not None:
            return self.with_answer(self._planned(self._offers(self.fleet), limit_s))
        from tangram_sim.studies.serving_plan import plan_problem

        given, ignored = self._problem()
        return self.with_answer(plan_problem(given, limit_s, ignored))


@described
@dataclass(frozen=True, slots=True)
class ServeCompareQuestion(_PlannedService):
    """Ask several planners the same question, and evaluate all plans in the same way.

    Plans for models on --fleet are simulated; plans for PROBLEM.json are evaluated with its throughputs.
    """

    VERB: ClassVar[str] = "serve compare"

    planners: tuple[str, ...] = option(
        (),
        "Of milp, hexgen, melange and names of GPUs (that kind alone).",
        unset="all",
        reads=name_list,
        group=SEARCH,
        basic=True,
    )

    def answer(self, *, left_s: float | None = None) -> "ServiceComparisonDocument":
        """Each planner's plan. Raises BadInputError, UnknownNameError; InfeasibleError if there is none."""
        from tangram_sim.errors import InfeasibleError

        found = self._compared(self.time_limit_s if left_s is None else left_s)
        if all(each.played is None for each in found.planners.values()):
            reasons = "\n".join(
                f"{name}: {each.status}: {each.reason}" for name, each in found.planners.items()
            )
            where = "" if self.fleet is None else f" on {self.fleet}"
            raise InfeasibleError(f"no planner has a service for {self.model}{where}\n{reasons}")
        return self.with_answer(found)

    def _compared(self, limit_s: float | None) -> "ServiceComparisonDocument":
        from tangram_sim.planners.deadline import Deadline
        from tangram_sim.serving_planners.peers import planner_names
        from tangram_sim.serving_planners.problem import RentalProblem
        from tangram_sim.studies.serving_comparison import compare_problem, compare_services

        if self.fleet is None:
            given, ignored = self._problem()
            if not isinstance(given, RentalProblem):
                raise BadInputError(
                    f"{self.model}: planners of replicas are compared; `serve plan` shows a flow beside its "
                    "rivals"
                )
            return compare_problem(given, self.planners, limit_s, ignored)
        known = planner_names(self._offers(self.fleet, priced=False).gpus)
        for name in self.planners:
            if name not in known:
                raise unknown_name("planner", name, known)
        asked, fleet = self.planners or tuple(known), self.fleet
        limit, turns = Deadline.of(limit_s), iter(range(len(asked), 0, -1))
        return compare_services(
            lambda planner: self._planned(self._offers(fleet), limit.turn_s(next(turns)), planner),
            asked,
            self.goal.settled(self.requests.rate),
        )
