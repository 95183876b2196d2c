"""What policies share: stop, restart or migrate; the work that each loses; slow nodes."""

from collections.abc import Callable
from dataclasses import dataclass

from tangram_sim.reliability.spot.engine import Moment, Reaction
from tangram_sim.reliability.spot.speeds import Fleet, Option, Speeds
from tangram_sim.reliability.spot.transitions import Stall, Transitions


@dataclass
class Living:
    """Base of policies: reactions that stop, restart, migrate or recombine, with their stalls and losses."""

    speeds: Speeds
    transitions: Transitions

    def taken(self, moment: Moment, most: str) -> str:
        """Which work is lost, at `most` so much: nothing where no node was lost or a checkpoint came in
        time.
        """
        return "nothing" if self.transitions.keeps_all or not moment.removed else most

    def stop(self, moment: Moment) -> Reaction:
        """The reaction that waits; after a loss, work since the last checkpoint is gone."""
        return Reaction(None, (), self.taken(moment, "checkpoint"))

    def restart(self, moment: Moment, old: Option | None, new: Option, loses: str = "checkpoint") -> Reaction:
        """The reaction that starts `new` from the newest checkpoint."""
        stalls = self.transitions.restart(old, new, joined=moment.added > 0, pending=moment.pending_s > 0)
        return Reaction(new, stalls, self.taken(moment, loses))

    def migrate(self, moment: Moment, old: Option | None, new: Option) -> Reaction:
        """The reaction that moves to `new` with peers' state; where a node was lost, so is the running
        step.
        """
        return Reaction(
            new,
            self.transitions.migrate(old, new, joined=moment.added > 0),
            self.taken(moment, "step"),
        )

    def recombine(self, moment: Moment, new: Option) -> Reaction:
        """Form the pipelines of `new`, which were prepared before; the running step is lost with a node."""
        return Reaction(new, self.transitions.reconfigure(new), self.taken(moment, "step"))

    def from_survivors(self, moment: Moment, old: Option | None, new: Option, hit: bool) -> Reaction:
        """Go over to `new`: from peers where they still hold everything, else from a checkpoint.

        `hit`: a node that ran is gone. Where none is, nothing is lost.
        """
        single = old is None or (hit and not old.survives_one)
        found = self.restart(moment, old, new) if single else self.migrate(moment, old, new)
        return found if hit else Reaction(found.option, found.stalls, "nothing", found.slowed)

    def saved(self, moment: Moment) -> tuple[Stall, ...]:
        """The checkpoint before a change that nobody forced: nodes came, none went."""
        planned = moment.removed == 0 and moment.running is not None and not self.transitions.keeps_all
        block_s = self.transitions.block_s
        return (Stall("checkpoint", block_s),) if planned and block_s else ()


def fastest(way: Callable[[Fleet], Option | None], moment: Moment) -> Option | None:
    """The fastest of a way's options, some of them without the slowest nodes: a slow node sets the pace."""
    found = [option for fleet in moment.paced_fleets() if (option := way(fleet)) is not None]
    return max(found, key=moment.speed_of, default=None)


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
