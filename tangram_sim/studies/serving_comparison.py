"""Compare planners of a service on the same question, with every plan evaluated the same way.

Plans of models are simulated. Plans of problems with given throughputs are evaluated by these: a batch lasts
as long as its busiest replica, with the plan's shares.
"""

from collections.abc import Callable, Sequence

from pydantic import Field

from tangram_sim.errors import TangramError, unknown_name
from tangram_sim.planners.deadline import Deadline
from tangram_sim.serving_planners.problem import MAKESPAN, WHOLE, RentalProblem
from tangram_sim.studies.documents import VersionedAnswer
from tangram_sim.studies.serving_plan import RentedDocument, ServePlanDocument, ignored_keys, plan_problem


class ServicePlannerDocument(RentedDocument):
    """What one planner achieved; figures are null where it has no plan."""

    status: str = Field(description="optimal or feasible (of its own choices), or cannot answer")
    promised: float | None = Field(None, description="makespan in seconds, or requests a second")
    played: float | None = Field(None, description="the same as the simulator plays it")
    error: float | None = Field(None, description="played / promised - 1")
    good_share: float | None = None


class ServiceComparisonDocument(VersionedAnswer):
    """Output of `tangram serve compare --json`: the plan of each planner for one question."""

    objective: str
    planners: dict[str, ServicePlannerDocument]
    notes: list[str] = Field([])


def compare_services(
    plan: Callable[[str], ServePlanDocument], planners: Sequence[str], objective: str
) -> ServiceComparisonDocument:
    """The plan of each planner, from calling `plan` with its name; one without a plan states why."""
    return ServiceComparisonDocument(
        objective=objective, planners={name: _row(plan, name) for name in planners}
    )


def _row(plan: Callable[[str], ServePlanDocument], name: str) -> ServicePlannerDocument:
    try:
        found = plan(name)
    except TangramError as error:
        return ServicePlannerDocument(status="cannot answer", reason=str(error))
    if found.replay is None:
        return ServicePlannerDocument(
            status="cannot answer", reason=found.reason, planning_cpu_s=found.planning_cpu_s
        )
    return ServicePlannerDocument.from_objects(found, found.replay)


def problem_planners(problem: RentalProblem) -> dict[str, RentalProblem]:
    """Planners for a problem with given throughputs: by name, the problem restricted to what each may use.

    `milp` may use all configurations; `melange` for each kind alone the smallest that serves anything; the
    name of a kind only that kind. Each has the whole budget and all available GPUs.
    """
    alone: dict[str, list[int]] = {}
    for c, configuration in enumerate(problem.configurations):
        if len(configuration.kinds()) == 1 and configuration.role == WHOLE and any(configuration.rps):
            alone.setdefault(problem.gpus[min(configuration.kinds())].name, []).append(c)
    least = [min(mine, key=lambda c: problem.configurations[c].gpu_count) for mine in alone.values()]
    allowed = {"melange": least, **alone}
    return {"milp": problem} | {
        name: problem.keeping(frozenset(mine)) for name, mine in allowed.items() if mine
    }


def compare_problem(
    problem: RentalProblem,
    planners: Sequence[str],
    time_limit_s: float | None,
    ignored: Sequence[str] = (),
) -> ServiceComparisonDocument:
    """The plan of each planner for a problem with given throughputs. Raises UnknownNameError.

    `ignored` are keys of its file that were not understood; the answer names them.
    """
    known = problem_planners(problem)
    for name in planners:
        if name not in known:
            raise unknown_name("planner", name, known)
    chosen = planners or tuple(known)
    batch = problem.objective == MAKESPAN
    rows, limit = dict[str, ServicePlannerDocument](), Deadline.of(time_limit_s)
    for name in chosen:
        mine = known[name]
        found = plan_problem(mine, limit.turn_s(len(chosen) - len(rows)), beside=False)
        promised = found.makespan_s if batch else found.cost_per_hour
        played = _busiest_s(mine, found) if batch else promised
        rows[name] = ServicePlannerDocument.from_objects(
            found,
            promised=promised,
            played=played if promised else None,
            error=played / promised - 1.0 if promised and played else None,
            good_share=1.0 if promised else None,
        )
    return ServiceComparisonDocument(objective=problem.objective, planners=rows, notes=ignored_keys(ignored))


def _busiest_s(problem: RentalProblem, found: ServePlanDocument) -> float | None:
    """Seconds until the busiest replica of a batch plan finishes its share."""
    counts = {replica.configuration: replica.count for replica in found.replicas}
    return max(
        (
            sum(
                kind.amount * share / rps
                for kind, share, rps in zip(
                    problem.types, found.shares[configuration.name], configuration.rps, strict=True
                )
                if share > 0
            )
            / counts[configuration.name]
            for configuration in problem.configurations
            if counts.get(configuration.name)
        ),
        default=None,
    )
