"""The benchmark of the Tangram paper: its restrictions bind, and no prediction can see the figures."""

import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.tangram_paper import compare, figures, setups
from benchmarks.tangram_paper.run import OVERLAY
from benchmarks.tangram_paper.systems import (
    DEEPSPEED,
    GALVATRON,
    SYSTEMS,
    OneSize,
    RestrictedPrice,
    as_if_equal,
    placed,
    question,
    turned,
)
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.parallelizers.aceso import Aceso
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.parallelizers.galvatron import Galvatron
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.planners.uniform.layouts import Uniform, uniform_plan
from tangram_sim.studies.forecast import forecast
from tangram_sim.training.plan import Plan
from tests.contracts.requests import request

HWDB = Hwdb.load([OVERLAY])


def test_predictions_are_made_without_the_papers_figures() -> None:
    """What plans and plays a setup does not even import what reads the figures."""
    line = (
        "import sys; import benchmarks.tangram_paper.run, benchmarks.tangram_paper.ablation, "
        "benchmarks.tangram_paper.published; print('benchmarks.tangram_paper.figures' in sys.modules)"
    )
    root = str(OVERLAY.parents[2])
    run = subprocess.run([sys.executable, "-c", line], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_every_setup_is_known_and_asks_known_systems() -> None:
    assert len({setup.key for setup in setups.SETUPS}) == len(setups.SETUPS)
    for setup in setups.SETUPS:
        assert set(setup.systems) <= set(SYSTEMS)
        load_model(setup.model)
        load_cluster(setup.cluster, HWDB)


def test_figures_are_looked_up_by_the_papers_names(tmp_path) -> None:
    steps, planning = tmp_path / "steps.csv", tmp_path / "planning.csv"
    steps.write_text(
        "paper,model,cluster,system,metric,value\n"
        "Tangram,GPT-3 6.7B (seq 2048),16xT4,Metis,iteration_time_s,3\n"
        "Other,GPT-3 6.7B (seq 2048),16xT4,Sailor,iteration_time_s,4\n"
    )
    planning.write_text(
        "paper,what,cluster,system,total_s\n"
        "Tangram,pruning ablation,c,Tangram-Aceso +imbalance,5\n"
        "Tangram,planning time vs islands,+4xT4 (20 GPUs),Tangram-Aceso,6\n"
    )
    read = figures.read(steps, planning)
    assert [name for name, _ in read.hashes] == ["steps.csv", "planning.csv"]
    setup = setups.SETUPS[0]
    assert (read.step_s(setup, "Metis"), read.step_s(setup, "Sailor")) == (3.0, None)
    assert (read.ablation_s("+imbalance"), read.ablation_s("naive")) == (5.0, None)
    assert read.islands_s("+4xT4") == 6.0


def test_orders_count_where_the_paper_tells_systems_apart() -> None:
    paper = {"Metis": 20.0, "Alpa": 11.0, "Tangram-Alpa": 10.5, "Tangram-Aceso": 10.0}
    ours = {"Metis": 9.0, "Alpa": 12.0, "Tangram-Alpa": 10.0, "Tangram-Aceso": None}
    found = {(order.slower, order.faster): order.ours for order in compare.orders(paper, ours)}
    assert found == {
        ("Metis", "Alpa"): 9.0 / 12.0,
        ("Metis", "Tangram-Alpa"): 9.0 / 10.0,
        ("Metis", "Tangram-Aceso"): None,
    }
    faster = {(ratio.slower, ratio.faster): ratio for ratio in compare.speed_ups(paper, ours)}
    assert set(faster) == {("Alpa", "Tangram-Alpa"), ("Metis", "Tangram-Aceso"), ("Alpa", "Tangram-Aceso")}
    assert compare.within(faster["Alpa", "Tangram-Alpa"])
    assert not compare.within(faster["Metis", "Tangram-Aceso"])


def test_a_homogeneous_parallelizer_sees_equal_gpus() -> None:
    """Four A100 and twice two H100 are four pairs of A100, bridged, with the smaller memory and NIC share."""
    seen = as_if_equal(load_cluster("azure-c2-a100x4-h100x4", HWDB), "bf16")
    (group,) = seen.groups
    assert (group.count, group.node.gpus, group.node.gpu.name) == (4, 2, "A100-PCIe-80GB")
    assert group.node.bridges == ((0, 1),)
    assert group.node.nic_bytes_per_s == 40e9 / 8
    same = load_cluster("azure-c1-t4x16", HWDB)
    assert as_if_equal(same, "fp16").groups == same.groups


def pipeline(model: str, cluster: str) -> Plan:
    put = question(DEEPSPEED, load_model(model), load_cluster(cluster, HWDB), 2048, HWDB)
    return uniform_plan(put.model, put.cluster, put.job, Uniform(tp=4, pp=2, dp=1, layers=(14, 10)))


def test_plans_move_to_other_gpus_and_turn_round() -> None:
    made = pipeline("gpt3-1.3b", "azure-c1-t4x4-v100x4")
    (moved,) = placed(made, made.cluster).pipelines
    assert [stage.parts[0].island for stage in moved.stages] == ["g0", "g1"]
    (there,) = turned(made).pipelines
    assert [stage.chunks for stage in there.stages] == [((0, 10),), ((10, 24),)]
    assert [stage.ranks[0] for stage in there.stages] == [4, 0]
    assert (there.stages[0].embedding, there.stages[1].head) == (True, True)
    assert turned(turned(made)) == made
    assert forecast(turned(made), HWDB).step_s > 0


@pytest.mark.parametrize(
    ("software", "model", "cluster"),
    [(DEEPSPEED, "gpt3-6.7b", "azure-c1-v100x16"), (GALVATRON, "mixtral-8x7b-16l", "azure-c2-a100x4-h100x4")],
)
def test_the_restrictions_hold_in_the_plans(software, model, cluster) -> None:
    seq = 2048 if software is DEEPSPEED else 4096
    put = question(software, load_model(model), load_cluster(cluster, HWDB), seq, HWDB)
    system = SYSTEMS["Sailor" if software is DEEPSPEED else "Tangram"]
    plan, _ = system.plan(put)
    (made,) = plan.pipelines
    for stage in made.stages:
        for part in stage.parts:
            for run in part.layouts:
                assert run.layout.cp == 1
                assert run.layout.recompute in software.recompute
                if software is DEEPSPEED:
                    assert run.layout.sequences_per_rank(part.sequences_per_microbatch) == 1
    if software is GALVATRON:
        assert (made.microbatch, made.microbatches) == (4, 32)


def test_only_one_size_was_profiled() -> None:
    put = question(DEEPSPEED, load_model("gpt3-1.3b"), load_cluster("azure-c1-t4x16", HWDB), 2048, HWDB)
    profile = RestrictedPrice(put.model, put.cluster, put.job, HWDB, 1).profile
    assert isinstance(profile, OneSize)
    assert profile.layers(0, 2, 1) is not None
    assert profile.layers(0, 2, 2) is None


@pytest.mark.parametrize("kind", [Grid, Galvatron, Aceso])
def test_a_fixed_microbatch_leaves_no_other(kind) -> None:
    asked = request(atoms=(0, 10))
    size = asked.microbatch
    assert kind().parallelize(replace(asked, constraints=Constraints(microbatch=size))).partials
    assert not kind().parallelize(replace(asked, constraints=Constraints(microbatch=2 * size))).partials


def test_acesos_budget_grows_with_the_slice() -> None:
    small, large = Aceso().budget(4), Aceso().budget(34)
    assert small.evaluations < large.evaluations
    assert (small.hops, small.patience) == (large.hops, large.patience)
