"""Exports held to the frameworks' own parsers, and the command."""

import argparse
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings

from tangram_sim.export import megatron
from tangram_sim.export.formats import FORMATS, export
from tangram_sim.export.uniform import CannotExportError
from tangram_sim.layouts import Layout
from tangram_sim.planners.uniform.shape import uniform_view
from tangram_sim.training.plan import Share, pipeline_of_shares
from tests.commands import files, tangram
from tests.unit.export.plans import plan_of, two_stages, uniform_plans, without_context

# Flags of Megatron-LM's training loop and of its wrappers, not of megatron-core's TransformerConfig.
MEGATRON_TRAINING = {
    *("global_batch_size", "micro_batch_size", "seq_length", "max_position_embeddings", "optimizer", "bf16"),
    *("group_query_attention", "untie_embeddings_and_output_weights", "swiglu", "use_distributed_optimizer"),
    *("position_embedding_type", "disable_bias_linear", "rotary_base"),
    "norm_epsilon",
    *("use_megatron_fsdp", "data_parallel_sharding_strategy", "ckpt_format"),
}


# Fields of torchtitan/config/job_config.py in the wheel of TorchTitan 0.2.2, of those that are written.
TORCHTITAN_0_2_2 = {
    "model": {"name", "flavor"},
    "optimizer": {"name"},
    "training": {"local_batch_size", "global_batch_size", "seq_len", "mixed_precision_param"},
    "parallelism": {
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
        "tensor_parallel_degree",
        "context_parallel_degree",
        "expert_parallel_degree",
        "expert_tensor_parallel_degree",
        "pipeline_parallel_degree",
        "pipeline_parallel_schedule",
        "pipeline_parallel_microbatch_size",
        "module_fqns_per_model_part",
    },
    "activation_checkpoint": {"mode"},
}


@settings(max_examples=20, deadline=None)
@given(uniform_plans())
def test_torchtitan_0_2_knows_every_key_and_names_its_head_as_the_file_does(plan):
    """It refuses a file with a key of another version; a stage without its head trains another model."""
    try:
        text = export(plan, "torchtitan", version="0.2.2", differing=True).files["torchtitan.toml"]
    except CannotExportError:
        return
    found = tomllib.loads(text)
    assert {name: set(keys) - TORCHTITAN_0_2_2[name] for name, keys in found.items()} == {
        name: set() for name in found
    }
    parts = found["parallelism"].get("module_fqns_per_model_part", [["output"]])
    assert parts[-1][-1] == "output"


class TestAgainstTheFrameworks:
    def test_torchtitans_own_classes_take_the_sections(self):
        configs = pytest.importorskip(
            "torchtitan.config", reason="torchtitan is not installed", exc_type=ImportError
        )
        plan = two_stages(Layout(tp=2, dp=2, zero_stage=3), Layout(tp=2, dp=2, zero_stage=3), cuts=(0, 1, 4))
        found = tomllib.loads(
            export(plan, "torchtitan", version="0.2.2", differing=True).files["torchtitan.toml"]
        )
        parallelism = configs.ParallelismConfig(**found["parallelism"])
        assert parallelism.module_fqns_per_model_part == [
            ["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "layers.3", "norm", "output"],
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
        known = {field.name for field in fields(transformer.TransformerConfig)}
        given = {flag.removeprefix("--").replace("-", "_"): value for flag, value in words.items()}
        layout = given.pop("pipeline_model_parallel_layout", None)  # its class is held to in the test above
        taken = {name: as_value(value) for name, value in given.items() if name in known}
        if layout:
            taken |= {"pipeline_dtype": torch_dtype("bfloat16"), "pipeline_model_parallel_layout": layout}
        elif taken["pipeline_model_parallel_size"] > 1:
            taken["pipeline_dtype"] = torch_dtype("bfloat16")
        found = transformer.TransformerConfig(**taken)
        shape = uniform_view(plan).shape
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
        if plan.pipelines[0].stages[0].layout.tp > 1:
            return
        shape = uniform_view(plan).shape

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
        for item in json.loads(export(plan, "rankmap").files["rankmap.json"])["ranks"]:
            place = {"pipe": item["stage"], "data": item["dp_rank"], "model": item["tp_rank"]}
            assert whole.get_rank(**place) == item["rank"]

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


def as_value(text: str) -> object:
    """The value of an argument: a switch, a number or a word."""
    return int(text) if text.isdigit() else text or True


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
