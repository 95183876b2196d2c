"""Policies that live with nodes coming and going: each decides at every change what runs next."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tangram_sim.reliability.spot.engine import Moment, Reaction
from tangram_sim.reliability.spot.speeds import Fleet, Option, Speeds
from tangram_sim.reliability.spot.transitions import (
    Stall,
    Stalls,
    Transitions,
    seconds_of,
)


def _after_loss(transitions: Transitions, moment: Moment, else_: str) -> str:
    """What a loss takes of the work: nothing where it was saved in time or nothing was lost."""
    return "nothing" if transitions.keeps_all or not moment.removed else else_


def _saved(transitions: Transitions, moment: Moment) -> Stalls:
    """The checkpoint before a change that nobody forced: nodes came, none went."""
    planned = moment.removed == 0 and moment.running is not None and not transitions.keeps_all
    return (Stall("checkpoint", transitions.block_s),) if planned and transitions.block_s else ()


@dataclass
class Free:
    """Always the fastest layout, changes cost nothing: what no policy can beat."""

    speeds: Speeds
    name: str = "free changes"
    checkpoints: bool = False

    def react(self, moment: Moment) -> Reaction:
        """The fastest of all ways, at once."""
        ways = (self.speeds.best, self.speeds.templates, self.speeds.redundant)
        found = [option for way in ways if (option := way(moment.fleet)) is not None]
        return Reaction(max(found, key=lambda option: option.samples_per_s, default=None))


@dataclass
class Restart:
    """Restart with the fastest layout of what is left, at every change (Athlur et al., EuroSys 2022)."""

    speeds: Speeds
    transitions: Transitions
    name: str = "restart"
    checkpoints: bool = True

    def react(self, moment: Moment) -> Reaction:
        """The best, behind a restart."""
        best = self.speeds.best(moment.fleet)
        loses = _after_loss(self.transitions, moment, "checkpoint")
        if best is None:
            return Reaction(None, (), loses)
        stalls = self.transitions.restart(
            moment.running, best, joined=moment.added > 0, pending=moment.pending_s > 0
        )
        return Reaction(best, (*_saved(self.transitions, moment), *stalls), loses)


@dataclass
class Wait:
    """The first plan and no other: wait until its nodes are there again, then restart it."""

    speeds: Speeds
    transitions: Transitions
    name: str = "wait"
    checkpoints: bool = True
    plan: Option | None = None

    def react(self, moment: Moment) -> Reaction:
        """Go on where no node of the plan is missing."""
        if self.plan is None:
            self.plan = self.speeds.best(moment.fleet)
            if self.plan is None:
                return Reaction(None)
            return Reaction(
                self.plan, self.transitions.restart(None, self.plan, joined=moment.added > 0, pending=False)
            )
        if not self.plan.fits(dict(moment.fleet)):
            return Reaction(None, (), _after_loss(self.transitions, moment, "checkpoint"))
        if moment.running == self.plan and not moment.removed:
            return Reaction(self.plan)
        stalls = self.transitions.restart(
            self.plan, self.plan, joined=moment.added > 0, pending=moment.pending_s > 0
        )
        return Reaction(self.plan, stalls, _after_loss(self.transitions, moment, "checkpoint"))


@dataclass
class Shrink:
    """Drop broken replicas, go on with the others; take replicas back when their nodes are there."""

    speeds: Speeds
    transitions: Transitions
    name: str = "shrink"
    checkpoints: bool = True
    plan: Option | None = None

    def react(self, moment: Moment) -> Reaction:
        """The first plan's replicas, as many as are whole; from a checkpoint where none was."""
        if self.plan is None:
            self.plan = self.speeds.best(moment.fleet)
        if self.plan is None:
            return Reaction(None)
        left = self.speeds.resized(self.plan, moment.fleet)
        if left is None:
            return Reaction(None, (), _after_loss(self.transitions, moment, "checkpoint"))
        if moment.running is None:
            return Reaction(
                left, self.transitions.restart(None, left, joined=moment.added > 0, pending=False)
            )
        if left == moment.running and not moment.removed:
            return Reaction(left)
        if not moment.running.survives_one and moment.removed:  # the only copy is gone
            stalls = self.transitions.restart(moment.running, left, joined=False, pending=False)
            return Reaction(left, stalls, _after_loss(self.transitions, moment, "checkpoint"))
        stalls = self.transitions.migrate(moment.running, left, joined=moment.added > 0)
        return Reaction(left, stalls, _after_loss(self.transitions, moment, "step"))


@dataclass
class Templates:
    """Recombine pipelines prepared before (Jang et al., SOSP 2023); nodes that come join at a loss."""

    speeds: Speeds
    transitions: Transitions
    name: str = "templates"
    checkpoints: bool = False

    def react(self, moment: Moment) -> Reaction:
        """All nodes in pipelines of nearly equal size; the running step is lost."""
        found = self.speeds.templates(moment.fleet)
        if found is None:
            return Reaction(None, (), _after_loss(self.transitions, moment, "checkpoint"))
        if moment.running is None or found.pipelines < 1:
            return Reaction(found, self.transitions.reconfigure(found))
        return Reaction(
            found, self.transitions.reconfigure(found), _after_loss(self.transitions, moment, "step")
        )


@dataclass
class Redundancy:
    """Every stage is also held by its neighbour (Thorpe et al., NSDI 2023); losses of one are taken over.

    Taking over and rebalancing cost a restart of processes, no work; two neighbours lost at once, in the
    order in which nodes came, cost the work since the last checkpoint.
    """

    speeds: Speeds
    transitions: Transitions
    name: str = "redundancy"
    checkpoints: bool = False
    _placed: tuple[str, ...] = ()

    def react(self, moment: Moment) -> Reaction:
        """The best redundant layout of what is left."""
        lost = set(moment.lost_names)
        ring = self._placed
        twice = any(node in lost and ring[(place + 1) % len(ring)] in lost for place, node in enumerate(ring))
        found = self.speeds.redundant(moment.fleet)
        self._placed = moment.names
        if found is None:
            return Reaction(None, (), _after_loss(self.transitions, moment, "checkpoint"))
        stalls = self.transitions.restart(None, found, joined=moment.added > 0, pending=False)
        if twice:
            stalls = self.transitions.restart(moment.running, found, joined=False, pending=False)
        return Reaction(
            found, stalls, _after_loss(self.transitions, moment, "checkpoint" if twice else "nothing")
        )


@dataclass
class Reroute:
    """Peers of a dead stage take its microbatches (Gandhi et al., SOSP 2024); nodes that come fill holes."""

    speeds: Speeds
    transitions: Transitions
    name: str = "reroute"
    checkpoints: bool = True
    plan: Option | None = None
    _seats: dict[str, int] = field(default_factory=dict)  # stage of every node of the plan
    _dead: list[int] = field(default_factory=list)

    def react(self, moment: Moment) -> Reaction:
        """The same plan, slower by what its peers take over; a restart where a stage has no peer."""
        if self.plan is None or moment.running is None:
            return self._start(moment, loses="nothing")
        for node in moment.lost_names:
            stage = self._seats.pop(node, -1)
            if stage >= 0:
                self._dead[stage] += 1
        hit = any(self._dead)
        spare = [node for node in moment.names if node not in self._seats]
        filled = 0
        for stage, count in enumerate(self._dead):
            for _ in range(min(count, len(spare))):
                self._seats[spare.pop(0)] = stage
                self._dead[stage] -= 1
                filled += 1
        rate = self.speeds.rerouted(self.plan, self._dead)
        if rate <= 0:
            return self._start(moment, loses=_after_loss(self.transitions, moment, "checkpoint"))
        if not hit:
            return Reaction(self.plan, (), "nothing", rate)
        joins = filled > 0
        stalls = (
            self.transitions.migrate(self.plan, self.plan, joined=moment.added > 0)
            if joins
            else self.transitions.reconfigure(self.plan)
        )
        return Reaction(self.plan, stalls, _after_loss(self.transitions, moment, "step"), rate)

    def _start(self, moment: Moment, loses: str) -> Reaction:
        """The best plan of the fleet, its stages seated in the order of the nodes."""
        best = self.speeds.best(moment.fleet)
        self.plan = best
        if best is None:
            return Reaction(None, (), loses)
        self._seats = {node: place % best.stages for place, node in enumerate(moment.names[: best.size])}
        self._dead = [0] * best.stages
        stalls = self.transitions.restart(
            moment.running, best, joined=moment.added > 0, pending=moment.pending_s > 0
        )
        return Reaction(best, stalls, loses)


def idle_nodes(fleet: Fleet, option: Option) -> Fleet:
    """Nodes of a fleet that an option leaves out."""
    used = dict(option.nodes)
    return tuple((kind, count - used.get(kind, 0)) for kind, count in fleet if count > used.get(kind, 0))


def hits(moment: Moment, idle: Fleet) -> bool:
    """Whether a loss hits what runs: idle nodes of the kinds that went are taken to go first."""
    spare = dict(idle)
    return any(moment.lost_kinds.count(kind) > spare.get(kind, 0) for kind in set(moment.lost_kinds))


def expected_gap(moment: Moment) -> float:
    """The mean time between changes so far: what is known of the next one."""
    return moment.mean_gap_s


def perfect_gap(moment: Moment) -> float:
    """The time until the next change, as only a perfect forecast knows."""
    return moment.remaining_s


@dataclass
class Replan:
    """Our planner on the new fleet; a change that nobody forces must pay while it is expected to last.

    Forced where a node of the plan is gone. State comes from peers where a second replica had it, else from a
    checkpoint.
    """

    speeds: Speeds
    transitions: Transitions
    horizon: Callable[[Moment], float] = expected_gap
    name: str = "replan"
    checkpoints: bool = True
    _idle: Fleet = ()  # nodes of the fleet that the plan leaves out

    def react(self, moment: Moment) -> Reaction:
        """Stay, or go over to what brings most until the next change."""
        old = moment.running
        hit = hits(moment, self._idle)
        loses = _after_loss(self.transitions, moment, "checkpoint") if hit else "nothing"
        options = self.speeds.all_on(moment.fleet)
        if not options:
            return Reaction(None, (), loses if moment.removed else "nothing")
        horizon_s = max(self.horizon(moment), 0.0)
        stay_possible = old is not None and old.fits(dict(moment.fleet)) and not hit
        best: Option | None = None
        best_value = -1.0
        best_stalls: Stalls = ()
        if stay_possible and old is not None:
            best, best_value = old, old.samples_per_s * max(0.0, horizon_s - moment.pending_s)
        for option in options:
            if stay_possible and old is not None and option.samples_per_s <= old.samples_per_s:
                break  # fastest first: the others gain nothing
            stalls = self._price(old, option, moment, hit)
            value = option.samples_per_s * max(0.0, horizon_s - seconds_of(stalls))
            if best is None or value > best_value * (1 + 1e-12):
                best, best_value, best_stalls = option, value, stalls
        if best is None:
            return Reaction(None, (), loses)
        self._idle = idle_nodes(moment.fleet, best)
        if best is old and not hit:
            return Reaction(old)
        peers = old is not None and old.survives_one
        return Reaction(best, best_stalls, "step" if loses == "checkpoint" and peers else loses)

    def _price(self, old: Option | None, option: Option, moment: Moment, hit: bool) -> Stalls:
        joined = moment.added > 0
        if old is None or (hit and not old.survives_one):
            return self.transitions.restart(old, option, joined=joined, pending=moment.pending_s > 0)
        return self.transitions.migrate(old, option, joined=joined)
