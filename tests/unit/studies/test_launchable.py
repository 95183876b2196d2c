"""Plans that frameworks can launch: they can be exported, are no faster than free ones, are balanced."""

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tangram_sim.clusters import NodeGroup
from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tangram_sim.export.formats import export
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_cluster, load_model
from tangram_sim.layers.atoms import atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.budget import LaunchBudget
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS, launching
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.planners.uniform.trivial import least_bytes
from tangram_sim.studies import api
from tangram_sim.studies.batch_estimates import Estimator
from tangram_sim.studies.launch_choice import frameworks_named
from tangram_sim.studies.launchable import _Look, nearest
from tangram_sim.studies.launchable_bounds import Degrees, StepBounds
from tangram_sim.studies.launchable_layouts import LaunchCandidate, LaunchLayouts, layers_by_speed, orders
from tangram_sim.training.job import Job
from tangram_sim.training.stage import state
from tangram_sim.training.stage.setting import Setting
from tangram_sim.training.step.ideal import ideal_seconds

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
    assert [one.search.interleave for one in seen] == [True, False, False]
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


@pytest.mark.parametrize(("pp", "width"), [(1, 8), (2, 4), (3, 2), (4, 2)])
def test_layers_go_where_gpus_are_fast(pp: int, width: int) -> None:
    """No other cut has a shorter slowest stage: every composition of the layers is looked at."""
    groups: list[NodeGroup] = list(CLUSTER.groups)
    cut = layers_by_speed(MODEL, groups, JOB, HWDB, pp, width)
    assert sum(cut) == MODEL.layers
    assert min(cut) >= 1
    each = [ideal_seconds(MODEL, group.node.gpu, JOB, HWDB) for group in groups]
    ranks = [kind for kind, group in enumerate(groups) for _ in range(group.count * group.node.gpus)]
    kinds = [{ranks[rank] for rank in range(s * width, (s + 1) * width)} for s in range(pp)]

    def slowest(counts: tuple[int, ...]) -> float:
        taken = [
            count * max(sum(each[kind][1:-1]) / MODEL.layers for kind in some)
            for count, some in zip(counts, kinds, strict=True)
        ]
        taken[0] += max(each[kind][0] for kind in kinds[0])
        taken[-1] += max(each[kind][-1] for kind in kinds[-1])
        return max(taken)

    ends = itertools.combinations(range(1, MODEL.layers), pp - 1)
    every = (tuple(b - a for a, b in itertools.pairwise((0, *inner, MODEL.layers))) for inner in ends)
    assert slowest(cut) == pytest.approx(min(map(slowest, every)))


def test_no_layout_ends_below_its_bound_or_fits_where_the_bound_says_it_does_not() -> None:
    """All layouts of azure-c1 under 12 T4 and 4 V100, estimated one by one, against the bounds that prune."""
    layouts = LaunchLayouts(MODEL, CLUSTER, JOB, HWDB, SearchOptions(), list(FRAMEWORKS.values()))
    able = [saved for batch in layouts.batches()[::7] for one in batch[::3] for saved in layouts.savers(one)]
    steps = Estimator(MODEL, CLUSTER, HWDB).steps([one.job for one in able], [one.layout for one in able])
    fit = [(one.least_s, step_s) for one, step_s in zip(able, steps, strict=True) if step_s < float("inf")]
    assert len(fit) > 20
    assert all(least_s <= step_s for least_s, step_s in fit)
    # A bound that says a layout does not fit is asked for every size and recomputation, fitting or not.
    bounds = StepBounds(MODEL, CLUSTER, JOB, HWDB, (1, 2, 4), ("none", "selective", "full"))
    for pp, tp in ((4, 2), (8, 1), (2, 1)):
        wanted = Uniform(tp, pp, 16 // (tp * pp), order=("g0", "g1"), sequence_parallel=tp > 1)
        rows = [
            Degrees(tp, 1, wanted.dp, size, recompute) for recompute in bounds.recompute for size in (1, 2)
        ]
        found = bounds.of(JOB, wanted, rows)
        for (*_, size, recompute), least_s, room in zip(
            rows, found.least_s.tolist(), found.state_bytes.tolist(), strict=True
        ):
            sized = replace(wanted, micro_batch=size, recompute=recompute, zero_stage=min(3, wanted.dp - 1))
            (step_s,) = Estimator(MODEL, CLUSTER, HWDB).steps([JOB], [sized])
            state = least_bytes(MODEL, JOB, Layout(tp, wanted.dp, zero_stage=sized.zero_stage), 1)
            assert step_s >= least_s
            assert step_s == float("inf") or state <= room


@pytest.mark.parametrize("stack", ["generic", "deepspeed"])
def test_the_bounds_hold_for_experts_over_context_ranks_and_for_gradients_that_are_cut(
    stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts spread over dp x cp ranks; ZeRO-2 cuts gradients, and nothing adds them up."""
    mixed, cluster = load_model("gshard-moe-2.4b"), load_cluster("A100-SXM4-40GBx4:2+T4x4:1", HWDB)
    biased = [replace(one, feed_forward=replace(one.feed_forward, bias=True)) for one in mixed.blocks]
    model = replace(mixed, blocks=tuple(biased))  # Megatron-LM has biases in all linear layers or in none
    job = Job(32, 1024, "fp16", stack=stack)
    layouts = LaunchLayouts(model, cluster, job, HWDB, SearchOptions(), list(FRAMEWORKS.values()))

    def found(every: int) -> list[LaunchCandidate]:
        some = [one for batch in layouts.batches() for one in batch][::every]
        return [saved for one in some for saved in layouts.savers(one)]

    told = {(one.job, one.layout) for one in found(1)}
    bounds = StepBounds.of
    monkeypatch.setattr(
        StepBounds,
        "of",
        lambda *of: bounds(*of)._replace(state_bytes=np.full(len(of[-1]), 1e30)),
    )
    some = found(20)
    steps = Estimator(model, cluster, HWDB).steps([one.job for one in some], [one.layout for one in some])
    able = [(one, step_s) for one, step_s in zip(some, steps, strict=True) if step_s < float("inf")]
    assert any(one.layout.cp > 1 and one.layout.ep > one.layout.dp for one, _ in able)
    assert any(one.layout.zero_stage == 2 for one, _ in able)
    assert all(one.least_s <= step_s and (one.job, one.layout) in told for one, step_s in able)


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
    for one in fewer:
        assert one is not None
        assert every.forecast.step_s <= one.forecast.step_s * 1.01


@pytest.mark.parametrize("filled", [0.6, 0.8, 1.0])
def test_on_small_clusters_no_faster_layout_is_passed_over(filled: float) -> None:
    """Where many layouts do not fit, those looked at first say little of the others."""
    cluster, model, job = (
        load_cluster("V100-PCIe-16GBx4:1", HWDB),
        load_model("gpt3-350m"),
        Job(16, dtype="fp16"),
    )
    within, options = HWDB.filled_to(filled), SearchOptions()
    layouts = LaunchLayouts(model, cluster, job, within, options, [FRAMEWORKS["deepspeed"]])
    every = [saved for batch in layouts.batches() for one in batch for saved in layouts.savers(one)]
    steps = Estimator(model, cluster, within).steps([one.job for one in every], [one.layout for one in every])
    found = nearest(model, cluster, job, within, options, ["deepspeed"])
    assert found is not None
    assert found.forecast.step_s <= min(steps) * (1 + 1e-9)


def test_orders_leave_out_what_is_excluded_or_slow() -> None:
    """All groups in several orders, without the slowest kind, every group alone; --order alone if given."""
    found = orders(CLUSTER, JOB, SearchOptions())
    assert {("g0", "g1"), ("g1", "g0"), ("g0",), ("g1",)} == set(found)
    assert orders(CLUSTER, JOB, SearchOptions(exclude=("g0",))) == [("g1",)]
    assert orders(CLUSTER, JOB, SearchOptions(order=("g0", "g1"))) == [("g0", "g1")]
    assert orders(CLUSTER, JOB, SearchOptions(order=("g0.1",))) == []


def test_orders_are_of_one_vendor() -> None:
    """No framework has a collective library that spans two."""
    mixed = load_cluster("DGX-H100:1+MI300X-platform:1+DGX-A100-80GB:1", HWDB)
    found = orders(mixed, JOB, SearchOptions())
    assert ("g0", "g2") in found and ("g1",) in found
    assert not any("g1" in order and len(order) > 1 for order in found)
    assert orders(mixed, JOB, SearchOptions(order=("g0", "g1"))) == []


@dataclass(frozen=True)
class Pair:
    """Two layouts of one batch, by number."""

    number: int
    kind: int = 0

    def both(self) -> list[LaunchCandidate]:
        layouts: Any = (2 * self.number, 2 * self.number + 1)
        return [LaunchCandidate(0.1, 0.0, JOB, one) for one in layouts]


@pytest.mark.parametrize(("best_at", "estimated"), [(0, 14), (5, 30), (12, 30), (20, 14)])
def test_a_look_ends_where_many_in_a_row_are_no_better(best_at: int, estimated: int) -> None:
    """A tenth of the hundred that it may estimate; of pairs it takes 1, 2, 4, 8, ... at a time."""
    estimator: Any = SimpleNamespace(
        steps=lambda jobs, layouts: [0.5 if number == best_at else 1.0 for number in layouts]
    )
    nothing: Any = None
    look = _Look(nothing, estimator, LaunchBudget(vain=10), Deadline())
    pairs: Any = [Pair(number) for number in range(60)]
    able_of: Any = Pair.both
    look.over_bounds(pairs, able_of, 100)
    assert len(look.tried) == estimated
