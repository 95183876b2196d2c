"""Warnings before a plan is run: each appears where it should, and only there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tangram_sim as ts
from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tangram_sim.hwdb import load_cluster, load_model
from tangram_sim.hwdb.model_section import model_from_dict, model_to_dict
from tests.commands import tangram


def notes(cluster: str, layout: ts.Uniform, batch: int = 64, model: str = "gpt3-1.3b") -> str:
    return "\n".join(ts.estimate(model, cluster, ts.Job(global_batch=batch), layout).document.notes)


SOUND = notes("DGX-H100:1", ts.Uniform(tp=2, zero_stage=1), model="llama3-8b")


def test_a_sound_plan_on_stated_machines_has_no_warning() -> None:
    assert SOUND == ""


@pytest.mark.parametrize(
    ("cluster", "layout", "batch", "words"),
    [
        ("DGX-H100:1+MI300X-platform:1", ts.Uniform(tp=8, pp=2), 64, "no collective library spans"),
        ("DGX-A100-80GB:1+DGX-1-V100:1", ts.Uniform(tp=8, pp=2), 64, "have no bf16; without them"),
        ("DGX-H100:2", ts.Uniform(tp=16), 64, "tensor parallelism over the network"),
        ("DGX-H100:4", ts.Uniform(tp=8, pp=4), 4, "4 microbatches for 4 stages"),
        ("DGX-H100:2", ts.Uniform(tp=4, dp=4), 4, "4 sequences a step for 16 GPUs: each GPU works on a part"),
        ("DGX-H100:2", ts.Uniform(tp=2, pp=2, zero_stage=3), 64, "ZeRO 3 inside pipelines: weights move for"),
        ("DGX-H100:1", ts.Uniform(tp=8), 1, "times apart: plans closer than that cannot be ranked"),
        ("H100x8:2", ts.Uniform(tp=8, pp=2), 64, "g0: assumed: NVLink4"),
    ],
)
def test_a_warning_where_it_is_due(cluster: str, layout: ts.Uniform, batch: int, words: str) -> None:
    assert words in notes(cluster, layout, batch)


def test_layers_of_several_sizes_are_launched_by_no_arguments_that_state_one() -> None:
    """Dense layers beside mixtures have arguments of their own; two widths of dense ones have not."""
    plain = load_model("gpt3-1.3b")
    block = plain.blocks[0]
    wider = replace(block, feed_forward=replace(block.feed_forward, width=4096))
    for model, able in ((replace(plain, blocks=(*plain.blocks[1:], wider)), False), (plain, True)):
        made = ts.estimate(model, "DGX-H100:1", ts.Job(global_batch=32), ts.Uniform(tp=8))
        assert ("megatron" in made.document.launchable_with) is able
    layout = ts.Uniform(tp=8, zero_stage=1, sequence_parallel=True)
    mixed = ts.estimate("mixtral-8x7b", "DGX-H100:4", ts.Job(global_batch=32), layout)
    assert "megatron" in mixed.document.launchable_with


def test_gpus_of_two_vendors_are_launched_by_nothing_and_all_gpus_count() -> None:
    """No collective library spans them; a GPU that lacks the format counts at a peak that it has."""
    mixed = ts.estimate(
        "gpt3-1.3b", "DGX-H100:1+MI300X-platform:1", ts.Job(global_batch=32), ts.Uniform(tp=8)
    )
    assert mixed.document.launchable_with == []
    alone = ts.Uniform(tp=8, order=("g0",))
    result = ts.estimate(
        "gpt3-1.3b", "DGX-H100:1+DGX-A100-80GB:1", ts.Job(global_batch=32, dtype="fp8"), alone
    )
    h100, a100 = (kind.node.gpu for kind in load_cluster("DGX-H100:1+DGX-A100-80GB:1").groups)
    assert not a100.peak_flop_per_s("fp8")
    share = 1 + a100.peak_flop_per_s("fp16") / h100.peak_flop_per_s("fp8")
    assert result.document.mfu == pytest.approx(result.document.mfu_cluster * share)


def test_peers_plans_are_warned_of_as_our_own_and_what_they_rest_on_is_said(tmp_path: Path) -> None:
    """The job is said with its defaults; plans are written for those who ask, and can be replayed."""
    asked = ("compare", "gpt3-1.3b", "DGX-H100:1+MI300X-platform:1", "--global-batch", 32, "--planners")
    said = tangram(*asked, "uniform,amp", "-o", tmp_path / "plans").out
    assert said.startswith(
        "gpt3-1.3b on DGX-H100:1+MI300X-platform:1: 32 sequences of 2,048 tokens, adamw, 1f1b"
    )
    assert said.count("no collective library spans them") == 1
    assert {path.name for path in (tmp_path / "plans").iterdir()} == {"uniform.json", "amp.json"}
    assert "no collective library" in tangram("simulate", tmp_path / "plans" / "amp.json").out
    assert "Efficiencies of MI300X are assumed, not measured" in said


def test_nearly_full_is_said_before_too_full() -> None:
    """Between 95 and 100 % a warning, beyond it a verdict; the first note is the gravest."""
    fullness = {}
    for size in range(1, 24):
        found = ts.estimate(
            "gpt3-2.7b", "T4x4:1", ts.Job(global_batch=size), ts.Uniform(tp=4, micro_batch=size)
        ).document
        stage = found.stages[0]
        used = stage.peak_memory_bytes / stage.memory_capacity_bytes
        first = found.notes[0]
        fullness[size] = used
        assert ("% full" in first) == (0.95 < used <= 1)
        assert ("does not fit" in first) == (used > 1)


def test_sizes_that_a_config_leaves_out_are_named(tmp_path: Path) -> None:
    """With what was taken in their place, in plans, in their files, and where the model is shown."""
    facts = {"model_type": "mistral", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(
        json.dumps({**facts, "num_attention_heads": 8, "vocab_size": 32000})
    )
    said = (
        "num_key_value_heads 8, sliding_window 4096, tie_word_embeddings false, "
        "max_position_embeddings 131072"
    )
    note = notes("DGX-H100:1", ts.Uniform(tp=2), model=str(tmp_path / "config.json"))
    assert f"its config.json does not say {said}; taken as is usual in mistral" in note
    shown = tangram("models", "show", tmp_path / "config.json").out
    assert said in next(line for line in shown.splitlines() if "taken" in line)
    model = load_model(str(tmp_path / "config.json"))
    again = model_from_dict(model_to_dict(model), "x")
    assert again == model and again.defaults == model.defaults and len(again.defaults) == 4


def test_formats_that_a_gpu_would_emulate_are_refused_for_training_and_said_of_services() -> None:
    with pytest.raises(InfeasibleError, match=r"T4: no bf16 units [(]emulated, slower than fp32"):
        ts.estimate("gpt3-1.3b", "T4x4:1", ts.Job(global_batch=8, dtype="bf16"), ts.Uniform(tp=4))

    def told(gpu: str, precision: str) -> str:
        asked = ("--gpu", gpu, "--concurrency", 8, "--isl", 128, "--osl", 16, "--precision", precision)
        return str(tangram("serve", "estimate", "llama3-8b", *asked, "--tp", 4, "--json").json["notes"])

    assert "A100-SXM4-80GB has no fp8 units: products run in bf16" in told("A100", "fp8")
    assert "T4 has no bf16 units: fp16 is run in its place" in told("T4", "bf16")
    assert "units" not in told("H100", "fp8") + told("A100", "bf16")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"global_batch": 0}, BadInputError, "^`global_batch=0`: give a whole number"),
        ({"global_batch": True}, BadInputError, "global_batch=True"),
        ({"seq": 2.5}, BadInputError, "^`seq=2.5`"),
        ({"trainable": 0.0}, BadInputError, "^`trainable=0`"),
        ({"dtype": "bf17"}, UnknownNameError, "bf16"),
        ({"optimizer": "adamv"}, UnknownNameError, "adamw"),
    ],
)
def test_impossible_jobs_are_refused_when_they_are_made(
    given: dict[str, object], error: type[Exception], words: str
) -> None:
    """In words of Python: no option of a command line."""
    with pytest.raises(error, match=words) as refused:
        ts.Job(**given)  # type: ignore[arg-type]
    assert "--" not in str(refused.value)
