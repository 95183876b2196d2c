"""Policies that live with nodes coming and going: each decides at every change what runs next."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tangram_sim.reliability.spot.engine import Moment, Reaction
from tangram_sim.reliability.spot.policy_common import Living, expected_gap, fastest, hits, idle_nodes
from tangram_sim.reliability.spot.speeds import Fleet, Option, Speeds
from tangram_sim.reliability.spot.transitions import seconds_of


@dataclass
class Free:
    """Always the fastest layout, changes cost nothing: what no policy can beat.

    `short`: nor one that runs plans short of nodes, their microbatches taken over by peers (Reroute).
    """

    speeds: Speeds
    short: bool = False
    name: str = "free changes"
    checkpoints: bool = False

    def react(self, moment: Moment) -> Reaction:
        """The fastest option on these nodes, at once and for nothing."""
        ways = [self.speeds.best, self.speeds.templates, self.speeds.redundant]
        ways += [self.speeds.short_of_nodes] if self.short else []
        found = [option for way in ways if (option := fastest(way, moment)) is not None]
        return Reaction(max(found, key=moment.speed_of, default=None))


@dataclass
class Restart(Living):
    """Restart with the fastest layout of what is left, at every change (Athlur et al., EuroSys 2022)."""

    name: str = "restart"
    checkpoints: bool = True

    def react(self, moment: Moment) -> Reaction:
        """The fastest option on these nodes, after a restart."""
        best = fastest(self.speeds.best, moment)
        if best is None:
            return self.stop(moment)
        found = self.restart(moment, moment.running, best)
        return replace(found, stalls=(*self.saved(moment), *found.stalls))


@dataclass
class Wait(Living):
    """The first plan and no other: wait until its nodes are there again, then restart it."""

    name: str = "wait"
    checkpoints: bool = True
    plan: Option | None = None

    def react(self, moment: Moment) -> Reaction:
        """Go on where no node of the plan is missing."""
        begun, self.plan = self.plan, self.plan or self.speeds.best(moment.fleet)
        if self.plan is None or not self.plan.fits(dict(moment.fleet)):
            return self.stop(moment)
        if moment.running == self.plan and not moment.removed:
            return Reaction(self.plan)
        return self.restart(moment, begun, self.plan)


@dataclass
class Shrink(Living):
    """Drop broken replicas, go on with the others; take replicas back when their nodes are there."""

    name: str = "shrink"
    checkpoints: bool = True
    plan: Option | None = None

    def react(self, moment: Moment) -> Reaction:
        """The first plan's replicas, as many as are whole; from a checkpoint where none was."""
        self.plan = self.plan or self.speeds.best(moment.fleet)
        left = self.speeds.resized(self.plan, moment.fleet) if self.plan else None
        if left is None:
            return self.stop(moment)
        if left == moment.running and not moment.removed:
            return Reaction(left)
        return self.from_survivors(moment, moment.running, left, hit=moment.removed > 0)


@dataclass
class Templates(Living):
    """Recombine pipelines prepared before (Jang et al., SOSP 2023); nodes that come join at a loss."""

    name: str = "templates"
    checkpoints: bool = False

    def react(self, moment: Moment) -> Reaction:
        """All nodes in pipelines of nearly equal size; the running step is lost."""
        found = fastest(self.speeds.templates, moment)
        return self.stop(moment) if found is None else self.recombine(moment, found)


@dataclass
class Redundancy(Living):
    """Every stage is also held by its neighbour (Thorpe et al., NSDI 2023); losses of one are taken over.

    Taking over and rebalancing cost a restart of processes, no work; two neighbours lost at once, in the
    order in which nodes came, cost the work since the last checkpoint.
    """

    name: str = "redundancy"
    checkpoints: bool = False
    _placed: tuple[str, ...] = ()

    def react(self, moment: Moment) -> Reaction:
        """The best redundant layout of what is left."""
        lost = set(moment.lost_names)
        ring = self._placed
        twice = any(node in lost and ring[(place + 1) % len(ring)] in lost for place, node in enumerate(ring))
        found = fastest(self.speeds.redundant, moment)
        self._placed = moment.names
        if found is None:
            return self.stop(moment)
        # Without state to load and whatever is under way: the neighbour has it.
        alone = replace(moment, pending_s=0.0)
        if twice:
            return self.restart(alone, moment.running, found)
        return self.restart(alone, None, found, loses="nothing")


@dataclass
class Reroute(Living):
    """Peers of a dead stage take its microbatches (Gandhi et al., SOSP 2024); nodes that come fill holes."""

    name: str = "reroute"
    checkpoints: bool = True
    plan: Option | None = None
    _seats: dict[str, int] = field(default_factory=dict)  # stage of every node of the plan
    _dead: list[int] = field(default_factory=list)

    def react(self, moment: Moment) -> Reaction:
        """Go on with the plan, slower by what peers take over; restart where a stage has no peer left."""
        if self.plan is None or moment.running is None:
            return replace(self._start(moment), loses="nothing")
        for node in moment.lost_names:
            stage = self._seats.pop(node, -1)
            if stage >= 0:
                self._dead[stage] += 1
        hit = any(self._dead)
        filled = self._fill([node for node in moment.names if node not in self._seats])
        rate = self.speeds.rerouted(self.plan, self._dead)
        if rate <= 0:
            return self._start(moment)
        if not hit:
            return Reaction(self.plan, (), "nothing", rate)
        over = self.migrate(moment, self.plan, self.plan) if filled else self.recombine(moment, self.plan)
        return replace(over, slowed=rate)

    def _fill(self, spare: list[str]) -> int:
        """Seat nodes without a place where one is dead; how many found one."""
        before = sum(self._dead)
        for stage, count in enumerate(self._dead):
            for node in spare[:count]:
                self._seats[node] = stage
                self._dead[stage] -= 1
            spare = spare[count:]
        return before - sum(self._dead)

    def _start(self, moment: Moment) -> Reaction:
        """The best plan of the fleet, its stages seated in the order of the nodes."""
        best = fastest(self.speeds.best, moment)
        self.plan = best
        if best is None:
            return self.stop(moment)
        self._seats = {node: place % best.stages for place, node in enumerate(moment.names[: best.size])}
        self._dead = [0] * best.stages
        return self.restart(moment, moment.running, best)


@dataclass
class Replan(Living):
    """Our planner on the new fleet; a change that nobody forces must pay while it is expected to last.

    Forced where a node of the plan is gone. State comes from peers where a second replica had it, else from a
    checkpoint.
    """

    horizon: Callable[[Moment], float] = expected_gap
    name: str = "replan"
    checkpoints: bool = True
    _idle: Fleet = ()  # nodes of the fleet that the plan leaves out

    def react(self, moment: Moment) -> Reaction:
        """Stay, or go over to what brings most until the next change."""
        old = moment.running
        hit = hits(moment, self._idle)
        horizon_s = max(self.horizon(moment), 0.0)
        best: Reaction | None = None
        best_value = -1.0
        if old is not None and old.fits(dict(moment.fleet)) and not hit:
            best = Reaction(old)
            best_value = moment.speed_of(old) * max(0.0, horizon_s - moment.pending_s)
        least = moment.speed_of(old) if best is not None and old is not None else 0.0
        for option in self.speeds.all_on(moment.fleet):
            speed = moment.speed_of(option)
            if speed <= least:
                continue
            tried = self.from_survivors(moment, old, option, hit)
            value = speed * max(0.0, horizon_s - seconds_of(tried.stalls))
            if best is None or value > best_value * (1 + 1e-12):
                best, best_value = tried, value
        if best is None or best.option is None:
            return self.stop(moment) if hit else Reaction(None)
        self._idle = idle_nodes(moment.fleet, best.option)
        return best
