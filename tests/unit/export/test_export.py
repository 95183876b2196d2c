"""Export: what a framework can express reads back as the same plan, and what it cannot is said."""

import json
import shutil
import subprocess
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.export import deepspeed, launch, megatron, rankmap, schedule_csv, torchtitan
from tangram_sim.export.formats import export
from tangram_sim.export.uniform import CannotExportError, check_ranks
from tangram_sim.layouts import Layout
from tangram_sim.planners.uniform.shape import Shape
from tangram_sim.training.plan import Plan, Share, pipeline_of_shares
from tangram_sim.training.schedules.named import schedule_named
from tests.unit.export.plans import NODE, plan_of, two_stages, uniform_plans, without_context


def degrees_of(plan: Plan) -> tuple[int, int, int, int]:
    layout = plan.pipelines[0].stages[0].layout
    return layout.tp, layout.cp, layout.dp * len(plan.pipelines), len(plan.pipelines[0].stages)


def ranks_of(plan: Plan) -> tuple[int, ...]:
    """Stage by stage, the pipelines' ranks in turn: what Megatron, TorchTitan and DeepSpeed count."""
    depth = len(plan.pipelines[0].stages)
    return tuple(
        rank for place in range(depth) for pipeline in plan.pipelines for rank in pipeline.stages[place].ranks
    )


def toml_of(plan: Plan) -> dict[str, object]:
    """The file of TorchTitan 0.2.2, whatever the model."""
    text = export(plan, "torchtitan", version="0.2.2", differing=True).files["torchtitan.toml"]
    return tomllib.loads(text)


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
        # Megatron-LM drops a tenth unless told otherwise; blocks that do not are told so.
        none = not (plan.job.dropout and plan.model.blocks[0].usually_drops)
        assert ("--hidden-dropout 0.0" in found["megatron.args"]) == none

    @settings(max_examples=60, deadline=None)
    @given(uniform_plans())
    def test_torchtitan(self, plan):
        layout = plan.pipelines[0].stages[0].layout
        if layout.cp > 1 and not layout.zero_stage:
            with pytest.raises(CannotExportError, match="it shards over cp ranks, too"):
                export(plan, "torchtitan")
            return
        for version in ("0.2.2", "0.3.0"):
            try:
                found = export(plan, "torchtitan", version=version, differing=True).files
            except CannotExportError as refused:  # of 0.2.2, which has plain replicas alone
                assert version == "0.2.2"
                assert "it replicates (stage 0) only" in str(refused) or "it always has both" in str(refused)
                continue
            ranks = launch.read(found["launch.sh"], plan.cluster)
            holds(torchtitan.read(found, ranks, plan.model.layers), plan)

    @settings(max_examples=60, deadline=None)
    @given(uniform_plans(even=True))
    def test_deepspeed(self, plan):
        plan = without_context(plan)
        layout = plan.pipelines[0].stages[0].layout
        try:
            found = export(plan, "deepspeed").files
        except CannotExportError as refused:
            reasons = [line for line in str(refused).splitlines() if line.startswith("  - ")]
            assert all("together with" in reason or "ZeRO 0 in bf16" in reason for reason in reasons)
            assert layout.tp > 1 or (layout.zero_stage == 0 and plan.job.dtype == "bf16")
            return
        ranks = launch.read(found["launch.sh"], plan.cluster)
        holds(deepspeed.read(found["ds_config.json"], found["pipeline.json"], ranks), plan)

    @settings(max_examples=40, deadline=None)
    @given(uniform_plans())
    def test_rank_maps_and_torchrun_hold_every_decision(self, plan):
        assert rankmap.read(export(plan, "rankmap").files["rankmap.json"]) == plan.pipelines
        found = export(plan, "torchrun").files
        in_order = [item["gpu"] for item in json.loads(found["rankmap.json"])["ranks"]]
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


class TestRefusals:
    @pytest.mark.parametrize("to", ["megatron", "torchtitan", "deepspeed"])
    def test_unequal_degrees_are_refused_with_every_reason(self, to):
        plan = two_stages(Layout(tp=2, dp=1), Layout(tp=1, dp=4, zero_stage=1))
        with pytest.raises(CannotExportError) as refused:
            export(plan, to, differing=True)
        words = str(refused.value)
        assert "tensor-parallel degree differs between stages: 2, 1" in words
        assert "data-parallel degree differs between stages: 1, 4" in words
        assert "ZeRO stage differs between stages: 0, 1" in words
        assert "it can be written as `to=rankmap`, `to=torchrun`, `to=torch-pipeline-csv`;" in words in words
        assert f"`tangram plan tiny lab --global-batch 16 --seq 1024 --for {to}`" in words
        assert set(export(plan, "rankmap").files) == {"rankmap.json"}

    def test_mixed_stages_are_refused_and_mapped(self):
        shares = [[Share("g0", (0, 1), 3, Layout(dp=2)), Share("g0", (2,), 1, Layout())]]
        plan = plan_of((pipeline_of_shares(2, (0, 4), shares),), 4, 3)
        with pytest.raises(CannotExportError, match="stage 0 is mixed: 2 GPUs with 3 and 1 GPUs with 1"):
            export(plan, "megatron")
        found = json.loads(export(plan, "rankmap").files["rankmap.json"])["ranks"]
        assert [item["sequences"] for item in found] == [2, 1, 1]

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
            ("torchtitan", two_stages(Layout(cp=2), Layout(cp=2)), "ZeRO 0 together with context"),
            ("torchtitan", two_stages(Layout(), Layout()), r"no flavour of TorchTitan 0\.3\.0 is tiny"),
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

    def test_torchtitan_shards_over_context_parallel_ranks(self):
        """`ParallelDims.fsdp_enabled`: over dp_shard x cp where one is above 1, as plans do under ZeRO."""
        layout = Layout(cp=2, zero_stage=2)
        parts = toml_of(two_stages(layout, layout))
        assert parts["parallelism"]["context_parallel_degree"] == 2
        assert parts["parallelism"]["data_parallel_shard_degree"] == 1

    def test_an_unknown_format_names_the_known_ones(self):
        with pytest.raises(UnknownNameError, match="megatron"):
            export(two_stages(Layout(), Layout()), "megatrn")

    @pytest.mark.parametrize(
        ("read", "text"),
        [
            (lambda text: megatron.read(text, (0,)), "--tensor-model-parallel-size many"),
            (lambda text: torchtitan.read({"torchtitan.toml": text}, (0,), 4), "[training]"),
            (lambda text: deepspeed.read(text, "{}", (0,)), "{}"),
            (rankmap.read, '{"format": "other"}'),
            (schedule_csv.read, "0F0,2X1"),
            (lambda text: launch.read(text, two_stages(Layout(), Layout()).cluster), "#!/bin/sh"),
        ],
    )
    def test_foreign_text_is_bad_input(self, read, text):
        with pytest.raises(BadInputError):
            read(text)


class TestEnds:
    """Stages that hold an end of the model and no block."""

    @pytest.mark.parametrize("cuts", [(0, 4, 4), (0, 0, 4)])
    def test_a_stage_of_the_head_or_the_embedding_alone_reads_back(self, cuts):
        plan = two_stages(Layout(), Layout(), cuts=cuts)
        found = export(plan, "megatron").files["megatron.args"]
        ends = {(0, 4, 4): "Etttt|L", (0, 0, 4): "E|ttttL"}
        assert f"--pipeline-model-parallel-layout '{ends[cuts]}'\n" in found
        layout = Layout(dp=2, zero_stage=2)
        parts = toml_of(two_stages(layout, layout, cuts=cuts))["parallelism"]
        alone = parts["module_fqns_per_model_part"][0 if cuts[1] == 0 else 1]
        assert alone == (["tok_embeddings"] if cuts[1] == 0 else ["norm", "output"])
        with pytest.raises(CannotExportError, match=r"unequal depth \(0, 4 blocks\)"):
            export(plan, "deepspeed")

    def test_context_parallelism_of_one_stage_is_named(self):
        plan = two_stages(Layout(cp=2), Layout(dp=2))
        with pytest.raises(CannotExportError, match="context-parallel degree differs between stages: 2, 1"):
            export(plan, "megatron")


class TestActivationCheckpointing:
    @pytest.mark.parametrize("recompute", ["none", "selective", "full"])
    def test_it_is_always_stated(self, recompute):
        layout = Layout(tp=2, recompute=recompute)
        whole = Layout(dp=2, recompute=recompute, zero_stage=1)
        sharded = Layout(dp=2, recompute=recompute, zero_stage=2)
        plan = two_stages(layout, layout)
        titan = toml_of(two_stages(sharded, sharded))
        assert titan["activation_checkpoint"] == {"mode": recompute}
        found = export(plan, "megatron")
        words = megatron.arguments(found.files["megatron.args"])
        assert words.get("--recompute-granularity", "none") == recompute
        assert any("nothing is recomputed" in note for note in found.notes) == (recompute == "none")
        if recompute != "selective":
            interval = json.loads(export(two_stages(whole, whole), "deepspeed").files["pipeline.json"])
            assert interval["activation_checkpoint_interval"] == (recompute == "full")


class TestLaunch:
    def test_ranks_that_do_not_follow_each_other_take_an_agent_each(self):
        plan = two_stages(Layout(dp=2), Layout(dp=2))
        agents = launch.agents_of((0, 4, 5, 1), Cluster("lab", (NodeGroup("g0", 2, NODE),)))
        assert [(agent.node, agent.first_rank, agent.local_gpus) for agent in agents] == [
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
        smi = tmp_path / "nvidia-smi"

        def here(*names: str) -> None:
            smi.write_text("#!/bin/sh\n" + "".join(f"echo '{name}'\n" for name in names))
            smi.chmod(0o755)

        def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["sh", "launch.sh", *words],
                cwd=tmp_path,
                env=environment | more,
                capture_output=True,
                text=True,
                check=False,
            )

        here(*["NVIDIA A100-SXM4-40GB"] * 4)
        assert run("1", "train.py", "--lr", "1").stdout.split() == [
            "0,1", "--nnodes=3", "--node-rank=1", "--nproc-per-node=2", "--master-addr=head",
            "--master-port=29500", "train.py", "--lr", "1",
        ]  # fmt: skip
        assert run("7").returncode == 2
        for names in (["Tesla T4"] * 4, ["NVIDIA A100-SXM4-40GB"]):
            here(*names)
            wrong = run("1", "train.py")
            assert (wrong.returncode, wrong.stdout) == (3, "")
            assert "agent 1 wants 2 GPUs of kind A100" in wrong.stderr
            assert run("1", "train.py", SKIP_GPU_CHECK="1").returncode == 0
        smi.unlink()
        assert "no answer of nvidia-smi" in run("1", "train.py").stderr


def test_ranks_of_a_file_are_those_of_its_degrees_each_once() -> None:
    shape = Shape(tp=2, cp=1, dp=2, ep=1, layers=(((0, 4),),), ranks=(0, 1, 2, 3))
    check_ranks(shape)
    for ranks in ((0, 1, 2), (0, 1, 2, 3, 4), (0, 1, 1, 3)):
        with pytest.raises(CannotExportError, match="tp 2 x cp 1 x dp 2 x pp 1 is not"):
            check_ranks(replace(shape, ranks=ranks))
