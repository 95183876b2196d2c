"""Cells that a row leaves blank, contradicts or writes in its own way: filled with what is usual, aloud."""

import pytest
from tangram_validate.published import blanks, defaults
from tangram_validate.published.cells import Cells
from tangram_validate.published.reading import Run, read_run
from tangram_validate.published.table import Problem
from tangram_validate.published.vocabulary import optimizer_of, recompute_of, zero_stage_of

from tangram_sim.errors import UnknownNameError
from tangram_sim.hwdb import Hwdb
from tests.unit.validation.published_rows import row

HWDB = Hwdb.load()
NEMO = defaults.software("NeMo 25.04", "2025-05")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100-96GB-HBM2e-500W", "H100-SXM5-96GB"),
        ("NVIDIA H100 94GB HBM2e", "H100-SXM5-94GB"),
        ("AMD Instinct MI300X 192GB OAM", "MI300X"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
    ],
)
def test_words_around_a_gpu_s_name_do_not_hide_it(written: str, name: str) -> None:
    """Vendors, kinds of memory and watts; the unknown stays unknown."""
    assert blanks.gpu_of(Cells({"gpu": written}), HWDB).name == name
    with pytest.raises(UnknownNameError):
        blanks.gpu_of(Cells({"gpu": "H900-80GB-HBM9"}), HWDB)


def test_a_model_s_name_stands_for_the_shape_a_row_leaves_out() -> None:
    """And only then: a stated shape decides. "-4L" cuts the model to four layers."""
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")
    found = read_run(row(**blank, model="llama3-8b", tp="1", dp="8", mbs="1", gbs="8"), HWDB)
    assert isinstance(found, Run) and found.model.hidden == 4096 and found.model.layers == 32
    cut = read_run(row(**blank, model="llama3-8b-4L", tp="1", dp="8", mbs="1", gbs="8"), HWDB)
    assert isinstance(cut, Run) and cut.model.layers == 4
    stated = read_run(row(model="llama3-8b"), HWDB)
    assert isinstance(stated, Run) and stated.model.hidden == 6144


def test_blank_degrees_are_the_least_that_fit_and_widen_the_interval() -> None:
    """Adapters on 70B in 16 bits ask for two GPUs of 80 GB or more, in fp8 for one of 180."""
    shape = {"layers": "80", "hidden": "8192", "heads": "64", "kv_heads": "8", "ffn": "28672"}
    cells = {**shape, "ffn_kind": "gated", "vocab": "32000", "task": "lora", "gbs": "8", "mbs": "1"}
    cells |= {"tp": "", "pp": "", "dp": "", "cp": "", "framework": "NeMo 25.04", "seq_parallel": ""}
    wide = read_run(row(**cells, gpu="B200", dtype="fp8"), HWDB)
    assert isinstance(wide, Run) and (wide.layout.tp, wide.layout.dp) == (1, 8)
    narrow = read_run(row(**cells, gpu="H100-80GB", dtype="bf16"), HWDB)
    assert isinstance(narrow, Run) and narrow.layout.tp == 4 and narrow.layout.dp == 2
    assert wide.doubt == narrow.doubt == blanks.DEGREES_DOUBT


def test_degrees_that_count_context_or_experts_otherwise_are_read_and_nonsense_is_not() -> None:
    inside = read_run(row(tp="2", cp="2", dp="4"), HWDB)
    assert isinstance(inside, Run) and (inside.layout.dp, inside.layout.cp) == (2, 2)
    wrong = read_run(row(tp="8", dp="3"), HWDB)
    assert isinstance(wrong, Problem) and "the row has 8 GPUs" in wrong.reason


def test_batches_that_do_not_divide_are_read_as_the_nearest_that_do() -> None:
    fewer = read_run(row(gbs="6"), HWDB)
    assert isinstance(fewer, Run) and (fewer.job.global_batch, fewer.layout.micro_batch) == (6, 3)
    rounded = read_run(row(tp="1", dp="8", mbs="1", gbs="510"), HWDB)
    assert isinstance(rounded, Run) and rounded.job.global_batch == 512


@pytest.mark.parametrize(
    ("text", "value"), [("1,024", 1024), ("8k", 8192), ("128K", 131072), ("~512", 512), ("2048.0", 2048)]
)
def test_counts_are_read_as_people_write_them(text: str, value: int) -> None:
    assert Cells({"seq_len": text}).count("seq_len") == value


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("distributed_fused_adam", "adamw"),
        ("Paged AdamW 8bit", "adamw-8bit"),
        ("muon", "lion"),
        ("SGD with momentum", "momentum"),
        ("apollo", "adafactor"),
    ],
)
def test_optimizers_are_read_as_the_one_with_their_state(text: str, name: str) -> None:
    assert optimizer_of(text) == name


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("3", 3),
        ("optim_grads_params", 3),
        ("optim_grads", 2),
        ("dist-opt", 1),
        ("HYBRID_SHARD", 3),
        ("mics", 3),
    ],
)
def test_sharding_strategies_are_read_in_more_words(text: str, stage: int) -> None:
    assert zero_stage_of(text) == stage


def test_recomputing_norms_and_activations_is_not_attention_s() -> None:
    """Of 20 layers of a stage as three that recompute fully: 15 % of what whole layers cost."""
    for text in ("selective (layernorm, moe_act)", "mla_up_proj", "modules: act"):
        assert recompute_of(text, 80, 4) == ("full", 3)
    assert recompute_of("selective (core_attn)", 80, 4).kind == "selective"
    assert recompute_of("selective (--recompute-activations)", 80, 4).kind == "selective"


def test_submissions_to_mlperf_take_the_fastest_type() -> None:
    """fp8 where the GPU has it; NVIDIA's containers NVFP4 on Blackwell since round 5.1."""
    source = "github:mlcommons/training_results_v{}/x"

    def found(gpu: str, round_: str) -> str:
        return defaults.dtype_of_mlperf(NEMO, HWDB.gpu(gpu), source.format(round_))[0]

    assert (found("B200", "5.1"), found("B200", "5.0"), found("MI325X", "5.1")) == ("nvfp4", "fp8", "fp8")
    assert found("A100-80GB", "3.1") == "bf16"
