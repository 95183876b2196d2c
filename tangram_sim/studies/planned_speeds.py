"""Speeds of a replay from the planner: one plan per fleet, and the state moved on a change of plan."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tangram_sim.availability import Availability
from tangram_sim.clusters import Cluster, Network
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import NoSearch
from tangram_sim.planners.search_memory import SearchMemory
from tangram_sim.reliability.moves import assign, moves, transfer_seconds
from tangram_sim.reliability.spot.rerouting import rerouted_step_s
from tangram_sim.reliability.spot.speeds import Fleet, Option
from tangram_sim.reliability.spot.transitions import Transitions
from tangram_sim.reliability.state import StateMap, atom_bytes, copies, state_of
from tangram_sim.studies import api
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.number_formats import resolve
from tangram_sim.studies.planstate import replicas_of
from tangram_sim.studies.replaying import ReplayQuestion
from tangram_sim.training.job import Job
from tangram_sim.training.problem import TrainingProblem

SEARCHES = ("auto", "uniform", "full")
CHECKPOINT_STEPS = 50
KINDS = ("mixed", "ignored")  # beside the name of one kind
_UNIFORM = SearchOptions()
_FULL = SearchOptions(replicate=False, spanning=False)


@dataclass(frozen=True)
class FleetPlan:
    """The plan for one fleet: its speed, and where its state lies. Nodes are numbered kind by kind."""

    option: Option
    document: PlanDocument
    state: StateMap
    kinds: tuple[str, ...]  # of every node number


@dataclass(frozen=True)
class PlannedSpeeds(TrainingProblem):
    """Speeds from plans by fleet. `kinds`: `mixed`, `ignored` (one layout over all), or the one to use."""

    search: str = "auto"
    kinds: str = "mixed"
    whole_fleet: int = 0  # nodes that take the job's batch, others in proportion; 0: all take it
    plans: dict[Fleet, FleetPlan | None] = field(default_factory=dict)
    by_label: dict[str, FleetPlan] = field(default_factory=dict)
    reasons: dict[Fleet, str] = field(default_factory=dict)
    memory: SearchMemory = field(default_factory=SearchMemory)  # fleets have most parts of islands in common

    def groups_by_kind(self) -> dict[str, int]:
        """Index of the cluster's group for each kind, by the name of the group, its GPU or its node."""
        found: dict[str, int] = {}
        for index, group in enumerate(self.cluster.groups):
            for name in (group.name, group.node.gpu.name, group.node.name):
                if name:
                    found.setdefault(name, index)
        if len(self.cluster.groups) == 1:
            found.setdefault("", 0)
        return found

    def require_kinds(self, history: Availability) -> None:
        """Raise BadInputError or UnknownNameError for kinds of the history without a group."""
        known = self.groups_by_kind()
        for kind in history.kinds:
            if kind not in known:
                if not kind:
                    raise BadInputError(
                        f"the trace names no kinds and {self.cluster.name} has {len(self.cluster.groups)} "
                        "groups; add a column kind, or give a cluster of one group"
                    )
                raise unknown_name("kind of node", kind, [name for name in known if name])
        if self.kinds not in (*KINDS, *history.kinds):
            raise unknown_name("`kinds=`", self.kinds, (*KINDS, *history.kinds))

    def best(self, fleet: Fleet) -> Option | None:
        """The best plan for a fleet, or the plan of a smaller fleet it contains where that is faster."""
        found = self._plan(self._seen(fleet))
        return found.option if found else None

    def all_on(self, fleet: Fleet) -> Sequence[Option]:
        """The plans known so far that fit the fleet, fastest first; the fleet's own plan is among them."""
        self.best(fleet)
        counts = dict(fleet)
        fitting = {plan.option for plan in self.plans.values() if plan and plan.option.fits(counts)}
        return sorted(fitting, key=lambda option: (-option.samples_per_s, option.label))

    def templates(self, fleet: Fleet) -> Option | None:
        """The planner's own plan for the fleet, whose pipelines may differ."""
        return self.best(fleet)

    def redundant(self, fleet: Fleet) -> Option | None:
        """None: the planner makes no plans that hold stages twice."""
        del fleet
        return None

    def resized(self, option: Option, fleet: Fleet) -> Option | None:
        """The plan with as many replicas as the fleet holds, at equal speed per replica; None for none."""
        replicas = self._replicas(option)
        if any(count % replicas for _, count in option.nodes):
            return None
        share = {kind: count // replicas for kind, count in option.nodes}
        most = min((dict(fleet).get(kind, 0) // count for kind, count in share.items()), default=0)
        if most < 1:
            return None
        if most == replicas:
            return option
        found = replace(
            option,
            label=f"{most}/{replicas} of {option.label}",
            samples_per_s=option.samples_per_s * most / replicas,
            nodes=tuple((kind, count * most) for kind, count in share.items()),
            copies=min(option.copies, most),
        )
        self.by_label.setdefault(found.label, self.by_label[option.label])
        return found

    def rerouted(self, option: Option, dead: Sequence[int]) -> float:
        """Samples/s with passes of `dead` ranks rerouted (first pipeline simulated); 0 if it cannot run."""
        document = self.by_label[option.label].document
        stages = sorted(
            (stage for stage in document.stages if stage.pipeline == 0 and stage.part == 0),
            key=lambda stage: stage.stage,
        )
        forward, backward = ([getattr(s, name) for s in stages] for name in ("forward_s", "backward_s"))
        replicas, count = self._replicas(option), document.pipelines[0].microbatches
        whole = rerouted_step_s(forward, backward, replicas, count, ())
        now = rerouted_step_s(forward, backward, replicas, count, dead)
        around = max(0.0, document.step_s - whole)
        return option.samples_per_s * (whole + around) / (now + around) if now else 0.0

    def short_of_nodes(self, fleet: Fleet) -> Option | None:
        """The fastest plan of any larger fleet, as an upper bound on running short of nodes."""
        plans = [plan.option for plan in self.plans.values() if plan and not plan.option.fits(dict(fleet))]
        fastest = max(plans, key=lambda option: option.samples_per_s, default=None)
        return replace(fastest, nodes=fleet) if fastest else None

    def _replicas(self, option: Option) -> int:
        return max(1, option.pipelines)

    def _seen(self, fleet: Fleet) -> Fleet:
        """The part of the fleet to plan for: all of it, or the nodes of the one kind that `kinds` names."""
        if self.kinds == "mixed":
            return fleet
        if self.kinds == "ignored":
            return tuple((kind, count) for kind, count in fleet if count)
        return tuple((kind, count) for kind, count in fleet if kind == self.kinds)

    def _plan(self, fleet: Fleet) -> FleetPlan | None:
        if fleet in self.plans:
            return self.plans[fleet]
        found = self._asked(fleet) if fleet else None
        # A fleet is worth no less than one that it contains: its nodes of one kind are asked about, too.
        counts = dict(fleet)
        if len(fleet) > 1 and self.kinds == "mixed":
            for kind, count in fleet:
                self._plan(((kind, count),))
        for other in self.plans.values():
            if (
                other
                and other.option.fits(counts)
                and (found is None or other.option.samples_per_s > found.option.samples_per_s)
            ):
                found = other
        self.plans[fleet] = found
        return found

    def _asked(self, fleet: Fleet) -> FleetPlan | None:
        """Plan a fleet; None where nothing fits, with the reason in `reasons`."""
        cluster, job = self.sub_cluster(fleet), self._job_of(fleet)
        mixed = len(fleet) > 1 and self.kinds != "ignored"
        uniform = self.search == "uniform" or (self.search == "auto" and not mixed) or self.kinds == "ignored"
        try:
            wishes, deadline = (_UNIFORM, NoSearch()) if uniform else (_FULL, None)
            with self.memory.in_use():
                result = api.plan(self.model, cluster, job, wishes=wishes, hwdb=self.hwdb, deadline=deadline)
        except InfeasibleError as error:
            self.reasons[fleet] = str(error)
            return None
        document, plan = result.document, result.forecast.plan
        kinds = tuple(kind for kind, count in fleet for _ in range(count))
        state = state_of(plan, Placement(cluster, self.hwdb).node_of)
        used = Counter(kinds[node] for node in state.nodes)
        depth = max(len(pipeline.stages) for pipeline in plan.pipelines)
        label = f"{' + '.join(f'{count} {kind}'.strip() for kind, count in fleet)}: {_words(document)}"
        option = Option(
            label,
            samples_per_s=job.global_batch / document.step_s,
            samples_per_step=float(job.global_batch),
            nodes=tuple(sorted(used.items())),
            pipelines=replicas_of(plan),
            stages=depth,
            copies=min(copies(state).values(), default=1),
        )
        found = FleetPlan(option, document, state, kinds)
        self.by_label[label] = found
        return found

    def _job_of(self, fleet: Fleet) -> Job:
        """The job; with `whole_fleet` its global batch is in proportion to the fleet's nodes."""
        if not self.whole_fleet:
            return self.job
        nodes = sum(count for _, count in fleet)
        return replace(self.job, global_batch=max(1, round(self.job.global_batch * nodes / self.whole_fleet)))

    def sub_cluster(self, fleet: Fleet) -> Cluster:
        """The cluster's groups with as many nodes as the fleet has."""
        index_of = self.groups_by_kind()
        chosen = [(index_of[kind], count) for kind, count in fleet]
        groups = tuple(replace(self.cluster.groups[index], count=count) for index, count in chosen)
        place = {index: at for at, (index, _) in enumerate(chosen)}
        between = tuple(
            replace(limit, groups=(place[limit.groups[0]], place[limit.groups[1]]))
            for limit in self.cluster.network.between
            if limit.groups[0] in place and limit.groups[1] in place
        )
        network = Network(self.cluster.network.oversubscription, between)
        return Cluster(self.cluster.name, groups, network)


def _words(document: PlanDocument) -> str:
    """The shape of a plan in a few words, for timelines and tables."""
    stages = [stage for stage in document.stages if stage.pipeline == 0]
    return f"{len(document.pipelines)} x {len({stage.stage for stage in stages})} stages, dp {stages[0].dp}"


@dataclass(frozen=True, kw_only=True)
class StateTransitions(Transitions):
    """Seconds to change from one fleet's plan to another's, with state from peers or from a checkpoint.

    Defaults are measured on single-V100 nodes with 10 Gb/s (Parcae's tables): rendezvous when nodes join,
    communicators per group (dp + pp + 1 + dp pp groups), restart of processes and modules.
    """

    speeds: PlannedSpeeds
    rendezvous_s: float = 6.6
    group_join_s: float = 0.5
    group_leave_s: float = 0.08
    process_s: float = 2.0
    load_bytes_per_s: float = 1.25e9  # per node, from a checkpoint
    keeps_all: bool = False
    _moved: dict[tuple[str, str], float] = field(default_factory=dict, repr=False, compare=False)

    def start_s(self, new: Option, joined: bool) -> float:
        """Rendezvous, communicators and processes."""
        nodes = new.pipelines * new.stages
        groups = new.pipelines + new.stages + 1 + nodes
        each, joins = (self.group_join_s, self.rendezvous_s) if joined else (self.group_leave_s, 0.0)
        return joins + groups * each + self.process_s

    def loading_s(self, old: Option | None, new: Option) -> float:
        """Every node loads what it holds; at the first start there is nothing to load."""
        return self._fullest_bytes(new) / self.load_bytes_per_s if old is not None else 0.0

    def migrating_s(self, old: Option, new: Option, joined: bool) -> float:
        """Fetch what is missing from peers, spread over all copies, and start again."""
        return self.start_s(new, joined) + self._moving(old, new)

    def recombining_s(self, new: Option) -> float:
        """Set up processes and communicators again, and send the fullest node's state over its NIC."""
        return self.start_s(new, joined=False) + self._fullest_bytes(new) / self._slowest_nic()

    def _fullest_bytes(self, option: Option) -> float:
        return max(self.speeds.by_label[option.label].state.held_bytes().values(), default=0.0)

    def _slowest_nic(self) -> float:
        return min(group.node.nic_bytes_per_s for group in self.speeds.cluster.groups)

    def _moving(self, old: Option, new: Option) -> float:
        """Seconds until every node has its share of state; nodes that the new fleet lacks are lost.

        If both plans are the same, one node was replaced and fetches all it holds.
        """
        key = (old.label, new.label)
        if key not in self._moved:
            before, after = self.speeds.by_label[old.label], self.speeds.by_label[new.label]
            if before is after:
                self._moved[key] = self._fullest_bytes(old) / self._slowest_nic()
            else:
                self._moved[key] = self._between(before, after)
        return self._moved[key]

    def _between(self, before: FleetPlan, after: FleetPlan) -> float:
        """Seconds to move state, nodes assigned so that little moves; a kind's last ones leave or join."""
        numbers = dict(enumerate(before.kinds))
        standing = _live(before.kinds, after.kinds)
        live = [node for node in numbers if node in standing]
        fresh = Counter(after.kinds) - Counter(numbers[node] for node in live)
        for kind, count in sorted(fresh.items()):
            for _ in range(count):
                numbers[len(numbers)] = kind
                live.append(len(numbers) - 1)
        kind_of = {**numbers, **{-1 - place: kind for place, kind in enumerate(after.kinds)}}
        places = assign(before.state, after.state, kind_of, live)
        lost = frozenset(node for node in range(len(before.kinds)) if node not in standing)
        found = moves(before.state, after.state.on(places), lost)
        nics = {kind: self._nic(kind) for kind in set(numbers.values())}
        return transfer_seconds(
            found,
            lambda a, b: min(nics[numbers[a]], nics[numbers[b]]),
            lambda node: nics[numbers[node]],
            self.load_bytes_per_s,
        )

    def _nic(self, kind: str) -> float:
        return self.speeds.cluster.groups[self.speeds.groups_by_kind()[kind]].node.nic_bytes_per_s


def _live(before: Sequence[str], after: Sequence[str]) -> set[int]:
    """Node numbers of the old plan that the new fleet keeps: the first ones of each kind."""
    left = Counter(after)
    found = set()
    for node, kind in enumerate(before):
        if left[kind] > 0:
            left[kind] -= 1
            found.add(node)
    return found


def spread_of(plans: Mapping[Fleet, FleetPlan | None]) -> tuple[float, float]:
    """90 % interval of true over predicted speed: mean of the plans' intervals, errors shared."""
    ratios = [
        (plan.document.step_s / plan.document.step_s_high, plan.document.step_s / plan.document.step_s_low)
        for plan in plans.values()
        if plan and plan.document.step_s_low and plan.document.step_s_high
    ]
    if not ratios:
        return 1.0, 1.0
    return sum(low for low, _ in ratios) / len(ratios), sum(high for _, high in ratios) / len(ratios)


def planned_question(
    model: Model,
    cluster: Cluster,
    job: Job,
    hwdb: Hwdb,
    history: Availability,
    *,
    search: str = "auto",
    kinds: str = "mixed",
    load_bytes_per_s: float = 1.25e9,
    checkpoint_s: float | None = None,
    every_steps: int | None = None,
    detect_s: float = 0.0,
    scale_batch: bool = False,
) -> ReplayQuestion:
    """A replay whose speeds, state and transitions come from the planner.

    A checkpoint blocks while the largest fleet's nodes write one copy of the state, `load_bytes_per_s` each,
    every 50 steps, unless stated. Raises BadInputError and UnknownNameError for kinds that do not match.
    """
    job = resolve(job, cluster)
    whole = max(count for _, count in history.counts()) if scale_batch else 0
    speeds = PlannedSpeeds(model, cluster, job, hwdb, search, kinds, whole_fleet=whole)
    speeds.require_kinds(history)
    if kinds not in KINDS:
        history = history.of_kind(kinds)
    most = max(count for _, count in history.counts())
    state_bytes = sum(sum(sizes) for sizes in atom_bytes(model, job).values())
    transitions = StateTransitions(
        speeds=speeds,
        detect_s=detect_s,
        load_bytes_per_s=load_bytes_per_s,
        block_s=state_bytes / most / load_bytes_per_s if checkpoint_s is None else checkpoint_s,
        every_steps=CHECKPOINT_STEPS if every_steps is None else every_steps,
    )
    largest: Counter[str] = Counter()
    now: Counter[str] = Counter()
    for event in history.events:
        if event.event in ("add", "remove"):
            now[event.kind] += 1 if event.event == "add" else -1
            largest = largest | now
    speeds.best(tuple(sorted(largest.items())))
    return ReplayQuestion(
        history,
        speeds,
        transitions,
        tokens_per_sample=float(job.seq),
        spread=spread_of(speeds.plans),
    )
