"""Export: what a framework can express reads back as the same plan, and what it cannot is said."""

import argparse
import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.export import deepspeed, launch, megatron, rankmap, schedule_csv, torchtitan
from tangram_sim.export.formats import FORMATS, export
from tangram_sim.export.uniform import CannotExportError, uniform_of
from tangram_sim.hwdb import Hwdb
from tangram_sim.layouts import Layout
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Plan, Share, pipeline_of_shares
from tangram_sim.training.schedules.named import schedule_named
from tests.commands import files, tangram

HWDB = Hwdb.load()
NODE = Node(HWDB.gpu("A100-SXM4-40GB"), 4, HWDB.link("NVLink3"), 12.5e9)


# Flags of Megatron-LM's training loop and of its wrappers, not of megatron-core's TransformerConfig.
MEGATRON_TRAINING = {
    *("global_batch_size", "micro_batch_size", "seq_length", "max_position_embeddings", "optimizer", "bf16"),
    *("group_query_attention", "untie_embeddings_and_output_weights", "swiglu", "use_distributed_optimizer"),
    *("use_megatron_fsdp", "data_parallel_sharding_strategy", "ckpt_format"),
}


def model_of(layers: int) -> Model:
    block = Block(Attention(8, 4, 64, 64), FeedForward(2048))
    return Model("tiny", "llama", 512, 8000, (block,) * layers, max_seq=4096)


def plan_of(pipelines: tuple[Pipeline, ...], layers: int, gpus: int, **job: object) -> Plan:
    nodes = -(-gpus // NODE.gpus)
    batch = sum(one.microbatches * one.microbatch for one in pipelines)
    cluster = Cluster("lab", (NodeGroup("g0", nodes, NODE),))
    return Plan(model_of(layers), cluster, Job(batch, 1024, **{"dtype": "bf16", **job}), pipelines)  # type: ignore[arg-type]


@st.composite
def uniform_plans(draw: st.DrawFn, *, even: bool = False) -> Plan:
    """Plans with equal degrees everywhere: any cuts, any order of GPUs, sometimes pipelines side by side."""
    tp, cp, dp = (draw(st.sampled_from((1, 2))) for _ in range(3))
    depth = draw(st.integers(1, 3))
    chunks = draw(st.integers(1, 2)) if depth > 1 and not even else 1
    sizes = [draw(st.integers(1, 4))] * depth if even else [
        draw(st.integers(1, 4)) for _ in range(depth * chunks)
    ]  # fmt: skip
    copies = draw(st.integers(1, 2))
    cuts = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    per_stage = tp * cp * dp
    order = draw(st.permutations(range(copies * depth * per_stage)))
    layout = Layout(tp, dp, cp, 1, 1, draw(st.sampled_from((0, 3) if depth == 1 or not even else (0,))))
    pipelines = []
    for copy in range(copies):
        shares = []
        for place in range(depth):
            first = (copy * depth + place) * per_stage
            shares.append([Share("g0", tuple(order[first : first + per_stage]), 2 * dp, layout)])
        pipelines.append(pipeline_of_shares(2 * depth, cuts, shares, chunks))
    schedule = "interleaved" if chunks > 1 else "1f1b"
    return plan_of(tuple(pipelines), cuts[-1], len(order), schedule=schedule)


def degrees_of(plan: Plan) -> tuple[int, int, int, int]:
    layout = plan.pipelines[0].stages[0].layout
    return layout.tp, layout.cp, layout.dp * len(plan.pipelines), len(plan.pipelines[0].stages)


def ranks_of(plan: Plan) -> tuple[int, ...]:
    """Stage by stage, the pipelines' ranks in turn: what Megatron, TorchTitan and DeepSpeed count."""
    depth = len(plan.pipelines[0].stages)
    return tuple(rank for place in range(depth) for one in plan.pipelines for rank in one.stages[place].ranks)


def holds(shape: object, plan: Plan) -> None:
    """The three things a round trip must keep."""
    assert (shape.tp, shape.cp, shape.dp, shape.pp) == degrees_of(plan)  # type: ignore[attr-defined]
    cuts = tuple(stage.chunks for stage in plan.pipelines[0].stages)
    assert shape.layers == cuts  # type: ignore[attr-defined]
    assert shape.ranks == ranks_of(plan)  # type: ignore[attr-defined]


class TestRoundTrips:
    @settings(max_examples=60, deadline=None)
    @given(uniform_plans())
    def test_megatron(self, plan):
        found = export(plan, "megatron").files
        ranks = launch.read(found["launch.sh"], plan.cluster)
        holds(megatron.read(found["megatron.args"], ranks), plan)

    @settings(max_examples=60, deadline=None)
    @given(uniform_plans())
    def test_torchtitan(self, plan):
        found = export(plan, "torchtitan").files
        ranks = launch.read(found["launch.sh"], plan.cluster)
        holds(torchtitan.read(found["torchtitan.toml"], ranks, plan.model.layers), plan)

    @settings(max_examples=60, deadline=None)
    @given(uniform_plans(even=True))
    def test_deepspeed(self, plan):
        plan = without_context(plan)
        found = export(plan, "deepspeed").files
        ranks = launch.read(found["launch.sh"], plan.cluster)
        holds(deepspeed.read(found["ds_config.json"], found["pipeline.json"], ranks), plan)

    @settings(max_examples=40, deadline=None)
    @given(uniform_plans())
    def test_rank_maps_and_torchrun_hold_every_decision(self, plan):
        assert rankmap.read(export(plan, "rankmap").files["rankmap.json"]) == plan.pipelines
        found = export(plan, "torchrun").files
        in_order = [one["gpu"] for one in json.loads(found["rankmap.json"])["ranks"]]
        assert list(launch.read(found["launch.sh"], plan.cluster)) == in_order

    @settings(max_examples=40, deadline=None)
    @given(st.sampled_from(("1f1b", "gpipe", "interleaved", "zb-h1")), st.integers(1, 4), st.integers(1, 4))
    def test_orders_of_passes(self, schedule, depth, rounds):
        chunks, depth = (2, depth + 1) if schedule == "interleaved" else (1, depth)
        shares = [[Share("g0", (place,), 1, Layout())] for place in range(depth)]
        whole = pipeline_of_shares(rounds * depth, list(range(depth * chunks + 1)), shares, chunks)
        text = export(plan_of((whole,), depth * chunks, depth, schedule=schedule), "torch-pipeline-csv")
        order = schedule_named(schedule).order(depth, rounds * depth, chunks)
        assert schedule_csv.read(text.files["schedule.csv"]) == [order.stage(s) for s in range(depth)]


def without_context(plan: Plan) -> Plan:
    """The plan with its context parallelism made tensor parallelism: DeepSpeed has no such kind."""

    def changed(layout: Layout) -> Layout:
        return replace(layout, tp=layout.tp * layout.cp, cp=1)

    def of(pipeline: Pipeline) -> Pipeline:
        stages = tuple(
            replace(
                stage,
                parts=tuple(
                    replace(
                        part,
                        layouts=tuple(replace(run, layout=changed(run.layout)) for run in part.layouts),
                    )
                    for part in stage.parts
                ),
            )
            for stage in pipeline.stages
        )
        return replace(pipeline, stages=stages)

    return replace(plan, pipelines=tuple(map(of, plan.pipelines)))


def two_stages(
    first: Layout, second: Layout, sequences: int = 4, cuts: tuple[int, ...] = (0, 2, 4), **job
) -> Plan:
    ranks = tuple(range(first.gpus)), tuple(range(first.gpus, first.gpus + second.gpus))
    shares = [[Share("g0", mine, sequences, one)] for mine, one in zip(ranks, (first, second), strict=True)]
    whole = pipeline_of_shares(4, cuts, shares)
    return plan_of((whole,), cuts[-1], sum(map(len, ranks)), **job)


class TestRefusals:
    @pytest.mark.parametrize("to", ["megatron", "torchtitan", "deepspeed"])
    def test_unequal_degrees_are_refused_with_every_reason(self, to):
        plan = two_stages(Layout(tp=2, dp=1), Layout(tp=1, dp=4, zero_stage=1))
        with pytest.raises(CannotExportError) as refused:
            export(plan, to)
        words = str(refused.value)
        assert "tensor-parallel degree differs between stages: 2, 1" in words
        assert "data-parallel degree differs between stages: 1, 4" in words
        assert "ZeRO stage differs between stages: 0, 1" in words
        assert "`to=rankmap`" in words
        assert set(export(plan, "rankmap").files) == {"rankmap.json"}

    def test_mixed_stages_are_refused_and_mapped(self):
        shares = [[Share("g0", (0, 1), 3, Layout(dp=2)), Share("g0", (2,), 1, Layout())]]
        plan = plan_of((pipeline_of_shares(2, (0, 4), shares),), 4, 3)
        with pytest.raises(CannotExportError, match="stage 0 is mixed: 2 GPUs with 3 and 1 GPUs with 1"):
            uniform_of(plan, "Megatron-LM")
        found = json.loads(export(plan, "rankmap").files["rankmap.json"])["ranks"]
        assert [one["sequences"] for one in found] == [2, 1, 1]

    @pytest.mark.parametrize(
        ("to", "plan", "words"),
        [
            ("deepspeed", two_stages(Layout(), Layout(), cuts=(0, 1, 4)), "unequal depth"),
            ("deepspeed", two_stages(Layout(cp=2), Layout(cp=2)), "context parallelism"),
            (
                "deepspeed",
                two_stages(Layout(dp=2, zero_stage=3), Layout(dp=2, zero_stage=3)),
                "ZeRO 3 together",
            ),
            (
                "torchtitan",
                two_stages(Layout(dp=2, zero_stage=1), Layout(dp=2, zero_stage=1)),
                "ZeRO stage 1",
            ),
            ("torchtitan", two_stages(Layout(), Layout(), dtype="fp16"), "precision fp16"),
            ("megatron", two_stages(Layout(), Layout(), schedule="zb-h1"), "schedule zb-h1"),
            ("megatron", two_stages(Layout(dp=3), Layout(dp=3)), "share 4 sequences unevenly"),
            ("megatron", two_stages(Layout(), Layout(), optimizer="lion"), "optimizer lion"),
            (
                "megatron",
                two_stages(Layout(), Layout(), trainable=0.01),
                "without `lora_rank=`",
            ),
        ],
    )
    def test_what_a_framework_lacks_is_named(self, to, plan, words):
        with pytest.raises(CannotExportError, match=words):
            export(plan, to)

    def test_an_unknown_format_names_the_known_ones(self):
        with pytest.raises(UnknownNameError, match="megatron"):
            export(two_stages(Layout(), Layout()), "megatrn")

    @pytest.mark.parametrize(
        ("read", "text"),
        [
            (lambda text: megatron.read(text, (0,)), "--tensor-model-parallel-size many"),
            (lambda text: torchtitan.read(text, (0,), 4), "[training]"),
            (lambda text: deepspeed.read(text, "{}", (0,)), "{}"),
            (rankmap.read, '{"format": "other"}'),
            (schedule_csv.read, "0F0,2X1"),
            (lambda text: launch.read(text, two_stages(Layout(), Layout()).cluster), "#!/bin/sh"),
        ],
    )
    def test_foreign_text_is_bad_input(self, read, text):
        with pytest.raises(BadInputError):
            read(text)


class TestLaunch:
    def test_ranks_that_do_not_follow_each_other_take_an_agent_each(self):
        plan = two_stages(Layout(dp=2), Layout(dp=2))
        agents = launch.agents_of((0, 4, 5, 1), Cluster("lab", (NodeGroup("g0", 2, NODE),)))
        assert [(one.node, one.first_rank, one.local_gpus) for one in agents] == [
            (0, 0, (0,)), (1, 1, (0, 1)), (0, 3, (1,)),
        ]  # fmt: skip
        assert launch.split_nodes(agents) == (0,)
        assert len(launch.agents_of(ranks_of(plan), plan.cluster)) == 1

    @pytest.mark.skipif(shutil.which("sh") is None, reason="no shell here")
    def test_the_script_starts_what_it_says(self, tmp_path):
        """Run by a real shell with a `torchrun` that prints how it was called."""
        said = tmp_path / "torchrun"
        said.write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $@"\n')
        said.chmod(0o755)
        (tmp_path / "launch.sh").write_text(
            launch.write((0, 4, 5, 1), Cluster("c", (NodeGroup("g0", 2, NODE),)), "x")
        )
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MASTER_ADDR": "head"}

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["sh", "launch.sh", *words],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )

        assert run("1", "train.py", "--lr", "1").stdout.split() == [
            "0,1", "--nnodes=3", "--node-rank=1", "--nproc-per-node=2", "--master-addr=head",
            "--master-port=29500", "train.py", "--lr", "1",
        ]  # fmt: skip
        assert run("7").returncode == 2


class TestAgainstTheFrameworks:
    def test_torchtitans_own_classes_take_the_sections(self):
        configs = pytest.importorskip(
            "torchtitan.config", reason="torchtitan is not installed", exc_type=ImportError
        )
        plan = two_stages(Layout(tp=2, dp=2, zero_stage=3), Layout(tp=2, dp=2, zero_stage=3), cuts=(0, 1, 4))
        found = tomllib.loads(export(plan, "torchtitan").files["torchtitan.toml"])
        parallelism = configs.ParallelismConfig(**found["parallelism"])
        assert parallelism.module_fqns_per_model_part == [
            ["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "layers.3", "norm", "lm_head"],
        ]  # fmt: skip
        assert configs.TrainingConfig(**found["training"]).global_batch_size == plan.job.global_batch

    @settings(max_examples=20, deadline=None)
    @given(uniform_plans())
    def test_megatron_cores_own_layout_agrees_on_every_stage(self, plan):
        layouts = pytest.importorskip(
            "megatron.core.transformer.pipeline_parallel_layer_layout",
            reason="megatron-core is not installed",
            exc_type=ImportError,
        )
        words = megatron.arguments(export(plan, "megatron").files["megatron.args"])
        text = words.get("--pipeline-model-parallel-layout")
        if text is None:
            return
        found = layouts.PipelineParallelLayerLayout(text, int(words["--pipeline-model-parallel-size"]))
        found.validate_layer_layout(plan.model.layers, 0)
        for place, stage in enumerate(plan.pipelines[0].stages):
            for chunk, (start, stop) in enumerate(stage.chunks):
                held = found.layout[place][chunk].count(layouts.LayerType.decoder)
                assert held == stop - start

    @pytest.mark.filterwarnings("ignore::UserWarning")  # its advice on kernels
    @settings(max_examples=20, deadline=None)
    @given(uniform_plans())
    def test_megatron_cores_own_configuration_takes_the_arguments(self, plan):
        """Flags that are fields of its configuration are accepted by it; the rest is of its training loop."""
        transformer = pytest.importorskip(
            "megatron.core.transformer.transformer_config",
            reason="megatron-core is not installed",
            exc_type=ImportError,
        )
        words = megatron.arguments(export(plan, "megatron").files["megatron.args"])
        known = {one.name for one in fields(transformer.TransformerConfig)}
        given = {flag.removeprefix("--").replace("-", "_"): value for flag, value in words.items()}
        layout = given.pop("pipeline_model_parallel_layout", None)  # its class is held to in the test above
        taken = {name: int(value) if value else True for name, value in given.items() if name in known}
        if layout:
            taken |= {"pipeline_dtype": torch_dtype("bfloat16"), "pipeline_model_parallel_layout": layout}
        elif taken["pipeline_model_parallel_size"] > 1:
            taken["pipeline_dtype"] = torch_dtype("bfloat16")
        found = transformer.TransformerConfig(**taken)
        shape = uniform_of(plan, "Megatron-LM").shape
        assert (found.tensor_model_parallel_size, found.context_parallel_size) == (shape.tp, shape.cp)
        assert (found.pipeline_model_parallel_size, found.num_layers) == (shape.pp, plan.model.layers)
        assert (found.hidden_size, found.num_query_groups) == (512, 4)
        assert given.keys() - known <= MEGATRON_TRAINING

    @settings(max_examples=20, deadline=None)
    @given(uniform_plans(even=True))
    def test_deepspeeds_own_configuration_takes_the_file(self, plan):
        config = pytest.importorskip(
            "deepspeed.runtime.config", reason="deepspeed is not installed", exc_type=ImportError
        )
        plan = without_context(plan)
        shape = uniform_of(plan, "DeepSpeed").shape

        class Ranks:  # what DeepSpeed asks of whoever laid out the ranks
            get_data_parallel_world_size = staticmethod(lambda: shape.dp)

        with patch.object(config.dist, "get_rank", lambda: 0):  # no process group here
            found = config.DeepSpeedConfig(
                json.loads(export(plan, "deepspeed").files["ds_config.json"]), Ranks
            )
        assert found.train_batch_size == plan.job.global_batch
        assert found.gradient_accumulation_steps == plan.pipelines[0].microbatches
        assert found.zero_config.stage == plan.pipelines[0].stages[0].layout.zero_stage

    @pytest.mark.parametrize("depth", [1, 2, 4])
    def test_deepspeeds_own_topology_counts_ranks_alike(self, depth):
        topology = pytest.importorskip(
            "deepspeed.runtime.pipe.topology", reason="deepspeed is not installed", exc_type=ImportError
        )
        shares = [[Share("g0", tuple(range(4 * s, 4 * s + 4)), 4, Layout(tp=2, dp=2))] for s in range(depth)]
        plan = plan_of((pipeline_of_shares(4, range(depth + 1), shares),), depth, 4 * depth)
        found = json.loads(export(plan, "deepspeed").files["pipeline.json"])["topology"]
        whole = topology.ProcessTopology(**found)
        for one in json.loads(export(plan, "rankmap").files["rankmap.json"])["ranks"]:
            place = {"pipe": one["stage"], "data": one["dp_rank"], "model": one["tp_rank"]}
            assert whole.get_rank(**place) == one["rank"]

    @pytest.mark.slow
    def test_torchs_own_schedules_load_the_orders(self):
        schedules = pytest.importorskip(
            "torch.distributed.pipelining.schedules", reason="torch is not installed", exc_type=ImportError
        )
        for schedule, chunks in (("1f1b", 1), ("zb-h1", 1), ("interleaved", 2)):
            shares = [[Share("g0", (place,), 1, Layout())] for place in range(2)]
            whole = pipeline_of_shares(4, list(range(2 * chunks + 1)), shares, chunks)
            text = export(plan_of((whole,), 2 * chunks, 2, schedule=schedule), "torch-pipeline-csv")
            rows = text.files["schedule.csv"].splitlines()
            order = {
                rank: [schedules._Action.from_str(cell) for cell in row.split(",")]
                for rank, row in enumerate(rows)
            }
            placed = schedules._validate_schedule(order, 2, 2 * chunks, 4)
            assert placed == {stage: stage % 2 for stage in range(2 * chunks)}


def torch_dtype(name: str) -> object:
    return getattr(pytest.importorskip("torch"), name)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    model, cluster = files(folder)
    plan = folder / "plan.json"
    words = ("estimate", model, cluster, "--pp", 3, "--dtype", "fp16", "-o", plan)
    assert tangram(*words).code == 0
    return plan


class TestCommand:
    @pytest.mark.parametrize("to", FORMATS)
    def test_every_format_answers(self, planned, tmp_path, to):
        finished = tangram("export", planned, "--to", to, "-o", tmp_path / "out")
        if finished.code:
            assert finished.code == 2
            assert re.search(r"cannot express this plan:\n  - ", finished.err)
            assert not (tmp_path / "out").exists()
        else:
            assert list((tmp_path / "out").iterdir())
            assert tangram("export", planned, "--to", to, "--json").json["files"].keys() == {
                path.name for path in (tmp_path / "out").iterdir()
            }

    def test_megatrons_arguments_parse(self, planned):
        """Every switch is one that a parser takes by itself, and the file is printed alone in a pipe."""
        words = (
            tangram("export", planned, "--to", "megatron", "--json").json["files"]["megatron.args"].split()
        )
        parser = argparse.ArgumentParser()
        flags = [word for word in words if word.startswith("--")]
        for flag in flags:
            parser.add_argument(flag, nargs="?", const=True)
        assert vars(parser.parse_args(words))["global_batch_size"] == "128"
        assert len(set(flags)) == len(flags)
