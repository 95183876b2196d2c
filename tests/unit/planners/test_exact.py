"""The exact composition: its play is the engine's, its bound is below every play, its answer is the best."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.planners.budget import budget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.composition.exact import Proof, _within, find
from tangram_sim.planners.tangram.composition.labels import Labels, Look, PipelineTable, roads
from tangram_sim.planners.tangram.composition.play_kernels import play
from tangram_sim.sim import fast
from tangram_sim.training.schedules import StageTimes, step_template
from tests.planning import HWDB, Workshop, composed_of, objective_s, pipelines, random_instance

seconds = st.floats(0.0, 3.0, allow_subnormal=False)


@settings(deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 9), st.sampled_from(["1f1b", "gpipe"]))
def test_the_compiled_play_is_the_engines(
    data: st.DataObject, stages: int, microbatches: int, schedule: str
) -> None:
    """Unequal stages, transfers longer than passes, tails: equal to the op graph's longest path."""
    forward, backward, sync, optimizer, hop = (
        np.array(data.draw(st.lists(seconds, min_size=stages, max_size=stages))) for _ in range(5)
    )
    nothing = np.zeros(stages)
    step = step_template(schedule, stages, microbatches).with_durations(
        StageTimes(forward, backward, nothing, hop, hop, sync, optimizer)
    )
    times = np.column_stack([forward, backward, sync, optimizer])
    _, ends = play(times, hop, microbatches, schedule == "gpipe")
    assert ends == pytest.approx(fast.makespan(step), rel=1e-12, abs=1e-12)


def everything(seed: int, microbatch: int, schedule: str, limit: float) -> tuple[Proof, list[float]]:
    """(what is found below `limit` times the best step, the steps of all pipelines)."""
    instance = random_instance(seed)
    instance = replace(instance, job=replace(instance.job, schedule=schedule))
    workshop = Workshop(instance)
    table, hops = workshop.table(microbatch), workshop.hops(microbatch)
    played = [
        workshop.played(composed_of(table, pipeline, objective_s(table, pipeline, hops)))
        for pipeline in pipelines(table, workshop.counts)
    ]
    size = instance.job.boundary_bytes(instance.model, microbatch)
    ways = roads(workshop.islands, instance.cluster, HWDB, size, hops)
    limit_s = limit * min(played, default=1.0)
    proof = find(table, workshop.counts, ways, instance.model, instance.job, limit_s, float("inf"))
    for pipeline in proof.pipelines[:5] if proof.exact else []:
        assert pipeline.objective_s == pytest.approx(workshop.played(pipeline), rel=1e-9)
    return proof, played


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("seed", range(400, 412))
def test_the_best_played_pipeline_is_found_and_nothing_is_below_the_bound(seed: int, schedule: str) -> None:
    """Against brute force over every pipeline of the table, without a limit and with a narrow one."""
    for microbatch, limit in ((1, float("inf")), (4, 1.05)):
        proof, played = everything(seed, microbatch, schedule, limit)
        assert bool(proof.pipelines) == bool(played)
        if played:
            assert proof.exact
            assert 0 < proof.bound_s <= min(played) * (1 + 1e-9)
            assert proof.pipelines[0].objective_s <= min(played) * (1.005 if schedule == "1f1b" else 1.02)


@pytest.mark.parametrize("seed", range(400, 404))
def test_a_limit_below_the_best_step_is_its_own_bound(seed: int) -> None:
    """No pipeline comes out that is played in no less, unless its bound lies below; never one too many."""
    proof, played = everything(seed, 2, "1f1b", 0.999)
    if played:
        assert proof.bound_s <= 0.999 * min(played)
        assert proof.bound_s > 0.8 * min(played)


@pytest.mark.parametrize("seed", [401, 403, 406, 407, 410, 411])
@pytest.mark.parametrize("microbatch", [1, 4])
def test_zero_bubble_pipelines_are_not_played_below_what_any_order_takes(seed: int, microbatch: int) -> None:
    """Its stages work while the last microbatch is on its way: 1F1B's bound is none; serial work is one."""
    proof, played = everything(seed, microbatch, "zb-h1", float("inf"))
    assert bool(proof.pipelines) == bool(played)
    assert not proof.exact
    if played:
        assert 0.4 * min(played) < proof.bound_s <= min(played) * (1 + 1e-9)


@pytest.mark.parametrize(("least", "tried"), [(0, [10, 20, 30]), (11, [20, 30]), (30, [30]), (31, [])])
def test_proofs_are_not_tried_with_less_work_than_a_beam_took(least: int, tried: list[int]) -> None:
    """A look at everything has at least the labels that a beam keeps."""

    class Endless:
        """A table for which no work suffices."""

        def __init__(self) -> None:
            self.asked: list[int] = []

        def below(self, look: Look, _: Deadline) -> None:
            self.asked.append(look.work)

    asked: Any = Endless()
    some = replace(budget("normal"), tolerances=(0.0, 0.1, 0.2), proof_work=(10, 20, 30))
    assert _within(asked, Look(1.0, 0, 0), least, some, Deadline()) is None
    assert asked.asked == tried


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_beam_that_left_nothing_out_is_the_last_one(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wider beams would find the same; and what proves nothing is not looked at again."""
    instance = random_instance(401)
    instance = replace(instance, job=replace(instance.job, schedule=schedule))
    workshop = Workshop(instance)
    table, hops = workshop.table(1), workshop.hops(1)
    size = instance.job.boundary_bytes(instance.model, 1)
    ways = roads(workshop.islands, instance.cluster, HWDB, size, hops)
    widths: list[int] = []
    below = PipelineTable.below

    def looking(self: PipelineTable, look: Look, deadline: Deadline) -> Labels | None:
        widths.append(look.width)
        return below(self, look, deadline)

    monkeypatch.setattr(PipelineTable, "below", looking)
    limit_s = 4 * min(item for item in everything(401, 1, schedule, 1.0)[1])

    def found(beams: tuple[int, ...]) -> float:
        widths.clear()
        some = replace(budget("normal"), first_work=1, widths=beams)
        asked = table, workshop.counts, ways, instance.model, instance.job, limit_s, float("inf")
        return min(
            (pipeline.objective_s for pipeline in find(*asked, 0.0, some).pipelines), default=float("inf")
        )

    best_s = found((1 << 20, 1 << 21))
    assert widths[:2] == [0, 1 << 20]
    assert (1 << 21) not in widths
    assert (len(widths) == 2) == (schedule == "zb-h1")
    assert best_s <= found((1, 1 << 20))
