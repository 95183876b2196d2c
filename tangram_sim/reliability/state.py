"""Which node holds which share of a plan's weights and optimizer state.

The dense and the expert parameters of one atom (embedding, block, head) are each mapped to [0, 1):
tensor-parallel rank i of t holds [i/t, (i+1)/t), and ZeRO divides that among the replicas. Two plans can be
compared in this way whatever their degrees. docs/models/state.md has the rules.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from tangram_sim.layers.atoms import atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.models import Block, Experts, Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Plan, Stage

SAME = 1e-9  # of a line: shares closer than this are one

Interval = tuple[float, float]
Section = tuple[str, str]  # ("weights" | "optimizer", "dense" | "expert")
SECTIONS: tuple[Section, ...] = (
    ("weights", "dense"),
    ("weights", "expert"),
    ("optimizer", "dense"),
    ("optimizer", "expert"),
)


def merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The union of intervals, sorted, with touching ones joined."""
    found: list[list[float]] = []
    for low, high in sorted(intervals):
        if found and low <= found[-1][1] + SAME:
            found[-1][1] = max(found[-1][1], high)
        elif high > low:
            found.append([low, high])
    return tuple((low, high) for low, high in found)


def missing(needed: Sequence[Interval], held: Sequence[Interval]) -> tuple[Interval, ...]:
    """The parts of `needed` that are not in `held`; both are sorted unions."""
    found = []
    for low, high in needed:
        at = low
        for start, stop in held:
            if stop <= at + SAME or start >= high - SAME:
                continue
            if start > at + SAME:
                found.append((at, start))
            at = max(at, stop)
        if at < high - SAME:
            found.append((at, high))
    return tuple(found)


def length(intervals: Iterable[Interval]) -> float:
    """Total length of a union of intervals, as a share of the parameters."""
    return sum(high - low for low, high in intervals)


@dataclass(frozen=True)
class StateRun:
    """Atoms [start, stop) of one section of the state (weights or optimizer state, dense or expert)."""

    section: Section
    start: int
    stop: int
    place: str  # "pipeline 0, stage 1" for people


@dataclass(frozen=True)
class HeldState(StateRun):
    """State of atoms [start, stop) held by one run of layers of one stage: intervals by node."""

    by_node: Mapping[int, tuple[Interval, ...]]


@dataclass(frozen=True)
class StateMap:
    """All state of a plan on its nodes. `atom_bytes` gives bytes of one copy of every atom, by section."""

    holdings: tuple[HeldState, ...]
    atom_bytes: Mapping[Section, tuple[float, ...]]

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Nodes that hold any state, sorted."""
        return tuple(sorted({node for holding in self.holdings for node in holding.by_node}))

    @cached_property
    def _sums(self) -> dict[Section, tuple[float, ...]]:
        found = {}
        for section, sizes in self.atom_bytes.items():
            sums = [0.0]
            for size in sizes:
                sums.append(sums[-1] + size)
            found[section] = tuple(sums)
        return found

    def run_bytes(self, section: Section, start: int, stop: int) -> float:
        """Bytes of one copy of a section over atoms [start, stop)."""
        sums = self._sums[section]
        return sums[stop] - sums[start]

    @property
    def total_bytes(self) -> float:
        """Bytes of one copy of everything: what a checkpoint writes."""
        return sum(sum(sizes) for sizes in self.atom_bytes.values())

    def held_bytes(self) -> dict[int, float]:
        """Bytes that each node holds; a share that several of its ranks hold counts once."""
        found = dict.fromkeys(self.nodes, 0.0)
        for holding in self.holdings:
            size = self.run_bytes(holding.section, holding.start, holding.stop)
            for node, intervals in holding.by_node.items():
                found[node] += size * length(intervals)
        return found

    def on(self, names: Mapping[int, int]) -> "StateMap":
        """This state with its nodes renamed by `names`."""
        return StateMap(
            tuple(
                replace(h, by_node={names[node]: held for node, held in h.by_node.items()})
                for h in self.holdings
            ),
            self.atom_bytes,
        )

    def segments(self, others: Iterable["StateMap"] = ()) -> list[tuple[Section, int, int]]:
        """(section, start, stop) of runs of atoms within which no holding of any map starts or ends."""
        found = []
        maps = (self, *others)
        for section in SECTIONS:
            cuts = sorted(
                {
                    edge
                    for state in maps
                    for holding in state.holdings
                    if holding.section == section
                    for edge in (holding.start, holding.stop)
                }
            )
            found += [(section, a, b) for a, b in pairwise(cuts)]
        return found

    def at(self, section: Section, start: int, stop: int) -> dict[int, tuple[Interval, ...]]:
        """Intervals that each node holds of atoms [start, stop): the union over holdings that cover them."""
        found: dict[int, list[Interval]] = {}
        for holding in self.holdings:
            if holding.section == section and holding.start <= start and stop <= holding.stop:
                for node, intervals in holding.by_node.items():
                    found.setdefault(node, []).extend(intervals)
        return {node: merged(intervals) for node, intervals in found.items()}


def state_of(plan: Plan, node_of: Sequence[int]) -> StateMap:
    """The state of a plan; `node_of` gives the node of every rank."""
    holdings: list[HeldState] = []
    for number, pipeline in enumerate(plan.pipelines):
        for place, stage in enumerate(pipeline.stages):
            where = f"stage {place}" if len(plan.pipelines) == 1 else f"pipeline {number}, stage {place}"
            holdings += _stage_holdings(stage, plan.model, node_of, where)
    return StateMap(tuple(holdings), atom_bytes(plan.model, plan.job))


def atom_bytes(model: Model, job: Job) -> dict[Section, tuple[float, ...]]:
    """Bytes of one copy of every atom by section; optimizer state includes the master copy of the weights."""
    weights = job.precision.weight_bytes
    optimizer = job.optimizer_bytes * job.trainable
    dense, expert = [], []
    for atom in atoms_of(model):
        total, experts = _parameters(atom, model)
        dense.append(float(total - experts))
        expert.append(float(experts))
    return {
        ("weights", "dense"): tuple(weights * count for count in dense),
        ("weights", "expert"): tuple(weights * count for count in expert),
        ("optimizer", "dense"): tuple(optimizer * count for count in dense),
        ("optimizer", "expert"): tuple(optimizer * count for count in expert),
    }


def _parameters(atom: object, model: Model) -> tuple[int, int]:
    """(all, expert) parameters of an atom."""
    if not isinstance(atom, Block):
        return int(getattr(atom, "parameters")), 0  # noqa: B009 - embedding or head: a field, not a method
    part = atom.feed_forward
    experts = part.expert_parameters(model.hidden) if isinstance(part, Experts) else 0
    return atom.parameters(model.hidden), experts


def _stage_holdings(stage: Stage, model: Model, node_of: Sequence[int], where: str) -> list[HeldState]:
    found = []
    last = model.layers + 1
    for part in stage.parts:
        for index, run in enumerate(part.layouts):
            bounds = [(max(a, run.layers[0]) + 1, min(b, run.layers[1]) + 1) for a, b in stage.chunks]
            atoms = [(a, b) for a, b in bounds if a < b]
            if stage.embedding and index == 0:
                atoms.append((0, 1))
            if stage.head and index == len(part.layouts) - 1:
                atoms.append((last, last + 1))
            for section in SECTIONS:
                by_node: dict[int, list[Interval]] = {}
                for place, rank in enumerate(part.ranks):
                    by_node.setdefault(node_of[rank], []).append(_share(run.layout, place, section))
                held = {node: merged(intervals) for node, intervals in by_node.items()}
                found += [HeldState(section, a, b, where, held) for a, b in sorted(atoms)]
    return found


def _share(layout: Layout, place: int, section: Section) -> Interval:
    """Interval of a section held by the rank at `place` in a part (ranks count tp fastest, then cp, dp)."""
    what, which = section
    tensor, replica = place % layout.tp, place // layout.tp
    replicas = layout.cp * layout.dp
    cut = layout.zero_stage >= (3 if what == "weights" else 1)
    if which == "expert":
        shard, pieces = (replica % layout.ep) * layout.tp + tensor, layout.ep * layout.tp
        copy, copies = replica // layout.ep, replicas // layout.ep
        cut = cut or layout.fsep
    else:
        shard, pieces, copy, copies = tensor, layout.tp, replica, replicas
    low, width = shard / pieces, 1.0 / pieces
    if not cut:
        return low, low + width
    return low + width * copy / copies, low + width * (copy + 1) / copies


def with_partners(state: StateMap, partners: Mapping[int, int]) -> StateMap:
    """The state with a second copy of every node's state in the memory of `partners[node]`."""
    copies = [
        replace(h, by_node=_by_partner(h.by_node, partners), place=f"{h.place}, partner's copy")
        for h in state.holdings
    ]
    return StateMap((*state.holdings, *copies), state.atom_bytes)


def _by_partner(
    by_node: Mapping[int, tuple[Interval, ...]], partners: Mapping[int, int]
) -> dict[int, tuple[Interval, ...]]:
    found: dict[int, list[Interval]] = {}
    for node, intervals in by_node.items():
        found.setdefault(partners[node], []).extend(intervals)
    return {node: merged(intervals) for node, intervals in found.items()}


def ring_partners(nodes: Sequence[int]) -> dict[int, int]:
    """For each node, the next one, which holds its copy; for the last, the first."""
    return {node: nodes[(place + 1) % len(nodes)] for place, node in enumerate(nodes)}


@dataclass(frozen=True, slots=True)
class Gone(StateRun):
    """State that no live node holds, and its bytes."""

    lost_bytes: float


def lost_with(state: StateMap, lost: Set[int]) -> tuple[Gone, ...]:
    """State without a live copy after losing `lost` nodes; empty where peers hold everything."""
    found = []
    for section, start, stop in state.segments():
        size = state.run_bytes(section, start, stop)
        if size <= 0:
            continue
        held = state.at(section, start, stop)
        before = merged(interval for intervals in held.values() for interval in intervals)
        after = merged(i for node, intervals in held.items() if node not in lost for i in intervals)
        share = length(missing(before, after))
        if share > SAME:
            place = next(
                h.place
                for h in state.holdings
                if h.section == section and h.start <= start and stop <= h.stop
            )
            found.append(Gone(section, start, stop, place, share * size))
    return tuple(found)


def copies(state: StateMap) -> dict[Section, int]:
    """For each section, the fewest nodes that hold any share of it; sections without bytes are left out."""
    found: dict[Section, int] = {}
    for section, start, stop in state.segments():
        if state.run_bytes(section, start, stop) <= 0:
            continue
        held = state.at(section, start, stop)
        edges = sorted({edge for intervals in held.values() for interval in intervals for edge in interval})
        for low, high in pairwise(edges):
            if high - low <= SAME:
                continue
            middle = (low + high) / 2
            count = sum(any(a <= middle < b for a, b in intervals) for intervals in held.values())
            found[section] = min(found.get(section, count), count)
    return found
