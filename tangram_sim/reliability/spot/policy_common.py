"""Shared parts of policies: reactions that stop, restart or migrate, the work that each loses, slow nodes."""

from collections.abc import Callable
from dataclasses import dataclass

from tangram_sim.reliability.spot.engine import Moment, Reaction
from tangram_sim.reliability.spot.speeds import Fleet, Option, Speeds
from tangram_sim.reliability.spot.transitions import Stall, Transitions


@dataclass
class Living:
    """Base class of policies: reactions that stop, restart, migrate or recombine, stalls and lost work."""

    speeds: Speeds
    transitions: Transitions

    def taken(self, moment: Moment, most: str) -> str:
        """Work lost at a change: `most`, or nothing where no node was lost or state was saved in time."""
        return "nothing" if self.transitions.keeps_all or not moment.removed else most

    def stop(self, moment: Moment) -> Reaction:
        """The reaction that waits; after a loss of nodes, work since the last checkpoint is lost."""
        return Reaction(None, (), self.taken(moment, "checkpoint"))

    def restart(self, moment: Moment, old: Option | None, new: Option, loses: str = "checkpoint") -> Reaction:
        """The reaction that starts `new` from the latest checkpoint."""
        stalls = self.transitions.restart(old, new, joined=moment.added > 0, pending=moment.pending_s > 0)
        return Reaction(new, stalls, self.taken(moment, loses))

    def migrate(self, moment: Moment, old: Option | None, new: Option) -> Reaction:
        """The reaction that changes to `new` with state from peers; losing a node loses the running step."""
        return Reaction(
            new,
            self.transitions.migrate(old, new, joined=moment.added > 0),
            self.taken(moment, "step"),
        )

    def recombine(self, moment: Moment, new: Option) -> Reaction:
        """The reaction that forms the prepared pipelines of `new`; losing a node loses the running step."""
        return Reaction(new, self.transitions.reconfigure(new), self.taken(moment, "step"))

    def from_survivors(self, moment: Moment, old: Option | None, new: Option, hit: bool) -> Reaction:
        """The reaction that changes to `new` with state from peers that hold all of it, else a checkpoint's.

        `hit`: a node of the running plan was lost. Without it, no work is lost.
        """
        single = old is None or (hit and not old.survives_one)
        found = self.restart(moment, old, new) if single else self.migrate(moment, old, new)
        return found if hit else Reaction(found.option, found.stalls, "nothing", found.slowed)

    def saved(self, moment: Moment) -> tuple[Stall, ...]:
        """The stall of a checkpoint before a voluntary change (nodes came, none lost); empty otherwise."""
        planned = moment.removed == 0 and moment.running is not None and not self.transitions.keeps_all
        block_s = self.transitions.block_s
        return (Stall("checkpoint", block_s),) if planned and block_s else ()


def fastest(way: Callable[[Fleet], Option | None], moment: Moment) -> Option | None:
    """The fastest option that `way` returns for the fleet with or without its slowest nodes."""
    found = [option for fleet in moment.paced_fleets() if (option := way(fleet)) is not None]
    return max(found, key=moment.speed_of, default=None)


def idle_nodes(fleet: Fleet, option: Option) -> Fleet:
    """Nodes of a fleet that an option leaves out."""
    used = dict(option.nodes)
    return tuple((kind, count - used.get(kind, 0)) for kind, count in fleet if count > used.get(kind, 0))


def hits(moment: Moment, idle: Fleet) -> bool:
    """Whether a loss hits the running plan, assuming that idle nodes of the same kind are lost first."""
    spare = dict(idle)
    return any(moment.lost_kinds.count(kind) > spare.get(kind, 0) for kind in set(moment.lost_kinds))


def expected_gap(moment: Moment) -> float:
    """Mean seconds between changes so far, as an estimate of the time to the next."""
    return moment.mean_gap_s


def perfect_gap(moment: Moment) -> float:
    """Seconds until the next change: a perfect forecast."""
    return moment.remaining_s
