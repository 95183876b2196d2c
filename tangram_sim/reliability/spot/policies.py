"""Policies for fleets whose nodes come and go: each decides at every change what runs next."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tangram_sim.reliability.spot.engine import Moment, Reaction
from tangram_sim.reliability.spot.policy_common import Living, expected_gap, fastest, hits, idle_nodes
from tangram_sim.reliability.spot.speeds import Fleet, Option, Speeds
from tangram_sim.reliability.spot.transitions import seconds_of


@dataclass
class Free:
    """The fastest layout at every moment, with transitions that cost nothing: an upper bound on every policy.

    `short`: the bound also covers policies that run plans short of nodes, where peers take over (Reroute).
    """

    speeds: Speeds
    short: bool = False
    name: str = "free changes"
    checkpoints: bool = False

    def react(self, moment: Moment) -> Reaction:
        """The fastest option on these nodes, without stalls or lost work."""
        ways = [self.speeds.best, self.speeds.templates, self.speeds.redundant]
        ways += [self.speeds.short_of_nodes] if self.short else []
        found = [option for way in ways if (option := fastest(way, moment)) is not None]
        return Reaction(max(found, key=moment.speed_of, default=None))


@dataclass
class Restart(Living):
    """Policy that restarts with the fastest layout left, at every change (Athlur et al., EuroSys 2022)."""

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
    """Policy that runs its first plan only: it waits until the plan's nodes are back, then restarts it."""

    name: str = "wait"
    checkpoints: bool = True
    plan: Option | None = None

    def react(self, moment: Moment) -> Reaction:
        """Continue while no node of the plan is missing, else wait; restart once they are back."""
        begun, self.plan = self.plan, self.plan or self.speeds.best(moment.fleet)
        if self.plan is None or not self.plan.fits(dict(moment.fleet)):
            return self.stop(moment)
        if moment.running == self.plan and not moment.removed:
            return Reaction(self.plan)
        return self.restart(moment, begun, self.plan)


@dataclass
class Shrink(Living):
    """Policy that drops broken replicas and continues with others; replicas return when their nodes do."""

    name: str = "shrink"
    checkpoints: bool = True
    plan: Option | None = None

    def react(self, moment: Moment) -> Reaction:
        """As many replicas of the first plan as the fleet can hold; from a checkpoint where none survived."""
        self.plan = self.plan or self.speeds.best(moment.fleet)
        left = self.speeds.resized(self.plan, moment.fleet) if self.plan else None
        if left is None:
            return self.stop(moment)
        if left == moment.running and not moment.removed:
            return Reaction(left)
        return self.from_survivors(moment, moment.running, left, hit=moment.removed > 0)


@dataclass
class Templates(Living):
    """Policy that recombines pipelines prepared in advance (Oobleck, Jang et al., SOSP 2023)."""

    name: str = "templates"
    checkpoints: bool = False

    def react(self, moment: Moment) -> Reaction:
        """All nodes in pipelines of nearly equal size; the running step is lost where a node was lost."""
        found = fastest(self.speeds.templates, moment)
        return self.stop(moment) if found is None else self.recombine(moment, found)


@dataclass
class Redundancy(Living):
    """Policy in which each stage's neighbour also holds it and takes over (Bamboo, Thorpe et al., NSDI 2023).

    Taking over and rebalancing cost a restart of processes but no work. Two neighbours (in the order in which
    nodes came) lost at the same time cost the work since the last checkpoint.
    """

    name: str = "redundancy"
    checkpoints: bool = False
    _placed: tuple[str, ...] = ()

    def react(self, moment: Moment) -> Reaction:
        """The fastest redundant layout on the nodes left."""
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
    """A dead worker's peers take its microbatches (Gandhi et al., SOSP 2024); new nodes replace the dead."""

    name: str = "reroute"
    checkpoints: bool = True
    plan: Option | None = None
    _seats: dict[str, int] = field(default_factory=dict)  # stage of every node of the plan
    _dead: list[int] = field(default_factory=list)

    def react(self, moment: Moment) -> Reaction:
        """Continue the plan at the speed with peers taking over; restart where a stage has no live worker."""
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
        """Assign spare nodes to stages with dead workers; return how many were assigned."""
        before = sum(self._dead)
        for stage, count in enumerate(self._dead):
            for node in spare[:count]:
                self._seats[node] = stage
                self._dead[stage] -= 1
            spare = spare[count:]
        return before - sum(self._dead)

    def _start(self, moment: Moment) -> Reaction:
        """Restart with the fastest plan on the fleet; nodes in their order go to its stages in turn."""
        best = fastest(self.speeds.best, moment)
        self.plan = best
        if best is None:
            return self.stop(moment)
        self._seats = {node: place % best.stages for place, node in enumerate(moment.names[: best.size])}
        self._dead = [0] * best.stages
        return self.restart(moment, moment.running, best)


@dataclass
class Replan(Living):
    """Policy that plans again on the new fleet; a voluntary change must pay off before the next one.

    A change is forced where a node of the plan is lost. State comes from peers where a second replica holds
    it, else from a checkpoint.
    """

    horizon: Callable[[Moment], float] = expected_gap
    name: str = "replan"
    checkpoints: bool = True
    _idle: Fleet = ()  # nodes of the fleet that the plan leaves out

    def react(self, moment: Moment) -> Reaction:
        """Stay, or change to the option with the most samples until the next change."""
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
