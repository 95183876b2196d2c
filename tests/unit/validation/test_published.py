"""Published runs: reading, defaults, prediction, scores, and the command around them."""

import pytest
from tangram_validate.published import defaults
from tangram_validate.published.networks import network_gbps
from tangram_validate.published.predict import predict_rows
from tangram_validate.published.reading import Run, read_run, stage_layers
from tangram_validate.published.table import Problem

from tangram_sim.models import Experts
from tests.unit.validation.published_rows import HWDB, ROW, predicted, row


def run(**cells: str) -> Run:
    found = read_run(row(**cells), HWDB)
    assert isinstance(found, Run), found
    return found


def reason(**cells: str) -> str:
    (found,) = predict_rows([row(**cells)], HWDB)
    assert isinstance(found, Problem), found
    return found.reason


def test_a_row_that_states_everything_assumes_the_optimizer_only():
    found = run()
    assert [text.partition("=")[0] for text in found.assumed] == ["optimizer"]
    assert found.layout.tp == 8 and found.layout.micro_batch == 4 and found.layout.sequence_parallel
    assert found.model.parameters == pytest.approx(22.1e9, rel=0.01)  # Korthikanti et al., table 3
    assert found.cluster.groups[0].node.gpu.name == "A100-SXM4-80GB"
    assert found.recompute == "selective" and found.measured.step_s == 1.1


def test_the_shape_decides_the_model_and_the_name_does_not():
    """`model`, `id` and `source` may say anything: the prediction is the same to the last bit."""
    renamed = predicted(id="z", source="elsewhere", model="deepseek-v3-671b")
    kept = predicted()
    assert renamed.step_s == kept.step_s and renamed.allocated_bytes == kept.allocated_bytes
    assert predicted(layers="24").step_s < kept.step_s


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"dp": "2"}, "tp 8 x pp 1 x cp 1 x dp 2 = 16, the row has 8 GPUs"),
        ({"gpu": "H900"}, "unknown GPU 'H900'"),
        ({"gpu": ""}, "gpu not stated"),
        ({"hidden": "", "layers": ""}, "layers, hidden not stated"),
        ({"gbs": "2", "mbs": "4", "tp": "1", "dp": "8"}, "gbs 2 is no multiple of mbs 4 x dp 8"),
        ({"layers": "many"}, "layers is 'many'"),
        ({"layers": "nan"}, "finite number"),
        ({"gpus": "1e30", "dp": "1"}, "whole number up to"),
        ({"tier": "X", "flags": "E_MISPARSED"}, "tier X"),
        ({"dtype": "fp12"}, "dtype is 'fp12'"),
        ({"recompute": "some"}, "recompute is 'some'"),
        ({"sharding": "magic"}, "sharding is 'magic'"),
        ({"dtype": "fp8"}, "fp8"),  # an A100 has no such units
        ({"ep": "2"}, "ep"),  # a dense model has no experts
    ],
)
def test_impossible_rows_give_their_reason(cells: dict[str, str], expected: str):
    assert expected in reason(**cells)


def test_missing_columns_are_missing_cells():
    kept = {"gpu", "gpus", "layers", "hidden", "seq_len", "gbs", "tp", "pp", "dp"}
    found = read_run({column: cell for column, cell in ROW.items() if column in kept}, HWDB, 7)
    assert isinstance(found, Run) and found.id == "row 7" and found.measured.step_s == 0
    assert {"heads", "dtype", "vocab", "recompute"} <= {text.partition("=")[0] for text in found.assumed}
    kept.remove("seq_len")
    usual = read_run({column: cell for column, cell in ROW.items() if column in kept}, HWDB)
    assert isinstance(usual, Run) and usual.job.seq == 8192 and usual.doubt > 0
    kept.remove("gpu")
    lacking = read_run({column: cell for column, cell in ROW.items() if column in kept}, HWDB)
    assert isinstance(lacking, Problem) and "gpu" in lacking.reason


def test_measured_time_falls_back_from_the_stated_to_the_derived():
    assert run(iter_time_s="", iter_time_s_derived="2.5").measured.step_s == 2.5
    assert run(iter_time_s="", tokens_per_s_per_gpu="1024").measured.step_s == pytest.approx(1.0)
    memory = run(peak_mem_gb="2", mem_kind="GiB max allocated").measured
    assert memory.memory == "allocated" and memory.peak_bytes == 2 * 2**30
    # Drivers say GB and mean GiB; a figure that does not say what it counts is the driver's.
    driver = run(peak_mem_gb="2", mem_kind="GB on first/last stage").measured
    assert driver.memory == "device" and driver.peak_bytes == 2 * 2**30
    assert run(peak_mem_gb="2", mem_kind="GiB max_mem (json)").measured.memory == "reserved"
    assert run(peak_mem_gb="2", mem_kind="max reserved, 1e9 bytes").measured.peak_bytes == 2e9


def test_stages_of_a_remark_are_taken_where_they_add_up():
    """Numbers that add up to the blocks, or to two more (embedding and head as layers); nothing else."""
    assert stage_layers("x=1;layers_per_stage=[7, 9, 9, 9]", 32, 4) == (6, 9, 9, 8)
    assert stage_layers("layers_per_stage=[8, 8]", 16, 2) == (8, 8)
    for text in ("", "layers_per_stage=[7, 9, 9]", "layers_per_stage=[30, 1, 1, 3]", "layers_per_stage=[a]"):
        assert stage_layers(text, 32, 4) == ()


@pytest.mark.parametrize(
    ("text", "gbps"),
    [
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s", 3200),
        (
            "Storage+Management: 1x NVIDIA BlueField 2 DPU 100Gb/s, Compute: 8x NVIDIA ConnectX-7 400Gb/s",
            3200,
        ),
        ("Storage&Compute: 4x ConnectX-7 IB NDR 400Gb/s, Management: 25Gb/s Ethernet NIC", 1600),
        ("4x100 Gb/s RoCE", 400),
        ("8x200 Gb/s HDR IB (Selene)", 1600),
        ("1600 Gb/s RoCE", 1600),
        ("BF3 200Gbps for NS and 2xBF3 400Gbps for EW", 800),
        ("1x Ethernet 100Gb/Sec, 8x NVIDIA Quantum-2 CX7 InfiniBand (400Gb/s)", 3200),
        ("10G Ethernet", 10),
        ("2.5 GB/s measured", 20),
        ("Omni-Path (Jean Zay)", 400),
        ("Management: 1x Ethernet 10GB/Sec", 0),
        ("ROCE2; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s", 0),
        ("Infiniband, Ethernet", 0),
        ("", 0),
    ],
)
def test_the_network_is_what_carries_gradients(text: str, gbps: float):
    """Storage and management ports never count; a text without a rate leaves the default to the GPU."""
    assert network_gbps(text, 8) == gbps


def test_a_blank_network_is_that_of_the_gpus_reference_node():
    many = run(nodes="2", gpus="16", dp="2", gbs="8", mbs="4")
    assert many.cluster.groups[0].node.nic_bytes_per_s == pytest.approx(8 * 25e9)  # eight HDR ports
    assert any(text.startswith("inter_link") for text in many.assumed)
    tray = run(gpu="GB200", gpus_per_node="4", nodes="2", tp="4", dp="2", gbs="8", dtype="bf16")
    assert tray.cluster.groups[0].node.scale_up_nodes == 18  # an NVL72 rack


@pytest.mark.parametrize(
    ("framework", "date", "family", "year"),
    [
        ("Megatron-DeepSpeed", "", "megatron-deepspeed", 0),
        ("DeepSpeed/Megatron (AMP fork)", "2022", "megatron-deepspeed", 2022),
        ("NeMo 25.02", "", "nemo", 2025 + 1 / 12),
        ("NVIDIA NeMo Framework Release 24.04", "2025-05", "nemo", 2025 + 4 / 12),
        ("Composer/PyTorch FSDP", "2023-2024", "fsdp", 2023),
        ("Megatron-Core 0.8", "v25.04", "megatron", 2025 + 3 / 12),
        ("somebody's own", "", "generic", 0),
    ],
)
def test_software_is_told_by_words_and_dates(framework: str, date: str, family: str, year: float):
    found = defaults.software(framework, date)
    assert found.family == family and found.year == pytest.approx(year)


def test_defaults_follow_framework_date_and_gpu():
    assert run(gpu="H100-80GB", framework="NeMo 24.09", dtype="", date="2024-10").job.dtype == "fp8"
    assert run(framework="NeMo 24.09", dtype="", date="2024-10").job.dtype == "bf16"  # an A100 has no fp8
    assert run(gpu="T4-16GB", dtype="").job.dtype == "fp16"  # nor a T4 bf16
    assert not run(date="2022-05").job.flash_attention
    assert run(date="2024-05").job.flash_attention
    assert run(sharding="", framework="PyTorch FSDP").layout.zero_stage == 3
    assert run(sharding="", framework="NeMo 24.09").layout.zero_stage == 1
    assert run(framework="PyTorch (apex DDP, LAMB)").job.optimizer == "lamb"
    assert run(vocab="").model.vocab == 51200  # 50257, padded for tp 8
    assert not run(seq_parallel="", framework="Megatron-DeepSpeed").layout.sequence_parallel
    assert run(seq_parallel="").layout.sequence_parallel


def test_unstated_chunks_are_interleaved_where_nvidia_would():
    cells = {"pp": "4", "nodes": "4", "gpus": "32", "gbs": "64", "vpp": "", "schedule": ""}
    found = run(**cells, framework="NeMo 24.09")
    assert found.layout.vpp == 6 and found.job.schedule == "interleaved"
    assert run(**cells, framework="Megatron-DeepSpeed").layout.vpp == 1
    assert run(**{**cells, "gbs": "24"}, framework="NeMo 24.09").layout.vpp == 1  # 6 microbatches, 4 stages


def test_experts_with_narrow_heads_mean_latent_attention():
    found = run(
        gpu="B200", dtype="bf16", date="2026-04", layers="4", hidden="7168", heads="128", kv_heads="128",
        ffn="18432", ffn_kind="gated", experts="256", topk="8", moe_ffn="2048", ep="4", tp="1", dp="8",
        gbs="32",
    )  # fmt: skip
    kinds = [type(block.feed_forward).__name__ for block in found.model.blocks]
    assert kinds == ["FeedForward", "Experts", "Experts", "Experts"]
    assert found.model.blocks[0].attention.kv_rank == 512
    part = found.model.blocks[1].feed_forward
    assert isinstance(part, Experts) and part.shared_width == 2048


def test_korthikanti_22b_is_within_a_sixth():
    """One run that states everything, physics uncalibrated: a unit slip would miss by far more."""
    assert abs(predicted().error or 1) < 1 / 6


def test_adapters_compute_no_weight_gradients_and_keep_no_states():
    """LoRA needs about two thirds of the arithmetic and hardly more memory than the weights."""
    whole = predicted(recompute="none", mbs="1", gbs="1")
    adapters = predicted(recompute="none", mbs="1", gbs="1", task="lora")
    assert 0.6 < adapters.parts.gemm_s / whole.parts.gemm_s < 0.72
    assert adapters.parts.optimizer_s < 0.05 * whole.parts.optimizer_s
    assert adapters.allocated_bytes < 0.5 * whole.allocated_bytes


def test_unstated_recomputation_is_a_mixture_of_what_may_fit():
    """None where memory surely suffices; near capacity the likelier the less; what surely must, least."""
    assert [weight for _, weight in predicted(recompute="", layers="8").variants] == [1.0]
    near = predicted(recompute="")
    assert near.recompute == "selective" and len(near.variants) > 1 and near.spread > 0
    assert sum(weight for _, weight in near.variants) == pytest.approx(1.0)
    stated = {run.recompute: weight for run, weight in near.variants}
    least, most = (predicted(recompute=kind).step_s for kind in ("none", "full"))
    assert least < near.step_s < most and "none" in stated
    some = predicted(recompute="", mbs="16", gbs="16")
    assert some.recompute.startswith("selective, full x") and "none" not in {
        run.recompute for run, _ in some.variants
    }
    again = [predicted(recompute=run.recompute).step_s for run, _ in near.variants if not run.full_layers]
    assert min(again) <= near.step_s <= max(again) or len(again) < len(near.variants)


def test_silent_runs_of_a_sweep_recompute_alike():
    """One row a little over capacity among rows that fit: what it may have done, on average all did."""
    rows = [
        {**ROW, "id": f"r{n}", "recompute": "", "layers": layers}
        for n, layers in enumerate(("8", "12", "48"))
    ]
    lone, beside = predict_rows(rows[2:], HWDB)[0], predict_rows(rows, HWDB)[2]
    shares = [
        sum(weight for run, weight in item.variants if run.recompute == "none") for item in (lone, beside)
    ]
    assert 0 < shares[0] < shares[1] and beside.step_s < lone.step_s
    alike = [
        [(run.recompute, weight) for run, weight in predict_row.variants]
        for predict_row in predict_rows(rows, HWDB)
    ]
    assert alike[0] == alike[1] == alike[2] and sum(weight for _, weight in alike[0]) == pytest.approx(1.0)
    assert {run.recompute for run, _ in lone.variants} >= {kind for kind, _ in alike[0]}


def test_unstated_zero_rises_before_anything_is_recomputed():
    silent = {"recompute": "", "sharding": "", "framework": "DeepSpeed", "tp": "1", "dp": "8", "mbs": "1"}
    big = predicted(**silent, gbs="8", layers="20")
    assert all(run.layout.zero_stage == 3 for run, _ in big.variants)
    megatron = {**silent, "framework": "Megatron-DeepSpeed"}
    small, big = (predicted(**megatron, gbs="8", layers=layers) for layers in ("2", "20"))
    assert small.variants[0][0].layout.zero_stage < big.variants[0][0].layout.zero_stage


def test_fine_tunes_under_fsdp_mostly_recompute_fully():
    silent = {
        "recompute": "",
        "sharding": "",
        "framework": "torchtune FSDP",
        "tp": "1",
        "dp": "8",
        "mbs": "1",
    }
    tuned = predicted(**silent, gbs="8", layers="8", task="lora")
    assert tuned.recompute == "full" and 0.6 < tuned.variants[0][1] < 0.8
    assert predicted(**silent, gbs="8", layers="8").recompute == "none"


def test_selective_under_fsdp_is_blocks_as_memory_asks():
    """fms-fsdp checkpoints a share of whole blocks; Megatron's word is about the core of attention."""
    assert run(framework="PyTorch FSDP", date="2024-05", tp="1", dp="8", gbs="32").recompute == ""
    assert run(framework="torchtitan", date="2024-05", recompute="selective-op").recompute == "full"
    assert run(framework="Megatron-LM").recompute == "selective"


def test_losses_under_fsdp_are_compiled_since_2025():
    assert not run(framework="torchtitan", date="2024-12").job.fused_loss
    assert run(framework="torchtitan", date="2025-06").job.fused_loss
    assert run(framework="NeMo", date="2024-05").job.fused_loss


def test_models_of_hugging_face_are_plain_operations_and_cost_their_passes():
    cells = {"ffn_kind": "gated", "date": "2024-05", "tp": "1", "dp": "8", "gbs": "32", "recompute": "none"}
    plain, fused = (
        predicted(**cells, framework=name, layers="4", sharding="fsdp-zero3")
        for name in ("axolotl", "axolotl with Liger kernels")
    )
    assert plain.run.job.plain_operations and not fused.run.job.plain_operations
    assert plain.step_s > fused.step_s and plain.allocated_bytes > fused.allocated_bytes
    assert plain.parts.memory_s > 1.5 * fused.parts.memory_s and plain.parts.gemm_s == fused.parts.gemm_s


def test_dated_runs_of_megatron_deepspeed_have_flash_attention():
    name = "Megatron-DeepSpeed"
    assert [run(framework=name, date=when).job.flash_attention for when in ("2024-01", "2022-05", "")] == [
        True,
        False,
        False,
    ]


def test_a_blank_sequence_is_no_longer_than_the_named_model_s():
    cells = {"framework": "Megatron-LM", "date": "2026-01", "seq_len": ""}
    assert run(**cells, model="llama2-7b").job.seq == 4096
    assert run(**cells, model="anything").job.seq == 8192


def test_a_measured_peak_is_of_what_ran_and_of_what_an_allocator_keeps():
    """Beyond what a run needs an allocator caches, never more than the GPU has."""
    cells = {"peak_mem_gb": "60", "mbs": "1", "gbs": "1"}
    found = predicted(**cells, mem_kind="nvidia-smi")
    assert found.memory_bytes == found.device_bytes + found.cached_bytes > found.device_bytes
    tensors = predicted(**cells, mem_kind="max_memory_allocated")
    assert tensors.memory_bytes == tensors.allocated_bytes
    full = predicted(peak_mem_gb="80", mem_kind="reserved", mbs="16", gbs="16", recompute="none")
    outside = full.device_bytes - full.reserved_bytes
    assert full.memory_bytes == full.capacity_bytes - outside < full.reserved_bytes


def test_mixtures_on_fsdp2_spread_their_experts_where_nobody_says_how():
    """As recipes do: gpt-oss 20B over 8 GPUs has ep 8; what is stated wins, and other software stays at 1."""
    cells = {"framework": "torchtitan", "date": "2025-06", "experts": "32", "topk": "4", "moe_ffn": "2880"}
    cells |= {"gpus": "8", "tp": "1", "dp": "8", "gbs": "32", "sharding": "fsdp-zero3", "seq_parallel": ""}
    degrees = [
        predicted(**(cells | own)).run.layout.ep
        for own in ({"ep": ""}, {"ep": "2"}, {"ep": "", "framework": "NeMo"}, {"ep": "", "experts": "12"})
    ]
    assert degrees == [8, 2, 1, 4]


def test_fsdp2_keeps_weights_gathered_under_a_pipeline():
    cells = {"framework": "torchtitan", "date": "2025-06", "sharding": "fsdp-zero3", "gbs": "32"}
    alone = predicted(**cells, tp="1", dp="8", seq_parallel="")
    staged = predicted(**cells, tp="1", pp="2", dp="4", seq_parallel="")
    assert alone.run.layout.zero_stage == 3 and staged.run.layout.zero_stage == 1


def test_old_software_reduces_gradients_behind_its_last_pass():
    """Nothing is hidden: the step grows by the whole reduction that a run on one replica does without."""
    many = {"gpus": "16", "nodes": "2", "dp": "2", "gbs": "8", "seq_parallel": "no", "flags": ""}
    alone = {"gpus": "8", "nodes": "1", "dp": "1", "gbs": "4", "seq_parallel": "no", "flags": ""}
    grown = {}
    for run in (("Megatron-DeepSpeed", "2022-05"), ("Megatron-LM", "2022-05"), ("Megatron-LM", "2025-05")):
        cells = {"framework": run[0], "date": run[1], "sharding": "none"}
        two, item = predicted(**cells, **many), predicted(**cells, **alone)
        grown[run] = (two.step_s - item.step_s) / two.parts.data_parallel_s
    *behind, beside = grown.values()
    assert behind == pytest.approx([1.0, 1.0], abs=0.1)
    assert beside < 0.9


def test_some_layers_recompute_fully_as_stated():
    stated = predicted(recompute="full on 12 layers")
    assert predicted(recompute="none").step_s < stated.step_s < predicted(recompute="full").step_s
