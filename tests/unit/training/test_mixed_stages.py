"""Mixed stages, layouts per run of layers and pipelines side by side: laws, brute force, engines, files."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, ReadSet
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.placement.ranks import Placement
from tangram_sim.sim import contention, fast, reference
from tangram_sim.studies import api
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.explain import explain
from tangram_sim.studies.forecast import document, forecast
from tangram_sim.studies.planfile import plan_from_document
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Plan, Share, pipeline_of_shares
from tangram_sim.training.stage.runs import missing_share
from tangram_sim.training.stage.sharing import Sharings, holders_by_atom
from tangram_sim.training.step.boundary import boundary_s, flows
from tangram_sim.training.step.lowered import Lowering
from tangram_sim.training.step.node_links import _weighted
from tangram_sim.training.step.side_by_side import LoweredPlan, price_plan

HWDB = Hwdb.load()
BLOCK = Block(Attention(16, 16, 64, 64), FeedForward(4096, gated=False, bias=True), norm_bias=True)
MODEL = Model("small", "gpt2", 1024, 51200, (BLOCK,) * 8, tied=True)
JOB = Job(32, 1024, "fp16", "adamw", "1f1b")


def ranks(start: int, stop: int) -> tuple[int, ...]:
    return tuple(range(start, stop))


def cluster(*kinds: tuple[str, int]) -> Cluster:
    groups = tuple(NodeGroup(f"g{n}", count, HWDB.node(name)) for n, (name, count) in enumerate(kinds))
    return Cluster("mixed", groups)


V100S = cluster(("p3.8xlarge", 4))
MIXED = cluster(("p3.8xlarge", 2), ("g4dn.12xlarge", 2))


def plan(*pipelines: Pipeline, where: Cluster = V100S, job: Job = JOB, model: Model = MODEL) -> Plan:
    return Plan(model, where, job, pipelines)


def priced(made: Plan) -> LoweredPlan:
    return price_plan(made, HWDB)


def two_stages(*stages: list[Share], microbatches: int = 4) -> Pipeline:
    return pipeline_of_shares(microbatches, [0, 4, 8], stages)


def one_part(layout: Layout) -> Plan:
    doubled = replace(layout, dp=2 * layout.dp)
    return plan(two_stages([Share("g0", ranks(0, 8), 8, doubled)], [Share("g0", ranks(8, 16), 8, doubled)]))


def two_parts(layout: Layout, where: Cluster = V100S) -> Plan:
    first = [Share("g0", ranks(0, 4), 4, layout), Share("g0", ranks(4, 8), 4, layout)]
    second = [Share("g0", ranks(8, 12), 4, layout), Share("g0", ranks(12, 16), 4, layout)]
    return plan(two_stages(first, second), where=where)


LAYOUTS = [Layout(tp=tp, dp=4 // tp, zero_stage=zero) for tp in (1, 2, 4) for zero in range(4)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_two_equal_parts_are_one_part_with_twice_the_replicas(layout: Layout) -> None:
    """The law of mixed stages: cutting a stage's ranks into equal parts changes nothing but the notation."""
    lowered_plan, two = priced(one_part(layout)), priced(two_parts(layout))
    assert two.step_s() == pytest.approx(lowered_plan.step_s(), rel=1e-12)
    assert two.fullness() == pytest.approx(lowered_plan.fullness(), rel=1e-12)
    shared = [contention.play(lowered.graph()).makespan_s for lowered in (lowered_plan, two)]
    assert shared[1] == pytest.approx(shared[0], rel=0.02)


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[5], LAYOUTS[8]], ids=str)
def test_two_equal_pipelines_are_twice_the_replicas(layout: Layout) -> None:
    """Side by side with half the batch each: the same passes and memory; only the tied exchange differs."""
    halves = [
        pipeline_of_shares(
            4,
            [0, 4, 8],
            [
                [Share("g0", ranks(4 * p, 4 * p + 4), 4, layout)],
                [Share("g0", ranks(8 + 4 * p, 12 + 4 * p), 4, layout)],
            ],
        )
        for p in range(2)
    ]
    both, lowered_plan = priced(plan(*halves)), priced(one_part(layout))
    tied = both.steps[0].times.tied_s - lowered_plan.steps[0].times.tied_s
    assert both.step_s() == pytest.approx(lowered_plan.step_s() + tied, rel=1e-9)
    assert both.fullness() == pytest.approx(lowered_plan.fullness(), rel=1e-12)


@settings(max_examples=15, deadline=None)
@given(
    share=st.integers(1, 7),
    slow=st.sampled_from(("T4", "V100")),
    tp=st.sampled_from((1, 2, 4)),
    zero=st.integers(0, 3),
)
def test_a_slower_part_never_speeds_up_the_step(share: int, slow: str, tp: int, zero: int) -> None:
    """Monotony: with one part's GPUs twice as slow no step is shorter, uncontended."""
    kind = 1 if slow == "T4" else 0
    layout = Layout(tp=tp, dp=4 // tp, zero_stage=zero)
    if min(share, 8 - share) < layout.dp:
        layout = Layout(tp=4, zero_stage=zero)
    parts = [
        [Share("g0", ranks(0, 4), share, layout), Share("g1", ranks(8, 12), 8 - share, layout)],
        [Share("g0", ranks(4, 8), share, layout), Share("g1", ranks(12, 16), 8 - share, layout)],
    ]
    made = plan(two_stages(*parts), where=MIXED)
    group = MIXED.groups[kind]
    gpu = group.node.gpu
    slower = replace(
        gpu,
        name="slow",
        peaks=tuple((dtype, peak / 2) for dtype, peak in gpu.peaks),
        memory_bytes_per_s=gpu.memory_bytes_per_s / 2,
    )
    groups = list(MIXED.groups)
    groups[kind] = replace(group, node=replace(group.node, gpu=slower))
    after = priced(replace(made, cluster=Cluster("slower", tuple(groups))))
    assert after.step_s() >= priced(made).step_s() * (1 - 1e-12)


def uneven() -> Plan:
    """All at once: two pipelines with their own cuts, a mixed stage with tp by kind, layouts by run."""
    first = pipeline_of_shares(
        2,
        [0, 5, 8],
        [
            [Share("g0", ranks(0, 2), 5, Layout(tp=2)), Share("g1", ranks(8, 12), 3, Layout(tp=4))],
            [Share("g0", ranks(2, 4), 8, ((6, Layout(tp=2)), (8, Layout(dp=2, recompute="full"))))],
        ],
    )
    second = pipeline_of_shares(
        4,
        [0, 2, 8],
        [[Share("g1", ranks(12, 16), 4, Layout(dp=2, tp=2))], [Share("g0", ranks(4, 8), 4, Layout(dp=4))]],
    )
    return plan(first, second, where=MIXED)


def test_engines_agree_on_uneven_pipelines() -> None:
    """The compiled engine and the reference give every op the same times where links are not shared."""
    lowered = priced(uneven())
    graph = lowered.graph(links=False)
    quick, slow = fast.play(graph), reference.play(graph)
    np.testing.assert_allclose(quick.end_s, slow.end_s, rtol=1e-9)
    assert contention.play(lowered.graph()).makespan_s >= quick.makespan_s * (1 - 1e-9)


def test_a_joined_step_is_what_brute_force_makes_of_it() -> None:
    """From the plan by hand: each pipeline's own end, then sync of everyone who shares a layer, optimizer."""
    lowered = priced(uneven())
    ends, syncs, tied = {}, {}, {}
    for number, step in enumerate(lowered.steps):
        timeline = fast.play(step.bare_graph())
        kinds, stages = timeline.graph.kind, step.template.stage
        for stage in range(2):
            mine = (stages == stage) & (kinds == 5)
            ends[number, stage] = float(timeline.start_s[mine][0])
            syncs[number, stage] = float(timeline.end_s[mine][0])
    # Cuts 5 and 2: first stages share layers with each other, second ones too, and 2..5 cross.
    peers = {(0, 0): [(1, 0), (1, 1)], (0, 1): [(1, 1)], (1, 0): [(0, 0)], (1, 1): [(0, 0), (0, 1)]}
    for number, step in enumerate(lowered.steps):
        waits = [syncs[number, end] for end in (0, 1)]
        waits += [syncs[peer] for end in (0, 1) for peer in peers[number, end]]
        tied[number] = max(waits) + step.times.tied_s
    finish = max(
        max(tied[number], *(syncs[peer] for peer in peers[number, stage]), syncs[number, stage])
        + float(step.times.optimizer_s[stage])
        for number, step in enumerate(lowered.steps)
        for stage in range(2)
    )
    assert lowered.step_s() == pytest.approx(finish, rel=1e-12)


def test_gradient_rings_over_unequal_parts_follow_the_equation() -> None:
    """seconds = max over parts of 2 (D - 1) / D x bytes / (tp x bandwidth): every part needs as long."""
    made = uneven()
    holders = holders_by_atom(made.pipelines, MODEL.layers)[1]
    sharings = Sharings(Placement(MIXED, HWDB))
    shares = [sharings.of(holders, own) for own in range(len(holders))]
    copies = [holder.layout.dp * holder.layout.cp for holder in holders]
    assert {share.replicas for share in shares} == {sum(copies)}
    paces = [share.dense * holder.layout.tp for share, holder in zip(shares, holders, strict=True)]
    assert paces == pytest.approx([paces[0]] * len(paces))  # bytes / tp over the pace: the same for all
    nic = min(g.node.nic_bytes_per_s / 4 * HWDB.network_efficiency.value for g in MIXED.groups)
    assert min(share.dense for share in shares) <= nic * 4


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        (Layout(dp=4), Layout(dp=4, zero_stage=1), 0.0),  # sharding of weights moves no activations
        (Layout(tp=4), Layout(dp=4), 0.0),  # everyone has everything: dropping is free
        (Layout(dp=4), Layout(tp=4), 3 / 4),  # three other quarters
        (Layout(tp=2, dp=2), Layout(tp=4), 1 / 2),
        (Layout(tp=4, sequence_parallel=True), Layout(tp=4), 3 / 4),
        (Layout(dp=2, cp=2), Layout(dp=4), 1 / 8),  # half of its own sequence lies elsewhere
    ],
)
def test_resharding_moves_what_a_rank_lacks(before: Layout, after: Layout, share: float) -> None:
    """Worked by hand on four ranks."""
    assert missing_share(before, after) == pytest.approx(share)


def test_resharding_is_what_the_cells_of_a_microbatch_say() -> None:
    """Against brute force: the microbatch cut into cells that no layout divides, and who holds which."""
    layouts = [
        Layout(tp=tp, cp=cp, dp=12 // tp // cp, sequence_parallel=split)
        for tp, cp in itertools.product((1, 2, 3, 4, 6, 12), repeat=2)
        if 12 % (tp * cp) == 0
        for split in (False, True)
    ]

    def cells(layout: Layout, rank: int) -> set[tuple[int, int]]:
        pieces = layout.cp * (layout.tp if layout.sequence_parallel else 1)
        piece = rank // (layout.tp * layout.cp // pieces) % pieces  # tp fastest, then cp
        replica = rank // (layout.tp * layout.cp)
        rows = range(replica * 12 // layout.dp, (replica + 1) * 12 // layout.dp)
        columns = range(piece * 12 // pieces, (piece + 1) * 12 // pieces)
        return set(itertools.product(rows, columns))

    for before, after in itertools.product(layouts, repeat=2):
        lacking = max(len(cells(after, rank) - cells(before, rank)) for rank in range(12))
        assert missing_share(before, after) == lacking / 144


def test_runs_of_one_layout_price_like_one_run() -> None:
    """Two runs with the same layout are the run they form; another layout in between costs its gathering."""
    layout = Layout(tp=2, dp=2)

    def made(runs: tuple[tuple[int, Layout], ...] | Layout) -> float:
        stages = [[Share("g0", ranks(0, 4), 4, runs)]]
        item = plan(pipeline_of_shares(8, [0, 8], stages), job=replace(JOB, global_batch=32))
        return priced(item).step_s()

    assert made(((3, layout), (8, layout))) == pytest.approx(made(layout), rel=1e-9)
    mixture = made(((4, layout), (8, replace(layout, recompute="full"))))
    assert made(layout) < mixture < made(replace(layout, recompute="full"))


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "gpipe"])
def test_every_schedule_runs_mixed_stages(schedule: str) -> None:
    """Chunks and split backwards are priced per part as well; both engines agree."""
    chunks = 2 if schedule == "interleaved" else 1
    cuts = [0, 2, 4, 6, 8] if chunks == 2 else [0, 4, 8]
    parts = [
        [Share("g0", ranks(0, 4), 6, Layout(dp=4)), Share("g1", ranks(8, 12), 2, Layout(tp=2, dp=2))],
        [Share("g0", ranks(4, 8), 6, Layout(dp=4)), Share("g1", ranks(12, 16), 2, Layout(tp=2, dp=2))],
    ]
    made = plan(pipeline_of_shares(4, cuts, parts, chunks), where=MIXED, job=replace(JOB, schedule=schedule))
    lowered = priced(made)
    graph = lowered.graph(links=False)
    assert fast.play(graph).makespan_s == pytest.approx(reference.play(graph).makespan_s, rel=1e-9)
    assert lowered.step_s() > 0


def test_parts_of_unequal_zero_stages_exchange_their_shards() -> None:
    """A part sharded on its own still all-reduces with the others: the step is longer than without it."""
    stage = [
        Share("g0", ranks(0, 4), 4, Layout(dp=4, zero_stage=1)),
        Share("g0", ranks(4, 8), 4, Layout(dp=4)),
    ]
    lowered = priced(plan(pipeline_of_shares(4, [0, 8], [stage])))
    parts = lowered.steps[0].part_prices[0]
    assert parts[0][0].static_bytes < parts[1][0].static_bytes
    alone = priced(
        plan(pipeline_of_shares(8, [0, 8], [[Share("g0", ranks(0, 4), 4, Layout(dp=4, zero_stage=1))]]))
    )
    assert parts[0][0].gradient_sync_s > alone.steps[0].prices[0][0].gradient_sync_s


def test_boundary_transfers_add_up() -> None:
    """Flows between uneven parts cover the microbatch once; no road is faster than its NICs allow."""
    made = uneven()
    before, after = made.pipelines[0].stages
    moving = flows(before, after)
    assert sum(flow.share for flow in moving) == 1
    placement = Placement(MIXED, HWDB)
    size = 8e6
    seconds = boundary_s(moving, placement, size)
    away = sum(float(f.share) for f in moving if not placement.same_domain(f.source, f.target))
    assert seconds >= away * size / placement.nic_share(after.ranks)
    route = _weighted({0: moving[0].share, 1: moving[1].share}, size)
    carried = [weight * route.bytes for weight in route.weights]
    assert carried == pytest.approx([float(flow.share) * size for flow in moving[:2]])


def test_a_mixed_plan_file_replays_and_explains() -> None:
    """The plan file of an uneven plan gives the same step and decisions back; explain covers every part."""
    made = uneven()
    played = forecast(made, HWDB)
    written = document(played, HWDB, ReadSet(), 0.1)
    again = plan_from_document(written, HWDB, "file")
    assert again.pipelines == made.pipelines
    for engine in ("fast", "reference"):
        assert api.simulate(written, engine=engine, hwdb=HWDB).document.step_s == pytest.approx(
            played.step_s, rel=1e-9
        )
    assert [(row.pipeline, row.stage, row.part) for row in written.stages] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 0),
        (1, 1, 0),
    ]
    found = explain(made, HWDB)
    assert sum(share.seconds for share in found.path) == pytest.approx(played.step_s, rel=1e-9)
    assert {entry.name for entry in found.why_not} >= {"0.0a", "0.0b", "0.1", "1.0", "1.1"}


@pytest.mark.parametrize(
    ("path", "change", "words"),
    [
        ("pipelines 0 stages 0 parts 0", {"sequences_per_microbatch": 4}, r"4 \+ 3 = 7"),
        ("pipelines 1", {"microbatches": 5}, "global_batch is 32"),
        ("pipelines 1 stages 0 parts 0", {"ranks": [0, 1, 2, 3]}, "used twice"),
        ("pipelines 0 stages 1 parts 0 layouts 0", {"layers": [5, 7]}, "covers layers"),
        ("pipelines 0 stages 1 parts 0 layouts 1", {"dp": 4}, "takes 4 GPUs"),
        ("pipelines 0 stages 0 parts 1 layouts 0", {"tp": 2, "dp": 2}, ""),
    ],
)
def test_shares_that_do_not_add_up_are_named(path: str, change: dict[str, Any], words: str) -> None:
    """Sequences, batches, ranks and layers of an edited file are held against each other."""
    data: Any = document(forecast(uneven(), HWDB), HWDB, ReadSet(), 0.1).model_dump()
    place = data
    for key in path.split():
        place = place[int(key) if key.isdigit() else key]
    place.update(change)
    edited = PlanDocument.model_validate(data)
    if words:
        with pytest.raises(BadInputError, match=words):
            plan_from_document(edited, HWDB, "file")
    else:
        assert plan_from_document(edited, HWDB, "file")


def test_lowering_refuses_what_does_not_hold_together() -> None:
    """The Python road names shares, ranks and batches that do not add up, without a plan file."""
    layout = Layout(dp=4)
    good = two_stages([Share("g0", ranks(0, 4), 8, layout)], [Share("g0", ranks(4, 8), 8, layout)])
    with pytest.raises(BadInputError, match="used twice"):
        priced(plan(replace(good, microbatches=2), replace(good, microbatches=2)))
    with pytest.raises(BadInputError, match="global batch"):
        priced(plan(replace(good, microbatches=3)))
    lopsided = two_stages(
        [Share("g0", ranks(0, 4), 4, layout), Share("g0", ranks(8, 12), 4, layout)],
        [Share("g0", ranks(4, 8), 8, layout)],
    )
    with pytest.raises(BadInputError, match="must add up"):
        Lowering.of(plan(lopsided), HWDB).lower(replace(lopsided, microbatch=16))
    with pytest.raises(ValueError, match="cuts"):
        pipeline_of_shares(1, [0, 8], [[Share("g0", ranks(0, 4), 8, layout)]] * 2)
    with pytest.raises(ValueError, match="sequences"):
        two_stages([Share("g0", ranks(0, 4), 8, layout)], [Share("g0", ranks(4, 8), 4, layout)])
