"""Planners of a service side by side: the same question, every plan played by the same simulator."""

from collections.abc import Callable, Sequence

from pydantic import Field

from tangram_sim.errors import TangramError
from tangram_sim.studies.documents import SCHEMA_VERSION, Document
from tangram_sim.studies.serving_plan import ServePlanDocument


class ServicePlannerDocument(Document):
    """What one planner achieved; figures are null where it has no plan."""

    status: str = Field(description="optimal or feasible (of its own choices), or cannot answer")
    promised: float | None = Field(None, description="makespan in seconds, or requests a second")
    played: float | None = Field(None, description="the same as the simulator plays it")
    error: float | None = Field(None, description="played / promised - 1")
    cost_per_hour: float | None = None
    good_share: float | None = None
    gpus_used: dict[str, int] = Field({})
    planning_cpu_s: float = 0.0
    reason: str = ""


class ServiceComparisonDocument(Document):
    """Output of `tangram serve compare --json`: the plan of each planner for one question."""

    schema_version: str = SCHEMA_VERSION
    objective: str
    planners: dict[str, ServicePlannerDocument]


def compare_services(
    plan: Callable[[str], ServePlanDocument], planners: Sequence[str], objective: str
) -> ServiceComparisonDocument:
    """Ask `plan` for the plan of each planner; one without a plan says why."""
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
    return ServicePlannerDocument(
        status=found.status,
        promised=found.replay.promised,
        played=found.replay.played,
        error=found.replay.error,
        cost_per_hour=found.cost_per_hour,
        good_share=found.replay.good_share,
        gpus_used=found.gpus_used,
        planning_cpu_s=found.planning_cpu_s,
    )
