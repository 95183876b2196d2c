"""Every shipped whole-cluster planner keeps the contract; the contract catches planners that do not."""

import json
import tomllib
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

from tangram_sim import registry
from tangram_sim.cli.compare import plot_html
from tangram_sim.cli.main import app
from tangram_sim.cli.wording import as_options
from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.errors import BadInputError, InfeasibleError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.planners.contract import check_planner
from tangram_sim.planners.peers.amp import Amp
from tangram_sim.planners.peers.flashflex.planner import FlashFlex
from tangram_sim.planners.peers.hap.planner import Hap
from tangram_sim.planners.peers.malleus import Malleus
from tangram_sim.planners.peers.metis import Metis
from tangram_sim.planners.peers.metis_published import MetisPublished
from tangram_sim.planners.peers.sailor import Sailor
from tangram_sim.planners.tangram.planner import Tangram
from tangram_sim.planners.uniform.best_uniform import BestUniform
from tangram_sim.planners.whole_cluster import CannotAnswerError, Price, WholeClusterPlanner
from tangram_sim.studies.comparison import CANNOT, FAILED, OK, answer, comparison
from tangram_sim.training.job import Job
from tests.places import ROOT

HWDB = Hwdb.load()
SHIPPED = (Tangram, BestUniform, Metis, MetisPublished, Sailor, Amp, FlashFlex, Hap, Malleus)


def small_model(layers: int = 4, hidden: int = 1024) -> Model:
    width = FeedForward(4 * hidden, gated=False, bias=True)
    block = Block(Attention(16, 16, hidden // 16, hidden // 16), width, norm_bias=True)
    return Model("small", "gpt", hidden, 32000, (block,) * layers, tied=False)


def cluster_of(*kinds: tuple[str, int, int]) -> Cluster:
    """(GPU, nodes, GPUs per node) by group."""
    groups = tuple(
        NodeGroup(f"g{number}", nodes, Node(HWDB.gpu(gpu), gpus, HWDB.link("PCIe4x16"), 12.5e9))
        for number, (gpu, nodes, gpus) in enumerate(kinds)
    )
    return Cluster("mixed", groups)


def question(model: Model, cluster: Cluster, batch: int = 4) -> Price:
    return Price(model, cluster, Job(batch, 1024, "fp16"), HWDB)


MIXED = cluster_of(("A100-PCIe-80GB", 1, 4), ("V100-PCIe-16GB", 2, 2))
ODD = cluster_of(("A100-PCIe-80GB", 1, 3), ("V100-PCIe-16GB", 1, 2))


@pytest.mark.parametrize(
    "planner",
    [pytest.param(planner, marks=pytest.mark.slow if planner is Tangram else ()) for planner in SHIPPED],
    ids=lambda planner: planner.name,
)
def test_shipped_planners_keep_the_contract_on_mixed_odd_and_impossible_clusters(planner):
    huge = small_model(layers=4, hidden=32768)
    check_planner(
        planner,
        [
            question(small_model(), MIXED),
            question(small_model(), ODD),
            question(huge, cluster_of(("T4", 1, 2), ("V100-PCIe-16GB", 1, 2))),
        ],
    )


class Broken(WholeClusterPlanner):
    """Answers with someone else's plan, spoiled by `spoil`."""

    name, limits = "broken", "breaks a clause"

    def plan(self, model, cluster, job, price):
        return self.spoil(Amp().plan(model, cluster, job, price))


def _half(plan):
    (pipeline,) = plan.pipelines
    return replace(plan, pipelines=(replace(pipeline, microbatches=1, microbatch=1),))


def _unplaced(plan):
    (pipeline,) = plan.pipelines
    stages = tuple(
        replace(stage, chunks=tuple((start, stop - 1) for start, stop in stage.chunks if stop - start > 1))
        for stage in pipeline.stages
    )
    return replace(plan, pipelines=(replace(pipeline, stages=stages),))


@pytest.mark.parametrize(
    ("spoil", "clause"),
    [
        (lambda plan: replace(plan, job=replace(plan.job, global_batch=32)), "another job"),
        (_half, "whole batch"),
        (_unplaced, "layers"),
    ],
)
def test_the_contract_names_the_clause_that_a_planner_breaks(spoil, clause):
    broken = type("Broken1", (Broken,), {"spoil": staticmethod(spoil)})
    with pytest.raises(AssertionError, match=clause):
        check_planner(broken, [question(small_model(), MIXED)])


def test_a_planner_that_answers_at_random_breaks_the_contract():
    class Fickle(WholeClusterPlanner):
        name, limits = "fickle", "is not deterministic"
        asked = 0

        def plan(self, model, cluster, job, price):
            Fickle.asked += 1
            return (Amp if Fickle.asked % 2 else Sailor)().plan(model, ODD, job, price)

    with pytest.raises(AssertionError, match="differently"):
        check_planner(Fickle, [question(small_model(), ODD)])


def test_a_comparison_goes_on_when_one_planner_cannot_and_another_raises():
    class Limited(WholeClusterPlanner):
        name, limits = "limited", "knows no two kinds"

        def plan(self, model, cluster, job, price):
            raise CannotAnswerError("limited: two kinds of GPUs; it knows no two kinds")

    class Crashing(WholeClusterPlanner):
        name, limits = "crashing", "crashes"

        def plan(self, model, cluster, job, price):
            return list[int]().pop()

    class TooFull(WholeClusterPlanner):
        name, limits = "too-full", "looks at no memory"

        def plan(self, model, cluster, job, price):
            small = Amp().plan(model, cluster, job, price)
            return replace(small, model=small_model(layers=5))

    asked = question(small_model(), MIXED)
    answers = [answer(kind(), asked) for kind in (Limited, Crashing, TooFull, Amp)]
    assert [item.status for item in answers] == [CANNOT, FAILED, FAILED, OK]
    told = comparison(answers).model_dump()["planners"]
    assert list(told) == ["limited", "crashing", "too-full", "amp"]
    assert "two kinds" in told["limited"]["reason"]
    assert told["crashing"]["reason"].startswith("IndexError")
    assert told["limited"]["step_s"] is None
    wanted = {
        "status",
        "step_s",
        "step_s_low",
        "step_s_high",
        "mfu",
        "gpus_used",
        "planning_cpu_s",
        "lower_bound_step_s",
        "plan",
    }
    assert wanted <= set(told["amp"])
    assert told["amp"]["lower_bound_step_s"] <= told["amp"]["step_s"]
    assert told["amp"]["step_s_low"] <= told["amp"]["step_s"] <= told["amp"]["step_s_high"]


def test_the_last_microbatch_of_a_single_pipeline_may_be_short_but_not_empty():
    """Sailor's replicas need not divide the batch; what they leave over is one short microbatch."""
    asked = question(small_model(), ODD, batch=4)
    plan = Amp().plan(asked.model, asked.cluster, replace(asked.job, global_batch=4), asked)
    (pipeline,) = plan.pipelines
    odd = replace(plan, job=replace(plan.job, global_batch=pipeline.microbatches * pipeline.microbatch))
    if pipeline.microbatch > 1:
        short = replace(odd, job=replace(odd.job, global_batch=odd.job.global_batch - 1))
        assert asked.step_s(short) == asked.step_s(odd)
    empty = replace(odd, job=replace(odd.job, global_batch=odd.job.global_batch - pipeline.microbatch))
    with pytest.raises(BadInputError, match="process"):
        asked.step_s(empty)


@pytest.fixture
def installed(monkeypatch):
    """The planners that pyproject.toml registers, whatever was installed when."""
    text = (ROOT / "pyproject.toml").read_bytes()
    table = tomllib.loads(text.decode())["project"]["entry-points"][registry.PLANNERS]
    found = [EntryPoint(name, value, registry.PLANNERS) for name, value in table.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.PLANNERS else [])
    return found


def test_compare_prints_one_table_and_json_and_plans_that_simulate_reads(installed, tmp_path):
    known = ("amp", "flashflex", "hap", "malleus", "metis", "metis-published", "sailor", "tangram", "uniform")
    assert registry.names(registry.PLANNERS) == known
    wanted = [
        "compare",
        "bert-large",
        "azure-c1-t4x4-v100x4",
        "--planners",
        "sailor,amp",
        "--global-batch",
        "8",
    ]
    wanted += ["--seq", "512"]
    run = CliRunner().invoke(app, wanted)
    assert run.exit_code == 0, run.output
    assert "sailor" in run.output
    assert "lower bound" in run.output
    told = json.loads(CliRunner().invoke(app, [*wanted, "--json"]).output)
    assert list(told) == ["question", "planners"]
    assert list(told["planners"]) == ["sailor", "amp"]
    for item in told["planners"].values():
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps(item["plan"]))
        replayed = json.loads(CliRunner().invoke(app, ["simulate", str(plan), "--json"]).output)
        assert replayed["step_s"] == pytest.approx(item["step_s"], rel=1e-9)
    alone = ["plan", *wanted[1:3], "--planner", "sailor", *wanted[5:], "--json"]
    single = json.loads(CliRunner().invoke(app, alone).output)
    assert single["step_s"] == pytest.approx(told["planners"]["sailor"]["step_s"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--planners", "sailer"], "Nearest: sailor"),
        (["--planners", "sailor,sailor"], "twice"),
        (["--planners", "sailor", "--plot", "."], "is a folder"),
    ],
)
def test_compare_refuses_bad_input_in_words(installed, options, problem):
    run = CliRunner().invoke(app, ["compare", "bert-large", "azure-c1-t4x16", *options])
    assert problem in str(run.exception)
    assert isinstance(run.exception, TangramError)


def test_plan_refuses_options_that_a_peer_does_not_know(installed):
    given = ["plan", "bert-large", "azure-c1-t4x16", "--planner", "sailor", "--order", "g0"]
    run = CliRunner().invoke(app, given)
    assert isinstance(run.exception, TangramError)
    assert "--order" in as_options(str(run.exception))


def test_the_plot_is_one_page_with_every_planner_on_it(monkeypatch):
    pytest.importorskip("plotly")
    asked = question(small_model(), MIXED)
    page = plot_html([answer(Amp(), asked), answer(Sailor(), asked)], "small on mixed")
    assert "small on mixed" in page
    assert "sailor" in page


def test_infeasible_says_whose_limits_they_are():
    asked = question(small_model(hidden=32768), cluster_of(("T4", 1, 2)))
    with pytest.raises(InfeasibleError, match="recomputation"):
        Sailor().plan(asked.model, asked.cluster, asked.job, asked)
