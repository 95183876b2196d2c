"""Mixes of copies on large clusters: their least step, and when no more shapes are looked for."""

from types import SimpleNamespace

import pytest

from tangram_sim.clusters import Cluster, Network, NodeGroup
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import Counts, SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.composed import Composed
from tangram_sim.planners.tangram.fleets.fleet import master
from tangram_sim.planners.tangram.fleets.patterns import FleetProblem, PipelinePattern
from tangram_sim.planners.tangram.fleets.scale import FAR, FAR_TURNS, Fleets
from tangram_sim.planners.usable import usable_islands
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
NORMAL = budget("normal")


def pattern(nodes: tuple[float, ...], first_s: float, pace_s: float) -> PipelinePattern:
    """One sequence at a time."""
    return PipelinePattern(nodes, 4, 1, 1, first_s, pace_s, Composed(first_s, (), 1, 1))


def test_the_least_step_may_be_shorter_than_a_few_first_microbatches() -> None:
    """Four copies do four sequences each: one first microbatch and three further ones, 2.3 s."""
    answer = master([pattern((1,), 2.0, 0.1)], (4,), 16)
    assert answer is not None
    assert answer.step_s == pytest.approx(2.3, rel=1e-4)


class NothingFound:
    """Pieces of which none finds a pattern; how many were run, turn by turn."""

    def __init__(self) -> None:
        self.turns: list[int] = []

    def run(self, function: object, work: list[tuple[object, ...]], tell: object) -> list[object]:
        """No pattern for any piece; the first sequences are as usual as any."""
        self.turns.append(len(work))
        return [([], 1.0 / len(self.turns), start, Counts()) for _, _, start, *_ in work]


@pytest.mark.parametrize("times_as_long", [1.0, 2.0])
def test_where_mixes_are_far_from_the_best_plan_no_more_shapes_are_looked_for(
    times_as_long: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every shape is better than the one before, so that only this ends the search early."""
    job = Job(global_batch=256, dtype="bf16")
    groups = load_cluster("a100x128-h100x128", HWDB).groups
    cluster = Cluster("far", tuple(NodeGroup(group.name, 64, group.node) for group in groups), Network())
    islands, _ = usable_islands(cluster, job, HWDB, SearchOptions())
    model = load_model("gpt3-6.7b")
    ground = FleetProblem(model, cluster, job, HWDB, islands, Constraints(), "grid", NORMAL)
    pieces, bound = NothingFound(), WorkBound(model, job, islands, HWDB, cluster)
    fleets = Fleets(ground, bound, SimpleNamespace(), Counts(), pieces, Deadline())
    fleets.patterns = [pattern((1.0, 0.0), 1.0, 1.0)]
    mixed = SimpleNamespace(step_s=times_as_long)
    monkeypatch.setattr(fleets, "_best_of", lambda pools: mixed)
    fleets._search([((0,), 0.5), ((1,), 0.5)], 2.0, 1, SimpleNamespace(step_s=1.0))
    assert len(pieces.turns) == FAR_TURNS if times_as_long > FAR else len(pieces.turns) > 4
    pieces.turns.clear()
    fleets._search([((0,), 0.5), ((1,), 0.5)], 2.0, 1)  # beside no plan there is nothing to be far from
    assert len(pieces.turns) > 4
