"""Search over partitions of the cluster: the number of pipelines and the GPUs of each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.planners.coarse.profile import Profile
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.peers.flashflex.ensemble import Ensemble, shared_microbatches, step_s
from tangram_sim.planners.peers.flashflex.partition import Counts, DeviceGraph, deal, packed, partition
from tangram_sim.planners.peers.flashflex.pipelines import Fragment, Pipe, Pipes, speed_of
from tangram_sim.planners.peers.flashflex.savings import Saving

ITERATIONS = 96  # partitions looked at
EVERY = 16  # numbers of pipelines up to which each one is tried
LARGE = 64  # GPUs, beyond which only even numbers of pipelines are, and fewer partitions
FEW = 12  # exchanges there
WIDEST = 8  # sequences per microbatch of a pipeline, at most
KEPT = 1.5  # what cannot come this close to the best closed form so far is not looked at


@dataclass
class PartitionSearch:
    """Search over partitions of the GPUs into pipelines; each is scored with the best pipelines of its parts.

    `start` "graph": for every number of pipelines, the partition of least cut with seconds per byte as edge
    weights (slow links stay inside pipelines, where small activations cross them; the links that are cut are
    fast and carry the large gradients), and one that fills machine after machine; then exchanges of GPUs in
    the best partition. "random": parts are drawn at random instead. Deterministic for a seed.
    """

    profile: Profile
    global_batch: int
    savings: Sequence[Saving]
    start: Literal["graph", "random"] = "graph"
    iterations: int = 0  # 0: as many as suit the cluster
    seed: int = 0
    deadline: Deadline = field(default_factory=Deadline)  # no partition is looked at after it
    found: dict[str, tuple[float, Ensemble]] = field(default_factory=dict)
    _pipes: dict[tuple[int, int, int], Pipes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.machines = [kind for kind, item in enumerate(self.profile.kinds) for _ in range(item.nodes)]
        self.gpus = sum(kind.gpus for kind in self.profile.kinds)
        few = 2 * len(degrees(self.profile, self.global_batch)) + FEW
        self.iterations = self.iterations or (few if self.gpus > LARGE else ITERATIONS)
        self._best_s = float("inf")
        self._random = np.random.default_rng(self.seed)
        self.graph = _graph(self.profile, self.machines)

    def ranked(self) -> list[tuple[float, Ensemble]]:
        """(seconds, ensemble) of every ensemble found, fastest by closed form first."""
        self._run()
        return [
            self.found[words] for words in sorted(self.found, key=lambda item: (self.found[item][0], item))
        ]

    def _run(self) -> None:
        best_s, best = float("inf"), None
        seen = set[tuple[tuple[tuple[Fragment, ...], int], ...]]()
        starts = self._starts()
        for _ in range(self.iterations):
            if self.deadline.over():
                return
            parts = next(starts, None)
            if parts is None:
                if best is None or len(best) == 1:
                    return
                parts = self._exchanged(best)
            seconds = self._look(parts, seen)
            if seconds < best_s:
                best_s, best = seconds, parts

    def _starts(self) -> Iterator[Counts]:
        """Starting partitions: for every number of pipelines the least cut, and one filled by machine. Where
        links between machines are slow, the least cut puts them inside pipelines, whose tensor parallelism
        does not cross them; with machines filled in turn they lie between pipelines. Random partitions if so
        configured."""
        if self.start == "graph":
            for k in degrees(self.profile, self.global_batch):
                yield partition(self.graph, k)
                yield packed(self.graph, k)
            return
        choices = degrees(self.profile, self.global_batch)
        vertices = np.array(self.graph.vertices)
        while True:
            k = int(self._random.choice(choices))
            yield deal(self.graph, k, [int(item) for item in self._random.permutation(vertices)])

    def _exchanged(self, parts: Counts) -> Counts:
        """A copy of a partition with one to three GPUs exchanged between, or moved between, two parts."""
        changed = parts.copy()
        for _ in range(int(self._random.integers(1, 4))):
            a, b = (int(item) for item in self._random.choice(len(parts), 2, replace=False))
            i = int(self._random.choice(np.flatnonzero(changed[a])))
            j = int(self._random.choice(np.flatnonzero(changed[b])))
            changed[a, i] -= 1
            changed[b, i] += 1
            if self._random.random() < 0.5 or not changed[a].any():
                changed[b, j] -= 1
                changed[a, j] += 1
        return changed

    def _look(self, parts: Counts, seen: set[tuple[tuple[tuple[Fragment, ...], int], ...]]) -> float:
        """Record the ensembles of a partition; returns the least closed-form seconds, inf if none is new."""
        given, seats = [], []
        for row in parts.tolist():
            held = sorted((self.machines[item], count, item) for item, count in enumerate(row) if count)
            given.append(tuple((kind, count) for kind, count, _ in held))
            seats.append([item for _, _, item in held])
        counted = tuple(sorted((part, given.count(part)) for part in set(given)))
        if counted in seen:
            return float("inf")
        seen.add(counted)
        best, made = float("inf"), set[tuple[int, tuple[Pipe, ...]]]()
        for number, saving in enumerate(self.savings):
            profile = saving.among(len(given))
            for sequences in divisors(self.global_batch):
                total = self.global_batch // sequences
                if sequences > WIDEST or total < len(given) or self.deadline.over():
                    break
                key = (number, len(given) if saving.sharded else 1, sequences)
                known = self._pipes.setdefault(key, Pipes(profile, sequences))
                if total > sum(known.rate(part) for part in given) * self._best_s * KEPT:
                    continue
                ensemble = _ensemble(known, given, seats, total, saving)
                if ensemble is None or (sequences, ensemble.pipes) in made:
                    continue  # saving more memory than it takes helps nobody
                made.add((sequences, ensemble.pipes))
                seconds = step_s(ensemble, profile)
                best = min(best, seconds)
                self._best_s = min(self._best_s, seconds)
                self.found.setdefault(str(ensemble), (seconds, ensemble))
        return best


def degrees(profile: Profile, global_batch: int) -> list[int]:
    """Numbers of pipelines to try: small ones, powers of two, and divisors of the numbers of GPUs."""
    counts = [kind.gpus for kind in profile.kinds]
    most = min(sum(counts), global_batch)
    even = {divisor for count in (*counts, sum(counts)) for divisor in divisors(count)}
    even |= {1 << power for power in range(most.bit_length())}
    every = EVERY if sum(counts) <= LARGE else 0
    return [k for k in range(1, most + 1) if k <= every or k in even]


def _graph(profile: Profile, machines: Sequence[int]) -> DeviceGraph:
    """The device graph: one class per machine, speeds as weights, seconds per byte as edge weights."""
    kinds = range(len(profile.kinds))
    size = profile.boundary_bytes
    between = np.array([[1.0 / profile.rate(a, b, size, 1) for b in kinds] for a in kinds])
    between = (between + between.T) / 2.0
    edges = between[np.ix_(machines, machines)]
    counts = np.array([profile.kinds[kind].gpus_per_node for kind in machines], dtype=np.int64)
    # A machine of one GPU has no link inside, and no edge either.
    alone = np.array(
        [
            0.0 if item.gpus_per_node == 1 else 1.0 / profile.inside_rate(kind, size)
            for kind, item in enumerate(profile.kinds)
        ]
    )
    speeds = np.array([speed_of(profile, kind) for kind in kinds])
    np.fill_diagonal(edges, alone[machines])
    return DeviceGraph(counts, speeds[machines], edges)


def _ensemble(
    known: Pipes,
    given: Sequence[tuple[Fragment, ...]],
    seats: Sequence[Sequence[int]],
    total: int,
    saving: Saving,
) -> Ensemble | None:
    """The best pipeline of every part, sharing `total` microbatches; None where a part has no pipeline."""
    pipes = list[Pipe]()
    for part in given:
        pipe = known.best(part, max(total // len(given), 1))
        if pipe is None:
            return None
        pipes.append(pipe)
    shares = shared_microbatches(pipes, total)
    if shares is None:
        return None
    places = []
    for pipe, part, machines in zip(pipes, given, seats, strict=True):
        left: dict[Fragment, list[int]] = {}
        for fragment, machine in zip(part, machines, strict=True):
            left.setdefault(fragment, []).append(machine)
        places.append(tuple(left[fragment].pop(0) for fragment in pipe.fragments))
    return Ensemble(tuple(pipes), tuple(places), shares, known.sequences, saving.like)
