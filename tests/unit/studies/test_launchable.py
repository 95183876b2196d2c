"""Plans that frameworks can launch: they can be exported, are no faster than free ones, are balanced."""

import random
from dataclasses import replace
from itertools import product
from math import inf

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tangram_sim.export.formats import export
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_cluster, load_model
from tangram_sim.layers.atoms import atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, launching, plan_objections
from tangram_sim.planners.uniform.trivial import least_bytes
from tangram_sim.studies import api
from tangram_sim.studies.batch_estimates import Estimator
from tangram_sim.studies.launch_choice import frameworks_named
from tangram_sim.studies.launchable import nearest
from tangram_sim.studies.launchable_chains import Chains
from tangram_sim.studies.launchable_layouts import LaunchLayouts, usable_groups
from tangram_sim.training.job import Job
from tangram_sim.training.stage import state
from tangram_sim.training.stage.setting import Setting

HWDB = Hwdb.load()
CLUSTER = load_cluster("azure-c1-t4x4-v100x4", HWDB)
MODEL = load_model("gpt3-1.3b")
JOB = Job(global_batch=32, dtype="fp16")


@pytest.fixture(scope="module")
def free() -> api.Result:
    """The plan without any rules."""
    return api.plan(MODEL, CLUSTER, JOB, wishes=SearchOptions(simple_within=0.0), hwdb=HWDB)


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_what_is_planned_for_a_framework_can_be_exported_to_it(name: str, free: api.Result) -> None:
    """The file is written and read back by `export`; a plan under rules is no faster than one without."""
    model, cluster, job = MODEL, CLUSTER, JOB
    if name == "torchtitan":  # which has no GPT-2 and no fp16
        model, cluster = load_model("llama3-8b"), load_cluster("H100x8:1+A100-80GBx8:1", HWDB)
        job = Job(global_batch=32, dtype="bf16")
    found = nearest(model, cluster, job, HWDB, SearchOptions(), [name])
    assert found is not None
    assert found.frameworks == (name,)
    assert name in launching(found.forecast.plan)
    assert export(found.forecast.plan, name).files
    assert found.forecast.lowered.fits()
    if found.forecast.plan.job == JOB:
        assert found.forecast.step_s >= free.document.step_s * (1 - 1e-9)


def test_planning_for_a_framework_answers_with_plans_that_it_launches() -> None:
    """The plan and its alternatives; what is fixed holds, and the file replays to the same step."""
    asked = SearchOptions(frameworks=("megatron",), constraints=Constraints(fixed=(("tp", 2),)), top=3)
    found = api.plan(MODEL, CLUSTER, JOB, wishes=asked, hwdb=HWDB).document
    assert "megatron" in found.launchable_with
    assert {stage.tp for stage in found.stages} == {2}
    assert len(found.alternatives) == 2
    assert all("megatron" in other.launchable_with for other in found.alternatives)
    assert api.simulate(found, hwdb=HWDB).document.step_s == pytest.approx(found.step_s, rel=1e-9)


def test_a_schedule_that_is_typed_is_kept() -> None:
    """By default a plan for a framework may be interleaved; with `--schedule 1f1b`, or so a file, not."""
    import typer
    from typer.testing import CliRunner

    from tangram_sim.cli.derived import derived
    from tangram_sim.questions.plan import PlanQuestion
    from tangram_sim.questions.question import question_of

    seen: list[PlanQuestion] = []

    @derived
    def command(question: PlanQuestion) -> None:
        seen.append(question)

    app = typer.Typer()
    app.command()(command)
    for typed in ([], ["--schedule", "1f1b"], ["--schedule", "interleaved"]):
        assert CliRunner().invoke(app, [MODEL.name, "azure-c1", *typed]).exit_code == 0
    assert [plan_question.search.interleave for plan_question in seen] == [True, False, False]
    said = {"verb": "plan", "model": MODEL.name, "cluster": "azure-c1"}
    for more, wanted in (({}, True), ({"schedule": "1f1b"}, False), (seen[1].given, False)):
        question = question_of(said | more)
        assert isinstance(question, PlanQuestion)
        assert question.search.interleave is wanted
    # Small batches gain by several chunks; not where these are ruled out.
    cluster, job = load_cluster("DGX-A100-80GB:4", HWDB), Job(16, 2048, "bf16")
    options = SearchOptions(constraints=Constraints(fixed=(("tp", 8), ("dp", 1))))
    model = load_model("llama3-8b")
    steps = []
    for interleave in (True, False):
        found = nearest(model, cluster, job, HWDB, replace(options, interleave=interleave), ["megatron"])
        assert found is not None
        steps.append(found.forecast.step_s)
        assert interleave or found.forecast.plan.job.schedule == "1f1b"
    assert steps[0] <= steps[1]


def test_the_nearest_launchable_plan_stands_beside_a_free_one(free: api.Result) -> None:
    """With its step over the plan's, the frameworks, and whether the interval tells the two apart."""
    near = free.document.nearest_launchable
    assert not free.document.launchable_with
    assert near is not None
    assert near.frameworks
    assert near.step_s == pytest.approx(near.ratio * free.document.step_s)
    assert near.ratio >= 1.0 or near.schedule == "interleaved"
    assert near.lacking == plan_objections(FRAMEWORKS[near.frameworks[0]], free.forecast.plan)
    assert near.lacking


def test_among_plans_that_cannot_be_told_apart_one_that_launches_wins(free: api.Result) -> None:
    """Within the share asked for; the note names the faster one and how to get it."""
    fixed = SearchOptions(simple_within=0.5, memory_margin=0.0)
    found = api.plan(MODEL, CLUSTER, JOB, wishes=fixed, hwdb=HWDB).document
    assert found.launchable_with
    assert found.step_s <= free.document.step_s * 1.5
    assert any("`simple_within=0`" in note for note in found.notes)


@pytest.mark.slow
def test_equal_nodes_get_a_plan_that_launches() -> None:
    """Where it takes at most 3 % longer and cannot be told apart; a note names the faster one."""
    asked = load_model("gpt3-350m"), load_cluster("azure-c1-v100x16", HWDB), Job(8, 512, "fp16")
    found = api.plan(*asked, hwdb=HWDB).document
    fastest = api.plan(*asked, wishes=SearchOptions(simple_within=0.0), hwdb=HWDB).document
    assert fastest.step_s <= found.step_s * (1 + 1e-9)
    near = fastest.nearest_launchable
    if near is not None and not near.told_apart and near.ratio <= 1.03:
        assert found.launchable_with
        assert found.step_s == pytest.approx(near.step_s)
    assert found.launchable_with or found.nearest_launchable


@pytest.mark.slow
def test_64_equal_gpus_get_a_plan_that_launches() -> None:
    """The fastest found has stages of 8 and of 16 GPUs under three layouts, for 2 % that cannot be told."""
    cluster = cluster_from_dict({"name": "h100x64", "nodes": [{"count": 8, "node": "DGX-H100"}]}, HWDB)
    found = api.plan(load_model("llama3-70b"), cluster, Job(256, 4096), hwdb=HWDB).document
    assert "megatron" in found.launchable_with
    assert len({(stage.gpus, stage.tp, stage.dp, stage.cp) for stage in found.stages}) == 1


def test_no_launchable_plan_is_an_answer() -> None:
    """Where rules leave nothing, the reason names the framework and what there is without them."""
    for name, reason, optimizer in (
        ("torchtitan", "TorchTitan cannot train gpt3-350m: no flavour", "adamw"),
        ("deepspeed", "DeepSpeed can launch fits", "adafactor"),
    ):
        asked, job = SearchOptions(frameworks=(name,)), Job(global_batch=8, optimizer=optimizer)
        with pytest.raises(InfeasibleError, match=reason):
            api.plan(load_model("gpt3-350m"), CLUSTER, job, wishes=asked, hwdb=HWDB)
    with pytest.raises(UnknownNameError, match="framework"):
        frameworks_named("megatorn")
    assert frameworks_named("any") == tuple(FRAMEWORKS)
    with pytest.raises(BadInputError, match="`simple_within="):
        api.plan(MODEL, CLUSTER, JOB, wishes=SearchOptions(simple_within=-1.0), hwdb=HWDB)


@pytest.mark.parametrize("stack", ["generic", "deepspeed"])
@pytest.mark.parametrize("name", ["gpt3-1.3b", "gshard-moe-2.4b"])
def test_no_chain_is_faster_than_the_bound_on_its_degrees(name: str, stack: str) -> None:
    """Chains found for random degrees, and their exact estimates, on grounds of one group and of several."""
    cluster, model = load_cluster("A100-SXM4-40GBx4:3+T4x4:1", HWDB), load_model(name)
    biased = [replace(block, feed_forward=replace(block.feed_forward, bias=True)) for block in model.blocks]
    model = replace(model, blocks=tuple(biased))  # Megatron-LM has biases in all linear layers or in none
    job = Job(32, 1024, "fp16", stack=stack)
    layouts = LaunchLayouts(model, cluster, job, HWDB, SearchOptions(), list(FRAMEWORKS.values()))
    chains, estimator = Chains(layouts), Estimator(model, cluster, HWDB)
    waiting, joined = chains._waiting, 0
    for bound_s, degrees, where in random.Random(3).sample(waiting, min(40, len(waiting))):
        found = list(chains._solve([(degrees, where)], inf))
        steps = estimator.steps(
            [launch_candidate.job for launch_candidate in found],
            [launch_candidate.layout for launch_candidate in found],
        )
        joined += any(
            "+" in name for launch_candidate in found for name in launch_candidate.layout.stage_groups
        )
        for launch_candidate, step_s in zip(found, steps, strict=True):
            assert bound_s <= launch_candidate.least_s * (1 + 1e-9)
            assert bound_s <= step_s * (1 + 1e-9)
    assert joined


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_least_bytes_are_no_more_than_what_a_rank_keeps(zero: int) -> None:
    """A dense model whole on one stage: weights, gradients and states as ZeRO cuts them."""
    layout = Layout(2, 4, zero_stage=zero)
    island = Placement(CLUSTER, HWDB).island(tuple(range(8))).anonymous()
    setting = Setting(MODEL, island, JOB, (4,), (layout,), HWDB)
    kept = sum(float(state.static_bytes(setting, atom)[0]) for atom in atoms_of(MODEL))
    assert 0.9 * kept < least_bytes(MODEL, JOB, layout, 1) <= kept


@pytest.mark.slow
def test_groups_that_look_fast_do_not_hide_better_ones() -> None:
    """L40S have more operations a second than A100 and next to no network: leaving them out is looked at."""
    spec = {
        "nodes": [
            {"count": 3, "gpu": "H200", "gpus": 8, "nic_gbps": 3200},
            {"count": 2, "gpu": "A100-40GB", "gpus": 8, "nic_gbps": 200},
            {"count": 3, "gpu": "L40S", "gpus": 4, "intra_link": "PCIe4x16", "nic_gbps": 10},
        ]
    }
    cluster, model, job = cluster_from_dict(spec, HWDB), load_model("gpt3-6.7b"), Job(96, 2048, "bf16")
    every, *fewer = [
        nearest(model, cluster, job, HWDB, SearchOptions(exclude=out), ["megatron"])
        for out in ((), ("g2",), ("g1",), ("g1", "g2"))
    ]
    assert every is not None
    for item in fewer:
        assert item is not None
        assert every.forecast.step_s <= item.forecast.step_s * 1.01


@pytest.mark.parametrize("filled", [0.6, 0.8, 1.0])
def test_on_small_clusters_no_faster_layout_is_passed_over(filled: float) -> None:
    """Of all layouts of equal stages of one node, estimated one by one, none is faster than what is found."""
    cluster, model = load_cluster("V100-PCIe-16GBx4:1", HWDB), load_model("gpt3-350m")
    job, within, options = Job(16, dtype="fp16"), HWDB.filled_to(filled), SearchOptions()
    layouts = LaunchLayouts(model, cluster, job, within, options, [FRAMEWORKS["deepspeed"]])
    every = []
    for degrees in layouts.degrees(cluster.groups):
        for layout, pp in product(layouts.shardings(degrees), (1, 2, 4)):
            launch_candidate = layouts.candidate(layout, degrees.size, pp)
            if pp * layout.gpus <= 4 and layouts.permits(launch_candidate):
                every.append(launch_candidate)
    assert len(every) > 50
    steps = Estimator(model, cluster, within).steps(
        [launch_candidate.job for launch_candidate in every],
        [launch_candidate.layout for launch_candidate in every],
    )
    found = nearest(model, cluster, job, within, options, ["deepspeed"])
    assert found is not None
    assert found.forecast.step_s <= min(steps) * (1 + 1e-9)


def test_groups_that_cannot_be_used_are_left_out() -> None:
    """Excluded ones, and what an order does not name; no order of two vendors' GPUs has a chain."""

    def names(options: SearchOptions, cluster: Cluster = CLUSTER) -> list[str]:
        return [group.name for group in usable_groups(cluster, JOB, options)]

    assert names(SearchOptions()) == ["g0", "g1"]
    assert names(SearchOptions(exclude=("g0",))) == ["g1"]
    assert names(SearchOptions(order=("g1", "g0"))) == ["g1", "g0"]
    assert names(SearchOptions(order=("g0.1",))) == []
    mixed = load_cluster("DGX-H100:1+MI300X-platform:1+DGX-A100-80GB:1", HWDB)
    layouts = [
        LaunchLayouts(MODEL, mixed, JOB, HWDB, SearchOptions(order=order), list(FRAMEWORKS.values()))
        for order in ((), ("g0", "g1"), ("g2", "g0"))
    ]
    free, two_vendors, item = (Chains(each)._waiting for each in layouts)
    assert free and item and not two_vendors
    for _, _, where in free:
        held = {name for ground in where.grounds for name in ground.groups}
        assert not {"g1"} < held  # no framework has a collective library that spans two vendors


def test_an_order_that_is_asked_for_is_kept() -> None:
    """Every stage stands on the group of the one in front of it or on a later one; slower at most."""
    job = Job(32, 1024, "fp16")
    steps = []
    for order in ((), ("g0", "g1"), ("g1", "g0")):
        found = nearest(MODEL, CLUSTER, job, HWDB, SearchOptions(order=order), ["megatron"])
        assert found is not None
        steps.append(found.forecast.step_s)
        used = [stage.parts[0].island for stage in found.forecast.plan.pipelines[0].stages]
        wanted = [name for name in (*order, "+".join(order), *order) if name in used]
        assert not order or list(dict.fromkeys(used)) == list(dict.fromkeys(wanted))
    assert steps[0] <= min(steps[1:]) * 1.002


@pytest.mark.parametrize("nodes", ["T4x4:1+V100-16GBx4:1", "H100x8:1+A10x4:1", "L40Sx4:2"])
def test_what_purchases_do_not_look_for_changes_no_plan(nodes: str) -> None:
    """Plans that frameworks launch but that would not be shown are left out, and no step is longer for it."""
    cluster = load_cluster(nodes, HWDB)
    whole, shown = (
        api.plan(MODEL, cluster, JOB, wishes=SearchOptions(only_shown=only), hwdb=HWDB).document
        for only in (False, True)
    )
    assert shown.step_s <= whole.step_s * (1 + 1e-4)
    assert bool(shown.launchable_with) == bool(whole.launchable_with)
