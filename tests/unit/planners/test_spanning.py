"""Stages on several islands, islands cut finer: exact where it can be, never worse, worth it when played."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tangram_sim.cli.main import app
from tangram_sim.cli.wording import as_options
from tangram_sim.clusters import Cluster, Gpu, Network, Node, NodeGroup
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.placement.cutting import Tolerances
from tangram_sim.placement.islands import find_islands, finer_islands
from tangram_sim.planners.api import Found, SearchOptions
from tangram_sim.planners.budget import budget
from tangram_sim.planners.tangram.composition.labels import LinkBounds, PipelineTable
from tangram_sim.planners.tangram.composition.search import hop_seconds
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.enumeration.table import Beside, PartialPlanTable, slice_classes
from tangram_sim.planners.tangram.findings import SPANNING_FASTER
from tangram_sim.planners.tangram.spanning.joint import JOINT, joint_islands, shares
from tangram_sim.planners.tangram.spanning.mixed import UNEVEN, WAYS, MixedPrices
from tangram_sim.planners.tangram.spanning.spanning import Pipelines, Prospect, Spanning
from tangram_sim.sim import contention
from tangram_sim.studies import api
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Stage
from tangram_sim.training.step.side_by_side import price_plan
from tests.planning import (
    HWDB,
    Instance,
    Workshop,
    composed_of,
    least_s,
    objective_s,
    pipelines,
    random_instance,
    recursion_s,
    ways_of,
)
from tests.unit.planners.test_replication import coarse_instance

NORMAL = budget("normal")


def planned(instance: Instance, **wishes: object) -> Found:
    asked = SearchOptions(constraints=instance.constraints, **wishes)  # type: ignore[arg-type]  # named by the test
    return tangram(instance.model, instance.cluster, instance.job, HWDB, asked)


@cache
def pairs() -> list[tuple[Found, Found]]:
    """(stages on one island each, on several allowed): random instances, pipelines side by side allowed."""
    made = [coarse_instance(seed) for seed in (8, 20, 21, 28)]
    made += [random_instance(seed) for seed in (8, 21)]
    return [(planned(instance, spanning=False), planned(instance)) for instance in made]


def uneven(stage: Stage) -> bool:
    """Whether the parts of a stage take unequal shares of a microbatch."""
    return len({part.sequences_per_microbatch for part in stage.parts}) > 1


@pytest.mark.slow
def test_never_worse_than_stages_on_one_island_each() -> None:
    """What the search finds without them, pipelines side by side included, stays a candidate."""
    for without, free in pairs():
        assert free.ranked[0].step_s <= without.ranked[0].step_s
        if free.ranked[0].step_s == without.ranked[0].step_s:
            assert free.ranked[0].plan.pipelines == without.ranked[0].plan.pipelines


@pytest.mark.slow
def test_uneven_shares_win_by_five_per_cent_when_played() -> None:
    """Data parallelism across islands, shares as uneven as speeds, against all that tangram finds without."""
    gains = []
    for without, free in pairs():
        best = free.ranked[0]
        stages = [stage for pipeline in best.plan.pipelines for stage in pipeline.stages]
        if not any(uneven(stage) for stage in stages):
            continue
        lowered = price_plan(best.plan, HWDB)  # played anew, from nothing but the decisions
        assert lowered.fits()
        assert contention.play(lowered.graph()).makespan_s == pytest.approx(best.step_s, rel=1e-9)
        gains.append(1 - best.step_s / without.ranked[0].step_s)
    assert max(gains) >= 0.05


def test_islands_merge_at_their_worst_member_where_that_is_faster() -> None:
    """Two kinds that no tolerance would join, as one part: chosen by the search, said in the notes."""
    gains = [
        1 - free.ranked[0].step_s / without.ranked[0].step_s
        for without, free in pairs()
        if any("+" in stage.parts[0].island for stage in free.ranked[0].plan.pipelines[0].stages)
    ]
    assert gains
    assert max(gains) >= 0.05


def test_a_plan_with_parts_is_written_and_simulated_again(tmp_path: Path) -> None:
    """The file of such a plan holds all decisions: another process plays the same step."""
    instance = coarse_instance(21)
    result = api.plan(instance.model, instance.cluster, instance.job, hwdb=HWDB)
    assert any(len(stage.parts) > 1 for stage in result.forecast.plan.pipelines[0].stages)
    path = tmp_path / "plan.json"
    path.write_text(result.document.model_dump_json())
    again = CliRunner().invoke(app, ["simulate", str(path), "--json"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["step_s"] == pytest.approx(result.document.step_s, rel=1e-9)


def joint_table(workshop: Workshop, microbatch: int) -> tuple[PartialPlanTable, LinkBounds]:
    """A table with partial plans on joint islands, three at most for each class of slices, and its roads."""
    enumeration, instance = workshop.enumeration(), workshop.instance
    prices = MixedPrices(enumeration, workshop.referee.lowering, NORMAL)
    nodes = joint_islands(workshop.counts)
    partials = [
        (group, joint, partial)
        for group, (start, stop) in enumerate(slice_classes(instance.model)[0])
        for joint, taken in enumerate(nodes)
        for partial in list(prices.partials(taken, start, stop, microbatch, float("inf")))[:3]
    ]
    table = enumeration.table(microbatch, float("inf"), [1] * len(nodes[0]), Beside(nodes, tuple(partials)))
    kinds = [*workshop.islands, *(prices.island(taken) for taken in nodes)]
    size = instance.job.boundary_bytes(instance.model, microbatch)
    hops = hop_seconds(kinds, instance.cluster, HWDB, size, ())
    return table, ways_of(workshop, table, hops, kinds)


@pytest.mark.parametrize("seed", [0, 4, 8, 9, 25])
def test_composition_with_joint_islands_equals_brute_force(seed: int) -> None:
    """Stages on one island and on several in one pipeline: the least objective; no limit loses it."""
    workshop = Workshop(random_instance(seed))
    table, ways = joint_table(workshop, 4)
    problem = PipelineTable(table, workshop.counts, ways, workshop.instance.model, workshop.instance.job)
    values = {pipeline: recursion_s(problem, pipeline) for pipeline in pipelines(table, workshop.counts)}
    best = least_s(problem)
    assert best == pytest.approx(min(values.values(), default=float("inf")), rel=1e-12)
    if not values:
        pytest.skip("nothing fits this instance")
    assert any(
        int(table.ints[option, 0]) >= len(workshop.counts) for value in values for option, _, _ in value
    )
    assert least_s(problem, best * (1 + 1e-9)) == pytest.approx(best, rel=1e-12)
    assert least_s(problem, best * (1 - 1e-9)) == float("inf")


def test_a_partial_plan_is_priced_as_its_stage_is_in_a_plan() -> None:
    """The price of a stage of several parts is that of the played plan, and memory says where it fits."""
    workshop = Workshop(random_instance(1))
    table, _ = joint_table(workshop, 4)
    seen = 0
    for option, partial in enumerate(table.partials):
        whole = partial.start == 0 and partial.stop == workshop.instance.model.layers + 2
        if not whole or not partial.portions:
            continue
        composed = composed_of(table, ((option, 0, partial.stop),), 0.0)
        step_s = workshop.played(composed)
        value = objective_s(table, ((option, 0, partial.stop),), np.zeros((1, 1)))
        assert step_s == pytest.approx(value, rel=1e-9)
        seen += 1
    assert seen


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=4), st.integers(1, 64))
def test_shares_use_every_sequence_once(speeds: list[float], microbatch: int) -> None:
    """They add up, leave no part empty, differ, and stay near the speeds unless there is no other way."""
    found = list(shares(speeds, microbatch, WAYS, UNEVEN))
    assert bool(found) == (microbatch >= len(speeds))
    assert len(found) == len(set(found)) <= 3
    for share in found:
        assert sum(share) == microbatch
        assert min(share) >= 1
    if len(found) > 1:
        slowest = [max(part / speed for part, speed in zip(item, speeds, strict=True)) for item in found]
        assert min(slowest) <= UNEVEN * microbatch / sum(speeds) * (1 + 1e-9)


def test_joint_islands_are_few_and_different() -> None:
    """No island alone, none empty, within the nodes there are; a thousand nodes make no more of them."""
    for counts in ((1, 1), (3, 1), (4, 2, 2), (64, 64), (7,)):
        found = joint_islands(counts)
        assert len(found) == len(set(found)) <= 16 * len(counts) * (len(counts) - 1) / 2 + min(counts)
        for nodes in found:
            assert sum(count > 0 for count in nodes) >= 2
            assert all(0 <= used <= have for used, have in zip(nodes, counts, strict=True))


@pytest.mark.parametrize(("near", "rounds"), [(True, [60, 30]), (False, [60])])
def test_rounds_end_with_the_first_that_comes_near_nothing(
    near: bool, rounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The likeliest prospects first; others where those led to pipelines near the best plan."""
    workshop = Workshop(random_instance(8))
    enumeration, looked = workshop.enumeration(), list[int]()
    enumeration.counts.asked = 90 * JOINT["normal"].share
    spanning = Spanning(enumeration, workshop.referee, NORMAL)
    some = [Prospect(float(number), 1, number % 3, number % 5) for number in range(200)]

    def looking(sizes: list[int], limit_s: float, kept: list[Prospect]) -> Pipelines:
        looked.append(len(kept))
        assert {item.least_s < JOINT["normal"].least for item in kept} == {len(looked) == 1}
        return {((), len(looked)): 1e6} if near else {}

    monkeypatch.setattr(spanning, "_table", lambda microbatch, limit_s: microbatch)
    monkeypatch.setattr(spanning, "_prospects", lambda microbatch, limit_s: some if microbatch == 1 else [])
    monkeypatch.setattr(spanning, "_undivided", lambda limit_s: iter(()))
    monkeypatch.setattr(spanning, "_round", looking)
    assert spanning.improve(1, 1e3) is None
    assert looked == rounds


def near_kinds(factor: float) -> Instance:
    """Three nodes of a GPU kind, one of another whose peaks are `factor` of the first one's."""
    first = HWDB.gpu("V100-SXM2-32GB")
    second = replace(
        first, name="V100-near", peaks=tuple((name, peak * factor) for name, peak in first.peaks)
    )

    def node(gpu: Gpu) -> Node:
        return Node(gpu, 2, HWDB.link("PCIe3x16"), 3e9)

    block = Block(Attention(16, 16, 128, 128), FeedForward(8192, gated=False, bias=True), norm_bias=True)
    model = Model("near", "gpt2", 2048, 8192, (block,) * 10, tied=False)
    groups = (NodeGroup("g0", 2, node(first)), NodeGroup("g1", 1, node(second)))
    job = Job(64, 1024, "fp16", "adamw", "1f1b")
    return Instance(model, Cluster("near", groups, Network()), job, SearchOptions().constraints)


@pytest.mark.slow
def test_what_a_tolerance_joined_is_taken_apart_where_that_is_faster() -> None:
    """7 % apart are one island by default; the search cuts it and keeps what is faster, and says so."""
    instance = near_kinds(0.93)
    islands = find_islands(instance.cluster, "fp16", hwdb=HWDB)
    assert [island.name for island in islands] == ["g0+g1"]
    assert [finer_island.name for finer_island in finer_islands(instance.cluster, "fp16", islands, HWDB)] == [
        "g0",
        "g1",
    ]
    joined, free = planned(instance, spanning=False), planned(instance)
    assert free.ranked[0].step_s <= joined.ranked[0].step_s * 0.99
    assert any("g0, g1 taken apart" in each.text for each in SPANNING_FASTER.among(free.findings))
    fixed = planned(instance, tolerances=Tolerances())  # the user's cut is not varied
    assert not any("taken apart" in each.text for each in fixed.findings)
    assert free.ranked[0].step_s <= fixed.ranked[0].step_s


def test_equal_islands_are_left_as_they_are() -> None:
    """Where GPUs of an island are equal there is nothing to take apart."""
    instance = near_kinds(1.5)
    islands = find_islands(instance.cluster, "fp16", hwdb=HWDB)
    assert finer_islands(instance.cluster, "fp16", islands, HWDB) == islands


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--link-tolerance", "-1"], "--link-tolerance"), (["--memory-tolerance", "inf"], "--memory-tolerance")],
)
def test_bad_tolerances_say_what_to_type(options: list[str], words: str) -> None:
    """Exit code 2 and the option, never a traceback."""
    result = CliRunner().invoke(app, ["plan", "gpt2", "azure-c1-t4x4-v100x4", *options])
    assert result.exit_code != 0
    assert words in result.output + as_options(str(result.exception or ""))
