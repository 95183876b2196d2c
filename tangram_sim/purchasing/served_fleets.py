"""Serving plans on fleets of nodes: GPUs by kind, and the requests that nodes can serve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing.billing import Terms, bill
from tangram_sim.purchasing.fleets import Fleet, Member
from tangram_sim.purchasing.pricefile import Prices
from tangram_sim.serving.workload import Workload
from tangram_sim.serving_planners.answer import Unanswered
from tangram_sim.serving_planners.milp import solve
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.serving_planners.offers import GpuOffer
from tangram_sim.serving_planners.problem import RentalProblem
from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.candidate_loop import CandidateJudge
from tangram_sim.studies.serving_model_plan import plan_service
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.studies.serving_question import COST, GOODPUT, ServiceGoal, ServiceQuestion
from tangram_sim.studies.serving_whatif import good_rps

_BOUND_S = 5.0  # for a bound: what is proven by then holds
_WEIGHED_FLOP_PER_S = 1e14  # one of the units in which kinds are weighed against each other


@dataclass(frozen=True)
class ServiceDemand:
    """What to serve: models by name, requests with their arrival times, objective and engine."""

    models: Mapping[str, Model]
    workload: Workload
    goal: ServiceGoal


class FleetServices(CandidateJudge[Fleet, ServePlanDocument]):
    """Judge of serving plans on several fleets; throughputs of replicas are computed once for all fleets."""

    def __init__(self, demand: ServiceDemand, fleets: Sequence[Fleet], hwdb: Hwdb) -> None:
        self.demand, self.hwdb = demand, hwdb
        nodes: dict[str, list[Member]] = {}
        for fleet in fleets:
            for member in fleet.members:
                nodes.setdefault(member.node.gpu.name, []).append(member)
        # Tensor parallelism stays inside a node: of every kind the smallest one counts.
        self.kinds = {
            name: GpuOffer(
                name,
                # What training gives up with a GPU, in place of money: all nodes are paid for anyway.
                max(members[0].node.gpu.peak_flop_per_s("bf16"), members[0].node.gpu.peak_flop_per_s("fp16"))
                / _WEIGHED_FLOP_PER_S
                or 1.0,
                max(_gpus(fleet, name) for fleet in fleets),
                min(_in_groups_of_two(member.node.gpus) for member in members),
                lost_together=max(_in_groups_of_two(member.node.gpus) for member in members),
            )
            for name, members in nodes.items()
        }
        most = ServiceQuestion.of(
            demand.models, Offers(tuple(self.kinds.values())), demand.workload, demand.goal
        )
        self.priced = most.priced("milp", hwdb)

    def planned(self, subject: Fleet, deadline: Deadline | None = None) -> ServePlanDocument:
        """The plan that serves the most requests/s on all nodes of a fleet. Raises InfeasibleError."""
        del deadline  # replicas are priced already
        return self._on_kinds(subject, GOODPUT, tuple(self.kinds))

    def value(self, found: ServePlanDocument) -> float:
        """Good requests per second."""
        return good_rps(found)

    def includes(self, subject: Fleet, other: Fleet) -> bool:
        """Whether a fleet contains all nodes of another; additional nodes may stay idle."""
        return has_all(subject, other)

    def carrying(self, fleet: Fleet) -> list[ServePlanDocument]:
        """Plans that serve the given rate: the cheapest for training, and one on each GPU kind alone.

        Raises InfeasibleError if all nodes together cannot serve the rate.
        """
        found = [self._on_kinds(fleet, COST, tuple(self.kinds))]
        for kind in self.kinds:
            alone = {name for name, count in found[0].gpus_used.items() if count} == {kind}
            if _gpus(fleet, kind) and not alone:
                try:
                    found.append(self._on_kinds(fleet, COST, (kind,)))
                except InfeasibleError:
                    continue
        return found

    def bound(self, subject: Fleet) -> float:
        """Upper bound on the requests/s of any plan on a fleet, at the replicas' computed throughputs."""
        offers, (priced, _) = self._offers(subject, tuple(self.kinds)), self.priced
        demand = self.demand
        goal = replace(demand.goal, objective=GOODPUT, budget_usd_per_hour=None)
        question = ServiceQuestion.of(demand.models, offers, demand.workload, goal)
        problem, _ = read_problem(question.problem(priced), "the offers")
        assert isinstance(problem, RentalProblem)
        answer = solve(problem, time_limit_s=_BOUND_S)
        if isinstance(answer, Unanswered):
            return 0.0 if answer.proven else inf
        return float(question.amounts.sum()) / answer.bound

    def _offers(self, fleet: Fleet, kinds: Sequence[str]) -> Offers:
        """The GPUs of the given kinds that a fleet has; other kinds count as none."""
        return Offers(
            tuple(
                replace(offer, available=_gpus(fleet, offer.name) if offer.name in kinds else 0)
                for offer in self.kinds.values()
            )
        )

    def _on_kinds(self, fleet: Fleet, objective: str, kinds: Sequence[str]) -> ServePlanDocument:
        """A plan on a fleet's GPUs of these kinds, and its simulation. Raises InfeasibleError."""
        demand = self.demand
        found = plan_service(
            demand.models,
            self._offers(fleet, kinds),
            demand.workload,
            self.hwdb,
            replace(demand.goal, objective=objective, budget_usd_per_hour=None),
            priced=self.priced,
        )
        if found.status == "infeasible":
            raise InfeasibleError(found.reason)
        return found


def taken_nodes(fleet: Fleet, plan: ServePlanDocument) -> dict[str, int]:
    """Number of whole nodes, by member, that a plan's GPUs occupy; members listed first are used first."""
    left, found = dict[str, float](), dict[str, int]()
    for kind, count in plan.gpus_used.items():  # replicas spread so that a lost node is borne fill no node
        hosts = sum(host.count * host.gpus for host in plan.hosts if host.gpu == kind)
        left[kind] = float(max(count, hosts))
    for member in fleet.members:
        if member.label in found:
            raise BadInputError(f"{member.label} is in the fleet twice; name each kind of node once")
        kind = member.node.gpu.name
        held = _in_groups_of_two(member.node.gpus)
        taken = min(member.nodes, ceil(max(0.0, left.get(kind, 0.0)) / held))
        left[kind] = left.get(kind, 0.0) - taken * held
        found[member.label] = taken
    return {label: count for label, count in found.items() if count}


def price_lacks(fleets: Sequence[Fleet], prices: Prices, paid: Terms) -> tuple[str, ...]:
    """A note naming the missing figures without which fleets have no cost; () if none is missing."""
    bills = [
        bill(fleet.members, [member.nodes for member in fleet.members], prices, paid) for fleet in fleets
    ]
    lacking = dict.fromkeys(figure for charged in bills for figure in charged.missing)
    return (f"no dollars where these are missing: {', '.join(lacking)}",) if lacking else ()


def has_all(fleet: Fleet, other: Fleet) -> bool:
    """Whether a fleet contains all nodes of another."""
    mine = {member.label: member.nodes for member in fleet.members}
    return all(mine.get(member.label, 0) >= member.nodes for member in other.members)


def _gpus(fleet: Fleet, kind: str) -> int:
    """Number of GPUs of a kind in a fleet that replicas can use."""
    return sum(
        member.nodes * _in_groups_of_two(member.node.gpus)
        for member in fleet.members
        if member.node.gpu.name == kind
    )


def _in_groups_of_two(gpus: int) -> int:
    """Largest power of two up to `gpus`: a replica uses 1, 2, 4, ... GPUs of a node."""
    return 1 << (gpus.bit_length() - 1)
