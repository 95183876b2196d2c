"""One uniform layout: which ranks form which stage, where layers are cut, what a mixed stage runs at."""

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_cluster, load_model
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.planners.uniform.layouts import Uniform, chunk_bounds, rank_order, uniform_plan
from tangram_sim.planners.uniform.trivial import least_bytes
from tangram_sim.studies import api
from tangram_sim.studies.results import Result
from tangram_sim.training.job import Job
from tangram_sim.training.step.side_by_side import price_plan

HWDB = Hwdb.load()


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """Ranks 0-7: two nodes of T4, ranks 8-11: one of V100, ranks 12-15: one of T4."""
    group = {"gpus": 4, "intra_link": "PCIe3x16", "nic_gbps": 25}
    nodes = [{"count": 2, "gpu": "T4"}, {"count": 1, "gpu": "V100-PCIe-16GB"}, {"count": 1, "gpu": "T4"}]
    return cluster_from_dict({"nodes": [{**group, **node} for node in nodes]}, HWDB)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("bert-large")  # 24 layers, 16 heads


JOB = Job(global_batch=64, seq=512, dtype="fp16")


def stage_gpus(result: Result) -> list[str]:
    return [stage.gpu for stage in result.document.stages]


def test_ranks_are_numbered_node_by_node_in_file_order(cluster: Cluster, model: Model) -> None:
    plan = uniform_plan(model, cluster, JOB, Uniform(tp=2, pp=4, dp=2))
    ranks = [stage.ranks for stage in plan.pipelines[0].stages]
    assert ranks == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]
    assert [stage.parts[0].island for stage in plan.pipelines[0].stages] == ["g0", "g0", "g1", "g2"]


def test_stages_get_the_gpus_of_their_nodes(cluster: Cluster, model: Model) -> None:
    found = api.estimate(model, cluster, JOB, Uniform(tp=2, pp=4, dp=2), hwdb=HWDB)
    assert stage_gpus(found) == ["T4", "T4", "V100-PCIe-16GB", "T4"]
    assert [stage.nodes for stage in found.document.stages] == [1, 1, 1, 1]


def test_order_takes_groups_in_the_order_given(cluster: Cluster, model: Model) -> None:
    assert rank_order(cluster, ("g1", "g0")) == [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7]
    found = api.estimate(model, cluster, JOB, Uniform(pp=3, dp=4, order=("g1", "g0")), hwdb=HWDB)
    assert stage_gpus(found) == ["V100-PCIe-16GB", "T4", "T4"]
    assert found.document.gpus_used == 12
    assert found.document.gpus_total == 16


def test_a_stage_over_two_kinds_runs_at_the_slowest_of_each(cluster: Cluster, model: Model) -> None:
    mixed = api.estimate(model, cluster, JOB, Uniform(dp=8, order=("g1", "g0")), hwdb=HWDB).document.stages[0]
    assert set(mixed.gpu.split("+")) == {"T4", "V100-PCIe-16GB"}
    slow = api.estimate(model, cluster, JOB, Uniform(dp=8), hwdb=HWDB).document.stages[0]
    fast = api.estimate(model, cluster, JOB, Uniform(dp=4, order=("g1",)), hwdb=HWDB).document.stages[0]
    assert slow.gpu == "T4"
    assert mixed.forward_s >= slow.forward_s * (1 - 1e-9) > fast.forward_s
    assert mixed.memory_capacity_bytes == min(slow.memory_capacity_bytes, fast.memory_capacity_bytes)


def test_fewer_gpus_than_there_are_means_the_first_ones(cluster: Cluster, model: Model) -> None:
    plan = uniform_plan(model, cluster, JOB, Uniform(tp=2, pp=1, dp=1))
    assert plan.pipelines[0].stages[0].ranks == (0, 1)


def test_dp_fills_the_cluster_unless_given(cluster: Cluster, model: Model) -> None:
    for tp, pp, cp, dp in ((1, 1, 1, 16), (2, 2, 2, 2), (4, 1, 1, 4), (16, 1, 1, 1)):
        layout = uniform_plan(model, cluster, JOB, Uniform(tp=tp, pp=pp, cp=cp)).pipelines[0].stages[0].layout
        assert (layout.tp, layout.cp, layout.dp) == (tp, cp, dp)


def test_more_gpus_than_there_are_is_refused(cluster: Cluster, model: Model) -> None:
    with pytest.raises(InfeasibleError, match=r"= 32 GPUs; .* has 16"):
        uniform_plan(model, cluster, JOB, Uniform(tp=4, pp=2, dp=4))


def test_micro_batch_counts_per_data_parallel_rank(cluster: Cluster, model: Model) -> None:
    document = api.estimate(model, cluster, JOB, Uniform(dp=4, micro_batch=2), hwdb=HWDB).document
    assert (document.microbatch_per_rank, document.microbatch, document.microbatches) == (2, 8, 8)


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        (Uniform(pp=4), [6, 6, 6, 6]),
        (Uniform(pp=5), [5, 5, 5, 5, 4]),
        (Uniform(pp=3, layers=(4, 10, 10)), [4, 10, 10]),
        (Uniform(pp=3, layers=(0, 24, 0)), [0, 24, 0]),
        (Uniform(pp=2, vpp=3), [4] * 6),
        (Uniform(pp=2, vpp=2, layers=(4, 20)), [2, 10, 2, 10]),
        (Uniform(pp=2, vpp=2, layers=(1, 2, 3, 18)), [1, 2, 3, 18]),
    ],
)
def test_layers_are_cut_as_asked(model: Model, wanted: Uniform, sizes: list[int]) -> None:
    bounds = chunk_bounds(model, wanted)
    assert sorted(stop - start for start, stop in bounds) == sorted(sizes)
    if wanted.layers:
        assert [stop - start for start, stop in bounds] == sizes
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == model.layers


def test_uneven_layers_move_the_load(cluster: Cluster, model: Model) -> None:
    layout = Uniform(pp=4, dp=4, layers=(4, 4, 12, 4))
    stages = api.estimate(model, cluster, JOB, layout, hwdb=HWDB).document.stages
    assert [stage.layers for stage in stages] == [(0, 4), (4, 8), (8, 20), (20, 24)]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_every_schedule_holds_what_it_must(cluster: Cluster, model: Model, schedule: str) -> None:
    """GPipe keeps every microbatch; 1F1B one per stage behind; ZB-H1, whose W come late, 1F1B's most."""
    job = Job(global_batch=64, seq=512, dtype="fp16", schedule=schedule)
    document = api.estimate(model, cluster, job, Uniform(pp=4, dp=4), hwdb=HWDB).document
    held = [stage.in_flight for stage in document.stages]
    assert held == {"gpipe": [16] * 4, "1f1b": [4, 3, 2, 1], "zb-h1": [4] * 4}[schedule]


def test_chunks_shorten_the_bubble(cluster: Cluster, model: Model) -> None:
    """Interleaving: fill and drain shrink with the number of chunks while nothing else is in the way."""
    job = Job(global_batch=16, seq=512, dtype="fp16")
    plain = api.estimate(model, cluster, job, Uniform(pp=2, dp=4, order=("g0",)), hwdb=HWDB).document
    chunked = api.estimate(model, cluster, job, Uniform(pp=2, dp=4, vpp=4, order=("g0",)), hwdb=HWDB).document
    assert (plain.schedule, chunked.schedule) == ("1f1b", "interleaved")
    assert [len(stage.chunks) for stage in chunked.pipelines[0].stages] == [4, 4]
    assert chunked.bubble_fraction < plain.bubble_fraction


def test_laws_hold_for_every_kind_of_block() -> None:
    """Heads are checked over all blocks, not only the first."""
    model = load_model("gpt3-1.3b")
    with pytest.raises(BadInputError, match="attention heads"):
        uniform_plan(model, cluster_from_dict(_SIX, HWDB), JOB, Uniform(tp=6))


_SIX = {"nodes": [{"count": 1, "gpu": "T4", "gpus": 6, "intra_link": "PCIe3x16", "nic_gbps": 25}]}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("tp", "pp", "dp"), [(1, 1, 1), (1, 4, 4), (4, 1, 2), (2, 2, 4), (8, 4, 1)])
def test_no_gpu_holds_less_than_the_least(tp: int, pp: int, dp: int, zero: int) -> None:
    """What is left out before it is priced could not have fitted: the fullest GPU holds more."""
    large, job = load_model("gpt3-1.3b"), Job(16, 512, "bf16")
    nodes = load_cluster("h100x8-nodes4", HWDB)
    plan = uniform_plan(large, nodes, job, Uniform(tp, pp, dp, zero_stage=zero, micro_batch=1))
    peaks = [peak for step in price_plan(plan, HWDB).steps for peak in map(step.peak_bytes, range(pp))]
    assert max(peaks) >= least_bytes(large, job, Layout(tp=tp, dp=dp, zero_stage=zero), pp) > 0
