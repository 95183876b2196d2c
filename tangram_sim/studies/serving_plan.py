"""Service plans for given throughputs, as one document."""

import time
from collections.abc import Sequence
from math import inf
from typing import Any, Literal

from pydantic import Field

from tangram_sim.file_parts import FiniteOrNull
from tangram_sim.serving_planners.answer import Rental
from tangram_sim.serving_planners.flow import PlacedFlow, place, single_kind_flows
from tangram_sim.serving_planners.flow_problem import FlowProblem
from tangram_sim.serving_planners.node_loss import rented_usd
from tangram_sim.serving_planners.problem import COST, MAKESPAN, NODE, WHOLE, RentalProblem
from tangram_sim.serving_planners.rental import RentalAnswer, rent
from tangram_sim.serving_planners.rivals import value_of
from tangram_sim.studies.documents import Document, VersionedAnswer
from tangram_sim.studies.serving_answer import ReplicaPowerDocument
from tangram_sim.studies.serving_question import AskedType

_FLOW_S, _LARGE_FLOW_S = 3.0, 12.0  # seconds to place layers unless somebody asks for others
_MANY_NODES = 9  # that take the longer


class ReplicaCountDocument(Document):
    """A configuration that the plan uses, and how many replicas of it run."""

    configuration: str
    count: int = Field(ge=0)
    gpus: dict[str, int] = Field(description="GPUs of one replica by kind")
    cost_per_hour: float | None = Field(
        description="USD an hour of one replica; null: the price of a kind is not known"
    )


class RivalDocument(Document):
    """The best plan of one kind of GPU alone."""

    gpu: str
    capped: bool = Field(description="within what is available of it; else the budget alone limits it")
    value: FiniteOrNull = Field(description="the objective; null where it cannot be done")
    optimal: bool = Field(description="whether that value is proven best, or that there is none")


class LeverDocument(Document):
    """The best plan without one of three levers: mix of GPU kinds, parallelism, or shares by request type."""

    value: FiniteOrNull = Field(description="the objective; null where it cannot be done")
    worth: FiniteOrNull = Field(description="how much worse, as a share of the plan's objective")


class PathDocument(Document):
    """One route through the nodes, and the share of the requests that takes it."""

    nodes: list[int]
    share: float


class PlayedPlanDocument(Document):
    """The plan's result in simulation: times in seconds, rates in requests per second."""

    promised: float = Field(description="the plan's own makespan in seconds, or requests a second")
    played: float = Field(description="what the simulator makes of it")
    error: float = Field(description="played / promised - 1")
    good_share: float
    ttft_p99_s: float
    tpot_p99_s: float
    simulate_cpu_s: float
    verdict: str = Field(
        "", description="Why the replicas cannot keep up with the arrivals; empty where they can."
    )


class PlayedScenarioDocument(PlayedPlanDocument):
    """What is left of the plan in a scenario, simulated under the scenario's requests."""

    name: str
    replicas: int = Field(description="that are left")
    lost: dict[str, int] = Field({}, description="replicas by configuration that a lost node takes along")


class HostDocument(Document):
    """Identical nodes of a plan that tolerates the loss of any one, and the replicas on each."""

    gpu: str
    count: int
    gpus: int = Field(description="of one node")
    replicas: dict[str, int] = Field(description="by configuration")


class PlanEnergyDocument(ReplicaPowerDocument):
    """Mean power of a plan's replicas, and joules per token; the site is GPUs and hosts times PUE."""

    site_w: float = Field(description="(gpu_w + host_w) times the power usage effectiveness")
    site_joules_per_output_token: float
    kwh: float = Field(description="of the site: for the whole batch, or in a day at the rate")
    kg_co2e: float | None = Field(None, description="of these kWh; null where no intensity is given")
    basis: str = Field(description="what the watts rest on")


class RentedDocument(Document):
    """What a plan of a service rents; where there is no plan, why."""

    reason: str = Field("", description="why there is no plan")
    cost_per_hour: float | None = Field(
        None,
        description="USD an hour of the replicas, and of idle GPUs where whole nodes are rented; null also "
        "where the price of a kind is not known",
    )
    gpus_used: dict[str, int] = Field({})
    planning_cpu_s: float = 0.0


class ServePlanDocument(RentedDocument, VersionedAnswer):
    """Output of `tangram serve plan --json`; figures that do not belong to the objective are null."""

    status: Literal["optimal", "feasible", "infeasible"]
    objective: Literal["makespan", "cost", "goodput", "tokens"]
    makespan_s: float | None = None
    tokens_per_s: float | None = None
    throughput_rps: float | None = Field(None, description="requests a second")
    bound: float | None = Field(None, description="no plan has a better objective")
    gap: float | None = Field(None, description="the most by which the objective could be better, as a share")
    replicas: list[ReplicaCountDocument] = Field([])
    hosts: list[HostDocument] = Field([], description="where any one lost node is borne")
    shares: dict[str, list[float]] = Field({}, description="by configuration: share of every request type")
    placement: list[tuple[int, int] | None] = Field([], description="flow: layers [first, end) by node")
    nodes: list[str] = Field([], description="flow: kind of every node")
    paths: list[PathDocument] = Field([], description="flow: ways through the nodes")
    rivals: list[RivalDocument] = Field([])
    levers: dict[str, LeverDocument] = Field({})
    interval: tuple[float, float] | None = Field(
        None, description="90 % interval where throughputs are predicted"
    )
    types: list[AskedType] = Field([], description="of a plan of a model: its types of request")
    replay: PlayedPlanDocument | None = Field(
        None, description="of a plan of a model: the simulator's verdict"
    )
    scenario_replays: list[PlayedScenarioDocument] = Field(
        [], description="of a plan of a model: the simulator's verdict in each scenario"
    )
    energy: PlanEnergyDocument | None = Field(
        None, description="of a plan of a model on GPUs whose power limits are known"
    )
    fleet: dict[str, Any] | None = Field(None, description="of a plan of a model: for `serve simulate`")
    assumptions: dict[str, Any] = Field({})
    notes: list[str] = Field([])


def ignored_keys(ignored: Sequence[str]) -> list[str]:
    """A note that names unknown keys of a problem file; [] if there are none."""
    return [f"keys that mean nothing here: {', '.join(ignored)}"] if ignored else []


def plan_problem(
    problem: RentalProblem | FlowProblem,
    time_limit_s: float | None = None,
    ignored: Sequence[str] = (),
    *,
    beside: bool = True,
) -> ServePlanDocument:
    """The best plan of a problem with given throughputs, and its bound; `beside` adds rivals and levers.

    `ignored`: unknown keys of the file; the answer names them. Without a plan the document has the status
    "infeasible" and a reason.
    """
    begun = time.process_time()
    if isinstance(problem, FlowProblem):
        usual_s = _FLOW_S if problem.host < _MANY_NODES else _LARGE_FLOW_S
        found = _flow_document(problem, usual_s if time_limit_s is None else time_limit_s)
    else:
        found = _rental_document(problem, rent(problem, time_limit_s, beside=beside))
    return found.with_fields(
        notes=[*found.notes, *ignored_keys(ignored)], planning_cpu_s=time.process_time() - begun
    )


def _rental_document(problem: RentalProblem, answer: RentalAnswer) -> ServePlanDocument:
    objective: Literal["makespan", "cost"] = "makespan" if problem.objective == MAKESPAN else "cost"
    rivals = [
        RivalDocument.from_objects(
            rival,
            optimal=rival.answer.optimal if isinstance(rival.answer, Rental) else rival.answer.proven,
        )
        for rival in answer.rivals
    ]
    assumptions = _assumptions(problem)
    plan = answer.plan
    if plan is None:
        return ServePlanDocument(
            status="infeasible",
            objective=objective,
            reason=answer.reason
            if answer.proven
            else f"no plan was found, and none is ruled out: {answer.reason}",
            rivals=rivals,
            assumptions=assumptions,
        )
    used = list(zip(problem.configurations, plan.counts, strict=True))
    return ServePlanDocument(
        status="optimal" if plan.optimal else "feasible",
        objective=objective,
        makespan_s=plan.value if objective == "makespan" else None,
        cost_per_hour=rented_usd(problem, plan.counts, plan.nodes),
        throughput_rps=problem.total / plan.value if objective == "makespan" else problem.total,
        bound=plan.bound,
        gap=plan.gap,
        replicas=[
            ReplicaCountDocument(
                configuration=configuration.name,
                count=count,
                gpus={gpu.name: k for gpu, k in zip(problem.gpus, configuration.gpus, strict=True) if k},
                cost_per_hour=configuration.usd_per_hour,
            )
            for configuration, count in used
            if count
        ],
        hosts=[
            HostDocument(
                gpu=problem.gpus[node.gpu].name,
                count=node.count,
                gpus=node.gpus,
                replicas={problem.configurations[c].name: held for c, held in node.replicas},
            )
            for node in plan.nodes
        ],
        shares={
            configuration.name: list(row)
            for configuration, row in zip(problem.configurations, plan.shares, strict=True)
        },
        gpus_used={
            gpu.name: sum(configuration.gpus[n] * count for configuration, count in used)
            for n, gpu in enumerate(problem.gpus)
        },
        rivals=rivals,
        levers={
            lever.name: LeverDocument(
                value=value_of(lever.answer), worth=value_of(lever.answer) / plan.value - 1.0
            )
            for lever in answer.levers
        },
        assumptions=assumptions,
    )


def _assumptions(problem: RentalProblem) -> dict[str, Any]:
    """How the terms of the problem were interpreted, by name."""
    said: dict[str, Any] = {
        "throughputs": "given; a replica that serves several types divides its time between them",
        "rivals": "one kind alone under the same budget; capped: also under what is available",
        "levers": "composition: one kind; parallelism: replicas of one number of GPUs; request_shares: every "
        "replica the same mix of types",
    }
    if problem.objective == COST:
        said["utilisation"] = problem.utilisation
        said["slices"] = problem.slices or "none: types split freely"
    if any(configuration.role != WHOLE for configuration in problem.configurations):
        said["roles"] = (
            "shares of decoding configurations add up to what is prefilled apart; any prefilling replica "
            "sends to any decoding one over a link of "
            + ("no limit" if problem.link_bytes_per_s == inf else f"{problem.link_bytes_per_s:.4g} bytes/s")
        )
    if problem.scenarios:
        said["scenarios"] = [
            {
                "name": scenario.name,
                "lost": [problem.configurations[c].name for c in sorted(scenario.lost)]
                + [NODE] * scenario.any_node,
                "coverage": scenario.coverage,
                "rate_factor": scenario.rate_factor,
                "price_factors": {
                    gpu.name: factor
                    for gpu, factor in zip(problem.gpus, scenario.price_factors, strict=False)
                },
            }
            for scenario in problem.scenarios
        ]
    return said


def _flow_document(problem: FlowProblem, time_limit_s: float) -> ServePlanDocument:
    answer: PlacedFlow | None = place(problem, time_limit_s)
    rivals = [
        RivalDocument(
            gpu=single_kind_flow.kind,
            capped=True,
            value=single_kind_flow.tokens_per_s or None,
            optimal=single_kind_flow.optimal,
        )
        for single_kind_flow in single_kind_flows(problem, 0.3 * time_limit_s)
    ]
    kinds = [node.kind for node in problem.nodes]
    assumptions = {
        "inference": "partial: a node that ends at layer e may feed any node that holds layer e",
        "rivals": "the nodes of one kind alone",
    }
    if answer is None:
        return ServePlanDocument(
            status="infeasible",
            objective="tokens",
            reason=_why_no_flow(problem),
            nodes=kinds,
            rivals=rivals,
            assumptions=assumptions,
        )
    return ServePlanDocument(
        status="optimal" if answer.optimal else "feasible",
        objective="tokens",
        tokens_per_s=answer.tokens_per_s,
        bound=answer.bound,
        gap=answer.gap,
        placement=list(answer.placement),
        nodes=kinds,
        paths=[PathDocument(nodes=list(path.nodes), share=path.share) for path in answer.paths],
        rivals=rivals,
        assumptions=assumptions,
    )


def _why_no_flow(problem: FlowProblem) -> str:
    holdable = sum(len(node.tokens_per_s) for node in problem.nodes)
    if holdable < problem.layers:
        return f"all nodes together hold {holdable} layers at most, the model has {problem.layers}"
    return (
        "no placement lets tokens pass from the host through all layers and back: a link or a node carries 0"
    )
