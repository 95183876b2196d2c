"""Pipelines side by side: their shares of the batch, the step time in closed form, and their ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tangram_sim.clusters import Cluster
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.planners.coarse.profile import Profile
from tangram_sim.planners.peers.flashflex.pipelines import Pipe
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Plan, Share, pipeline_of_shares
from tangram_sim.training.shares import by_earliest_end

Structure = tuple[
    tuple[tuple[int, int], ...], tuple[int, ...], int
]  # kind and tp of stages, cuts, microbatches
Seats = tuple[int, ...]  # the machine of every fragment of a pipeline


@dataclass(frozen=True)
class Ensemble:
    """Pipelines side by side, the machines of their fragments, and their microbatches of `sequences` each.

    `like` is the layout that sets ZeRO stage and recomputation of all pipelines.
    """

    pipes: tuple[Pipe, ...]
    seats: tuple[Seats, ...]
    microbatches: tuple[int, ...]
    sequences: int
    like: Layout

    def __str__(self) -> str:
        """The pipelines in the notation of recorded plans, identical ones once with their number."""
        words = []
        for (stages, cuts, given), numbers in sorted(self.alike().items()):
            rows = zip(pairwise(cuts), stages, strict=True)
            line = " > ".join(f"L{b - a}[1x{kind}/tp{tp}]" for (a, b), (kind, tp) in rows)
            words.append(f"{len(numbers)} x ({line}), {given} x {self.sequences} each")
        return f"{'; '.join(words)}; {self.like}"

    def alike(self) -> dict[Structure, list[int]]:
        """Pipeline numbers grouped by structure and number of microbatches, in order of appearance."""
        found: dict[Structure, list[int]] = {}
        for number, (pipe, given) in enumerate(zip(self.pipes, self.microbatches, strict=True)):
            found.setdefault((*pipe.structure, given), []).append(number)
        return found


def shared_microbatches(pipes: Sequence[Pipe], total: int) -> tuple[int, ...] | None:
    """Microbatches of every pipeline so that the last ends as early as possible; None if one gets none."""
    given = by_earliest_end(total, lambda number, count: pipes[number].seconds(count), [1] * len(pipes))
    return given if min(given) > 0 else None


def step_s(ensemble: Ensemble, profile: Profile) -> float:
    """Seconds of a step in closed form: the slowest pipeline, then gradient synchronisation and update.

    1F1B without overlap or shared links, as in the closed form of the other peers; no hand-fitted factors.
    """
    pairs = zip(ensemble.pipes, ensemble.microbatches, strict=True)
    return max(pipe.seconds(count) for pipe, count in pairs) + tail_s(ensemble, profile)


def tail_s(ensemble: Ensemble, profile: Profile) -> float:
    """Seconds of the longest update plus the longest gradient synchronisation of any machine.

    Every layer has one copy per pipeline, in rings from machine to machine: its gradients cross a machine's
    links once, however many GPUs there hold the layer. ZeRO-3 also gathers weights (x 1.5).
    """
    copies = len(ensemble.pipes)
    # The machines of every atom, by (kind, tp) of its holders.
    holders: list[dict[tuple[int, int], set[int]]] = [{} for _ in range(profile.atoms)]
    update = 0.0
    for pipe, seats in zip(ensemble.pipes, ensemble.seats, strict=True):
        for (start, stop), (fragment, team) in zip(pairwise(pipe.cuts), pipe.stages, strict=True):
            table = profile.layers(team.kind, team.tp, team.sequences)
            if table is not None:
                update = max(update, table.updates[stop] - table.updates[start])
            for atom in range(start, stop):
                holders[atom].setdefault((team.kind, team.tp), set()).add(seats[fragment])
    if copies == 1:
        return update
    busy: dict[int, float] = {}
    known: dict[tuple[object, ...], float] = {}
    for atom, held in enumerate(holders):
        machines = set().union(*held.values())
        size = 2.0 * (copies - 1) / copies * profile.gradient_bytes[atom]
        key = (tuple(sorted(held)), len(machines) == 1, profile.gradient_bytes[atom])
        if key not in known:
            known[key] = size / _ring_rate(sorted(held), len(machines) == 1, size, profile)
        for machine in machines:
            busy[machine] = busy.get(machine, 0.0) + known[key]
    factor = 1.5 if ensemble.like.zero_stage == 3 else 1.0
    return update + factor * max(busy.values())


def _ring_rate(held: Sequence[tuple[int, int]], inside: bool, size: float, profile: Profile) -> float:
    if inside:
        return min(profile.inside_rate(kind, size / tp) * tp for kind, tp in held)
    return min(profile.rate(a, b, size, min(ta, tb)) for a, ta in held for b, tb in held)


def plan_of(ensemble: Ensemble, model: Model, cluster: Cluster, job: Job, profile: Profile) -> Plan:
    """The plan of an ensemble, with ranks; pipelines of equal structure become one with data parallelism."""
    free: list[list[int]] = []
    for kind in profile.kinds:
        size = kind.gpus_per_node
        free += [list(kind.ranks[node * size : (node + 1) * size]) for node in range(kind.nodes)]
    seated: dict[int, list[tuple[int, ...]]] = {}
    # Wide groups first, so that they start where their links do.
    widest = [max(tp for _, tp in pipe.structure[0]) for pipe in ensemble.pipes]
    for number in sorted(range(len(widest)), key=lambda index: (-widest[index], index)):
        seated[number] = []
        for fragment, team in ensemble.pipes[number].stages:
            node = free[ensemble.seats[number][fragment]]
            seated[number].append(tuple(node[: team.tp]))
            del node[: team.tp]
    pipelines = tuple(
        _pipeline(structure, [seated[number] for number in numbers], ensemble, model, profile)
        for structure, numbers in ensemble.alike().items()
    )
    return Plan(model, cluster, job, pipelines)


def _pipeline(
    structure: Structure,
    alike: Sequence[Sequence[tuple[int, ...]]],
    ensemble: Ensemble,
    model: Model,
    profile: Profile,
) -> Pipeline:
    """Pipelines of one structure as a data-parallel one. Embedding and head are atoms, but not blocks."""
    stages, cuts, microbatches = structure
    shares = []
    for place, (kind, tp) in enumerate(stages):
        layout = replace(
            ensemble.like,
            tp=tp,
            dp=len(alike),
            sequence_parallel=ensemble.like.sequence_parallel and tp > 1,
        )
        ranks = tuple(rank for row in alike for rank in row[place])
        shares.append([Share(profile.kinds[kind].name, ranks, len(alike) * ensemble.sequences, layout)])
    blocks = [min(max(cut - 1, 0), model.layers) for cut in cuts]
    return pipeline_of_shares(microbatches, blocks, shares)
