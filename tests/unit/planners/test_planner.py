"""The planner as a whole: pruning is lossless, wishes are respected, the bound is a bound."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.clusters import Cluster, Network, Node, NodeGroup
from tangram_sim.errors import InfeasibleError, TangramError, UnknownNameError
from tangram_sim.health import Health
from tangram_sim.hwdb import cluster_from_dict, load_cluster, load_model
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Answer, Constraints, Rejections, Request
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.parallelizers.layouts import layouts
from tangram_sim.placement.islands import find_islands
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.planners.tangram.composition.search import microbatch_sizes
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.planners.tangram.enumeration.table import PartialPlanTable, slice_classes
from tangram_sim.planners.tangram.fleet_budget import FLEETS
from tangram_sim.planners.tangram.passage import passage_s
from tangram_sim.planners.tangram.told_apart import node_units
from tangram_sim.planners.uniform.layouts import Uniform, uniform_plan
from tangram_sim.sim import fast, reference
from tangram_sim.studies import api
from tangram_sim.training.job import Job
from tangram_sim.training.plan import PartialPlan
from tangram_sim.training.stage.prices import StagePrices
from tangram_sim.training.step.lowered import Lowering
from tests.planning import HWDB, Workshop, least_s, problem_of, random_instance

JOB = Job(16, 1024, "fp16")


def most_behind(table: PartialPlanTable, group: int) -> int:
    """The most stages that can stand behind any slice of a class: one for each atom left."""
    return table.slice_class.shape[0] - 1 - int(np.argwhere(table.slice_class == group)[:, 1].min())


class Undominated(Grid):
    """The grid without dominance pruning: every feasible layout is handed over."""

    def parallelize_many(self, requests: Sequence[Request]) -> list[Answer]:
        return [self.every_layout(request) for request in requests]

    def every_layout(self, request: Request) -> Answer:
        partials: list[PartialPlan] = []
        inner = tuple(range(1, request.island.gpus_per_node + 1)) if request.island.nodes == 1 else (1,)
        for layout in layouts(request.slice.model, request.island.gpus, inner):
            if not request.constraints.allows(layout, request.microbatch):
                continue
            try:
                partial = self.price(request, layout)
            except InfeasibleError:
                continue
            if partial.stages_behind >= 0:
                partials.append(partial)
        return Answer(tuple(partials), Rejections(0, list), len(partials), 0)


@pytest.mark.parametrize("seed", range(8))
def test_what_dominance_pruning_drops_is_beaten_by_something_kept(seed: int) -> None:
    """Of all feasible layouts each has one in the table no slower, deeper or wider, with as many behind."""
    workshop = Workshop(random_instance(seed))
    for microbatch in (1, 4):
        pruned, unpruned = workshop.table(microbatch), workshop.enumeration(Undominated(), ("redundancy",))
        every = unpruned.table(microbatch, float("inf"), [1] * len(workshop.islands))
        assert len(every.partials) > len(pruned.partials) or not pruned.partials
        for group in range(len(every.option_ptr) - 1):
            some, kept = (slice(*table.option_ptr[group : group + 2]) for table in (every, pruned))
            costs, facts, behind = pruned.floats[kept], pruned.ints[kept], most_behind(every, group)
            for cost, (kind, nodes, depth, most) in zip(every.floats[some], every.ints[some], strict=True):
                alike = (facts[:, 0] == kind) & (facts[:, 1] <= nodes) & (facts[:, 2] <= depth)
                no_slower = (costs <= cost * (1 + 1e-9)).all(axis=1)
                room = facts[:, 3] >= min(most, behind)
                assert (alike & no_slower & room).any()


@pytest.mark.parametrize("seed", range(8))
def test_imbalance_and_infeasibility_pruning_never_change_the_winner(seed: int) -> None:
    """Tables asked under a limit just above the optimum still hold the optimum."""
    workshop = Workshop(random_instance(seed))
    free = workshop.table(2)
    best = least_s(problem_of(workshop, free))
    if best == float("inf"):
        pytest.skip("nothing fits this instance")
    limit_s = best * (1 + 1e-6)
    tight = workshop.enumeration().table(2, limit_s, [1] * len(workshop.islands))
    assert least_s(problem_of(workshop, tight), limit_s) == pytest.approx(best, rel=1e-12)
    assert len(tight.partials) <= len(free.partials)


def test_redundancy_asks_once_for_equal_slices_on_equal_islands() -> None:
    """Two groups of the same hardware that cannot be one island double the pairs but not the questions."""
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x4-v100x4", HWDB)
    group = cluster.groups[1]
    doubled = replace(cluster, groups=(*cluster.groups, replace(group, name="g2")))
    apart = [island.part(1) for island in find_islands(doubled, "fp16", hwdb=HWDB)]
    workshop = Workshop(random_instance(0))
    enumeration = workshop.enumeration()
    enumeration.model, enumeration.job = model, Job(16, 1024, "fp16")
    twice = (apart[1], replace(apart[1], name="again"))
    enumeration.islands, enumeration.bound = twice, WorkBound(model, enumeration.job, twice, HWDB)
    enumeration.table(4, float("inf"), [1, 1])
    classes, table = slice_classes(model)
    pairs = sum(entry >= 0 for row in table for entry in row)
    assert enumeration.counts.asked <= len(classes)
    assert enumeration.counts.redundant == 2 * pairs - len(classes)


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20))]
)
def test_no_plan_beats_the_lower_bound(seed: int) -> None:
    """The bound holds for what the planner finds and for uniform layouts, under the same cost model."""
    instance = random_instance(seed)
    model, cluster, job = instance.model, instance.cluster, instance.job
    islands = find_islands(cluster, "fp16", hwdb=HWDB)
    work_s = WorkBound(model, job, islands, HWDB).step_s()
    bound_s = max(work_s, passage_s(model, job, islands, HWDB, cluster))
    lowering = Lowering(Placement(cluster, HWDB), StagePrices(model, job, HWDB))
    steps = []
    for pp in (1, 2):
        for tp in (1, 2):
            for recompute in ("none", "full"):
                try:
                    plan = uniform_plan(model, cluster, job, Uniform(tp=tp, pp=pp, recompute=recompute))
                except TangramError:
                    continue
                step = lowering.lower(plan.pipelines[0])
                steps.append(fast.makespan(step.template.with_durations(step.times)))
    # Layouts are free in every fourth instance; the others keep to the few that are fixed there.
    wishes = SearchOptions() if seed % 4 == 0 else SearchOptions(constraints=instance.constraints)
    with contextlib.suppress(InfeasibleError):
        steps.append(tangram(model, cluster, job, HWDB, wishes).ranked[0].step_s)
    assert all(step >= bound_s * (1 - 1e-9) for step in steps)


@pytest.mark.slow
def test_order_and_exclude_are_respected() -> None:
    """Stages follow --order front to back; an excluded island is not used, and the document says so."""
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x4-v100x4", HWDB)
    for order in (("g0", "g1"), ("g1", "g0")):
        result = api.plan(model, cluster, JOB, wishes=SearchOptions(order=order), hwdb=HWDB)
        islands = [stage.island for stage in result.document.stages]
        assert sorted(islands, key=order.index) == islands
    alone = api.plan(model, cluster, JOB, wishes=SearchOptions(exclude=("g0",)), hwdb=HWDB)
    assert {stage.island for stage in alone.document.stages} == {"g1"}
    assert any("g0" in note for note in alone.document.notes)
    with pytest.raises(UnknownNameError, match="g7"):
        api.plan(model, cluster, JOB, wishes=SearchOptions(exclude=("g7",)), hwdb=HWDB)


def test_constraints_are_respected() -> None:
    """Fixed degrees, recompute and microbatch per rank hold in every stage."""
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x4-v100x4", HWDB)
    wishes = SearchOptions(
        constraints=Constraints(fixed=(("tp", 2),), recompute=("full",), microbatch_per_rank=1)
    )
    result = api.plan(model, cluster, JOB, wishes=wishes, hwdb=HWDB)
    for stage in result.document.stages:
        assert (stage.tp, stage.recompute, stage.microbatch_per_rank) == (2, "full", 1)


@pytest.mark.slow
def test_top_lists_different_plans_best_first() -> None:
    """Alternatives differ in islands, GPUs, layouts or microbatch, and are no faster than the answer."""
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x4-v100x4", HWDB)
    result = api.plan(model, cluster, JOB, wishes=SearchOptions(top=4, simple_within=0.0), hwdb=HWDB)
    steps = [result.document.step_s, *(alternative.step_s for alternative in result.document.alternatives)]
    assert len(steps) == 4
    assert steps == sorted(steps)
    assert len({alternative.summary.split(": ", 1)[1] for alternative in result.document.alternatives}) == 3


@pytest.mark.slow
def test_whole_islands_are_kept_whole() -> None:
    """With sub-islands off every island used is one partial plan on all its nodes."""
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x8-v100x8", HWDB)
    result = api.plan(model, cluster, JOB, wishes=SearchOptions(sub_islands=False), hwdb=HWDB)
    islands = [stage.island for stage in result.document.stages]
    assert len(islands) == len(set(islands))
    assert all(stage.gpus == 8 for stage in result.document.stages)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_every_composed_schedule_gives_a_plan_that_fits(schedule: str) -> None:
    """Memory is checked at the schedule's own in-flight microbatches; played peaks stay below capacity."""
    from tangram_sim.sim.memory import peak_memory

    model, cluster = load_model("gpt3-2.7b"), load_cluster("azure-c1-t4x4-v100x4", HWDB)
    result = api.plan(model, cluster, replace(JOB, schedule=schedule), hwdb=HWDB)
    peaks = peak_memory(result.forecast.timeline)
    for stage, peak in zip(result.document.stages, peaks, strict=True):
        assert stage.peak_memory_bytes <= stage.memory_capacity_bytes
        assert peak <= stage.peak_memory_bytes * (1 + 1e-9)


def test_zero_bubble_beats_1f1b_and_1f1b_beats_gpipe_on_the_same_stages() -> None:
    """One plan, three schedules: splitting the backward fills bubbles, GPipe gains nothing in time."""
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x4-v100x4", HWDB)
    steps = {
        schedule: api.estimate(
            model, cluster, replace(JOB, schedule=schedule), Uniform(pp=4, dp=2), hwdb=HWDB
        ).document.step_s
        for schedule in ("zb-h1", "1f1b", "gpipe")
    }
    assert steps["zb-h1"] < steps["1f1b"]
    assert steps["1f1b"] <= steps["gpipe"] * 1.05


@pytest.mark.slow
def test_engines_agree_on_a_plan_and_contention_only_slows() -> None:
    """Both engines play the same graph: equal without contention; with it, the reference is no faster."""
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x4-v100x4", HWDB)
    plan = api.plan(model, cluster, JOB, hwdb=HWDB).forecast.plan
    graph = Lowering.of(plan, HWDB).lower(plan.pipelines[0]).graph()
    quick, slow = fast.play(graph), reference.play(graph, contention=False)
    np.testing.assert_allclose(quick.end_s, slow.end_s, rtol=1e-9)
    assert reference.play(graph).makespan_s >= quick.makespan_s * (1 - 1e-9)


def test_two_way_traffic_through_one_nic_contends_in_the_reference_engine() -> None:
    """A middle stage sends activations and gradients through one NIC: a slow network shows it."""
    model, cluster = load_model("gpt3-1.3b"), load_cluster("azure-c1-v100x16", HWDB)
    slow = replace(
        cluster,
        groups=tuple(replace(g, node=replace(g.node, nic_bytes_per_s=0.05e9)) for g in cluster.groups),
    )
    plan = uniform_plan(model, slow, Job(32, 1024, "fp16"), Uniform(tp=1, pp=4, dp=4))
    graph = Lowering.of(plan, HWDB).lower(plan.pipelines[0]).graph()
    assert graph.links
    assert reference.play(graph).makespan_s > fast.play(graph).makespan_s * 1.01


def test_microbatch_sizes_are_the_divisors_of_the_batch() -> None:
    """The planner chooses size and count; their product is the global batch."""
    assert sorted(microbatch_sizes(Job(12))) == [1, 2, 3, 4, 6, 12]


def test_large_islands_are_taken_in_groups_of_nodes_and_that_is_said() -> None:
    """Beyond the budget's count combinations the search is coarser, never silently."""
    cluster = load_cluster("sailor-a512-v512", HWDB)
    islands = find_islands(cluster, "fp16", hwdb=HWDB)
    units = node_units(islands, FLEETS["normal"].states)
    assert max(units) > 1
    assert np.prod([island.nodes // unit + 1 for island, unit in zip(islands, units, strict=True)]) <= 1500


def test_a_model_that_fits_nowhere_says_what_is_missing() -> None:
    """Needed against usable memory, and what was tried."""
    with pytest.raises(InfeasibleError, match=r"need .*GiB.*hold .*GiB.*Tried: ZeRO"):
        api.plan(
            load_model("gpt3-175b"),
            load_cluster("azure-c1-t4x4-v100x4", HWDB),
            Job(dtype="fp16"),
            hwdb=HWDB,
        )


def test_uneven_data_parallel_shares_are_used_when_gpus_do_not_divide_the_microbatch() -> None:
    """Three GPUs share a microbatch of four sequences: shares differ by one, the largest sets the time."""
    assert Layout(dp=3).sequences_per_rank(4) == 2
    assert Layout(dp=4).sequences_per_rank(4) == 1


def test_the_bound_counts_merged_islands_at_their_best_member() -> None:
    """An island is planned at its worst member, but a stage may run on the better ones alone."""
    gpu = HWDB.gpu("A40")  # no rows of its own: both kinds have those of the architecture
    weaker = replace(
        gpu,
        name="A40-weak",
        peaks=tuple((dtype, peak / 1.099) for dtype, peak in gpu.peaks),
        memory_bytes_per_s=gpu.memory_bytes_per_s / 2,
    )
    nodes = [Node(item, 1, HWDB.link("PCIe4x16"), 100e9) for item in (gpu, weaker)]
    cluster = Cluster("merged", tuple(NodeGroup(f"g{i}", 1, node) for i, node in enumerate(nodes)))
    result = api.estimate(
        load_model("gpt3-6.7b"), cluster, Job(512, 2048, "bf16"), Uniform(pp=2, layers=(18, 14)), hwdb=HWDB
    )
    assert [island.name for island in find_islands(cluster, "bf16", hwdb=HWDB)] == ["g0+g1"]
    assert result.document.lower_bound_step_s <= result.document.step_s


def test_an_island_in_unequal_health_has_no_bound_on_pipelines() -> None:
    """Its parts are priced at the slow GPU, but the larger stage may run on the other one."""
    spec = {"name": "pair", "nodes": [{"count": 2, "gpu": "V100-SXM2-32GB", "gpus": 1, "nic_gbps": 100}]}
    healthy, job = cluster_from_dict(spec, HWDB), Job(8, 1024, "fp16")
    slow = replace(healthy, health=Health(compute=((1, 1.02),)))
    wishes = SearchOptions(replicate=False, spanning=False)
    well, ill = (tangram(load_model("gpt3-1.3b"), cluster, job, HWDB, wishes) for cluster in (healthy, slow))
    assert 0 < well.pipeline_bound_s <= well.ranked[0].step_s * (1 + 1e-9)
    assert ill.pipeline_bound_s == 0.0


@pytest.mark.parametrize("seq", [16384, 32768])
@pytest.mark.parametrize("microbatch", [1, 2])
def test_a_microbatch_size_is_skipped_by_what_every_step_of_it_takes(seq: int, microbatch: int) -> None:
    """With two sequences and two nearly equal GPUs the passage of the first overlaps the other's work."""
    groups = [
        NodeGroup(f"g{n}", 1, Node(HWDB.gpu(name), 1, HWDB.link("none"), 50e9))
        for n, name in enumerate(("H100-SXM5-80GB", "H200-SXM-141GB"))
    ]
    model, cluster = load_model("gpt3-1.3b"), Cluster("pair", tuple(groups), Network())
    job = Job(2, seq, "bf16")
    bound = WorkBound(model, job, find_islands(cluster, "bf16", hwdb=HWDB), HWDB)
    layout = Uniform(pp=2, micro_batch=microbatch, recompute="full")
    assert (
        bound.microbatch_s(microbatch) <= api.estimate(model, cluster, job, layout, hwdb=HWDB).document.step_s
    )
