"""Cells in a source's words: what can be read is read, what is odd is said aloud."""

import json

import pytest
from tangram_validate.mixed_runs.hardware import cluster_of
from tangram_validate.published import defaults, workload
from tangram_validate.published.cells import CellError, Cells
from tangram_validate.published.machines import intra_link, through_host
from tangram_validate.published.networks import NodeNetwork, network_of
from tangram_validate.published.reading import Run, read_run, read_table
from tangram_validate.published.table import Problem
from tangram_validate.published.vocabulary import (
    dtype_of,
    recompute_of,
    shard_group_of,
    zero_stage_of,
)

from tangram_sim.hwdb import Hwdb
from tests.places import SHARED
from tests.unit.validation.published_rows import row

HWDB = Hwdb.load()
NEMO = defaults.software("NeMo 25.04", "2025-05")


@pytest.mark.parametrize(
    ("text", "kind", "full_layers"),
    [
        ("none", "none", 0),
        ("off", "none", 0),
        ("on", "full", 0),
        ("gradient checkpointing", "full", 0),
        ("selective (attention)", "selective", 0),
        ("selective-op", "full", 10),  # every second product: as half of the 20 layers of a stage
        ("selective-layer", "full", 10),
        ("full on 21 layers", "full", 0),  # more than a stage has
        ("full on 8 layers", "full", 8),
        ("full on 20 of 80 layers", "full", 5),
        ("block-wise 4", "full", 4),
        ("uniform", "full", 0),
    ],
)
def test_recomputation_is_read_in_the_words_of_its_source(text: str, kind: str, full_layers: int) -> None:
    """Of 80 layers on 4 stages; a share of all layers is a share of each stage's."""
    assert recompute_of(text, 80, 4) == (kind, full_layers)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("zero1", 0),
        ("zero1 global", 0),
        ("fsdp-zero3", 0),
        ("zero1 group 4", 4),
        ("zero1 within node (8)", 8),
        ("fsdp-zero3 (shard group 128)", 128),
        ("hsdp", 8),
        ("HSDP 16", 16),
        ("hybrid_shard", 8),
    ],
)
def test_groups_of_hybrid_sharding_are_read(text: str, ranks: int) -> None:
    """As said; hybrid sharding that says nothing is inside a node of eight."""
    assert shard_group_of(text, 8) == ranks


@pytest.mark.parametrize(
    ("name", "link"),
    [("T4", "PCIe-SHM"), ("RTX-4090", "PCIe-SHM"), ("A10G", "PCIe-SHM"), ("L40S", "PCIe4x16")],
)
def test_cards_without_peer_access_copy_through_the_host(name: str, link: str) -> None:
    """The bus of a card, as NCCL uses it."""
    gpu = HWDB.gpu(name)
    bus, _, _ = intra_link("PCIe", gpu, HWDB)
    assert through_host(bus, gpu, HWDB).name == link


@pytest.mark.parametrize("text", ["sometimes", "full on 90 of 80 layers"])
def test_recomputation_that_means_nothing_names_what_is_known(text: str) -> None:
    """One reason, with the words as they were written."""
    with pytest.raises(CellError, match=r"sometimes.*selective-op|90 of 80"):
        recompute_of(text, 80, 4)


@pytest.mark.parametrize(
    ("text", "gpu", "recipe"),
    [
        ("BF16", "H100", "bf16"),
        ("bf16-mixed", "H100", "bf16"),
        ("amp", "H100", "bf16"),
        ("amp", "V100", "fp16"),
        ("fp4/fp8", "GB300", "nvfp4"),
        ("fp4/fp8", "H100", "fp8"),
        ("MXFP8", "B200", "mxfp8"),
        ("fp8 (e4m3)", "H100", "fp8"),
        ("float16", "A100", "fp16"),
    ],
)
def test_precision_is_read_in_the_words_of_its_source(text: str, gpu: str, recipe: str) -> None:
    """Mixed precision is what the time and the GPU make of it."""
    assert dtype_of(text, NEMO, HWDB.gpu(gpu))[0] == recipe


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("hsdp", 3),
        ("FSDP full_shard", 3),
        ("shard_grad_op", 2),
        ("none (DDP)", 0),
        ("ds_zero2.json", 2),
        ("z3", 3),
        ("distributed optimizer", 1),
        ("zero1 within node (8)", 1),
        ("yes", None),
    ],
)
def test_sharding_is_read_in_the_words_of_its_source(text: str, stage: int | None) -> None:
    """Also from the name of a script or a configuration."""
    assert zero_stage_of(text) == stage


def network(text: str, gpu: str = "H100", gpus_per_node: int = 8) -> NodeNetwork:
    """What a cell says of nodes of that GPU."""
    kind = HWDB.gpu(gpu)
    return network_of(text, kind, intra_link("", kind, HWDB)[0], gpus_per_node, 10e-6, HWDB)


@pytest.mark.parametrize(
    ("text", "gbps"),
    [
        ("400 Gb/s per GPU", 3200),
        ("8x 400 Gb/s InfiniBand", 3200),
        ("3200 Gb/s per node", 3200),
        ("50 GB/s per GPU", 3200),
        ("Storage: 2x 400Gb/s, Compute: 4x ConnectX-7 400Gb/s", 1600),
    ],
)
def test_rates_are_those_of_a_gpu_or_of_a_node_as_said(text: str, gbps: float) -> None:
    """On nodes of eight H100; nothing is assumed or doubted."""
    found = network(text)
    assert (found.gbps, found.sigma, found.assumed) == (gbps, 0.0, ())


def test_a_lone_rate_far_below_the_class_of_the_node_is_doubted_aloud() -> None:
    """It is taken as written, with an error as large as the doubt; what is clearly said is not doubted."""
    found = network("400Gb/s NDR InfiniBand")
    assert found.gbps == 400
    assert found.sigma > 1.0
    assert "doubtful: such nodes have 3200" in found.assumed[0]


def test_a_fabric_that_is_two_at_once_is_doubted_aloud() -> None:
    """InfiniBand is no Ethernet; two fabrics in a list are two fabrics."""
    assert any("different fabrics" in said for said in network("8x 100GbE InfiniBand", "A100").assumed)
    assert not network("8x 200 Gb/s InfiniBand, 1x 100 Gb/s Ethernet", "A100").assumed


def test_a_blank_network_is_what_such_nodes_have_with_their_spread() -> None:
    """A100 nodes go from 100 Gb/s to 1,600; a desktop card's node has a port, however many cards."""
    assert network("", "A100").gbps == 1600
    assert network("", "A100").sigma > network("", "H100").sigma > 0.2
    assert network("", "RTX-4090", 1).gbps == network("", "RTX-4090", 8).gbps == 100


def test_cloud_fabrics_reach_the_share_that_was_measured_of_them() -> None:
    """Half over GPUDirect-TCPX, most over EFA; both known less well than InfiniBand."""
    tcpx, efa, plain = (network(f"3200 Gb/s {name}") for name in ("GPUDirect-TCPX", "EFA", "InfiniBand"))
    assert tcpx.gbps == pytest.approx(plain.gbps * 0.5 / 0.95)
    assert efa.gbps == plain.gbps
    assert min(tcpx.sigma, efa.sigma) > plain.sigma
    assert min(tcpx.latency_s, efa.latency_s) > plain.latency_s


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("50 Gb/s Ethernet (AWS g4dn.12xlarge)", 50 / (1 + 6.25 / 7)),  # a byte: on the wire, then copied
        ("10GbE", 10 / (1 + 1.25 / 7)),
        ("100 Gb/s ENA", 100 / (1 + 12.5 / 7)),
        ("100 Gb/s RoCE", 100),
        ("100GbE InfiniBand", 100),
        ("100 Gb/s Ethernet, iWARP", 100),
        ("100GbE with GPUDirect", 100),
        ("100 Gb/s Ethernet (GDR)", 100),
        ("100GbE EW, 25GbE NS", 100 / (1 + 12.5 / 7)),  # which way it points says nothing of how it is used
        ("1600 Gb/s Ethernet", 1600),  # no node drives that through the kernel
    ],
)
def test_plain_tcp_is_copied_through_the_kernel(text: str, reached: float) -> None:
    """What NCCL moves over sockets; remote memory access by any name is not slowed."""
    found = network(text, "T4", 4)
    assert found.gbps == pytest.approx(reached)
    assert any("plain TCP" in said for said in found.assumed) == (reached not in (100, 1600))


def test_a_feed_forward_is_told_by_its_activation() -> None:
    """Sources name what lies between the two products; unknown names say which are known."""
    widths = {}
    for kind in ("plain", "gelu", "gated", "SwiGLU"):
        read = read_run(row(ffn_kind=kind), HWDB)
        assert isinstance(read, Run)
        widths[kind] = read.model.parameters
    assert widths["plain"] == widths["gelu"] < widths["gated"] == widths["SwiGLU"]
    refused = read_run(row(ffn_kind="maxout"), HWDB)
    assert isinstance(refused, Problem) and "swiglu" in refused.reason


def test_tensor_parallelism_beside_fsdp_shards_norms() -> None:
    """In torchtitan and NeMo AutoModel, which is FSDP for all its name."""
    for name in ("torchtitan", "NeMo AutoModel"):
        assert defaults.software(name, "2025").family == "fsdp"
        assert defaults.sequence_parallel(defaults.software(name, "2025"), 8)[0]
    assert defaults.software("NeMo 25.04", "").family == "nemo"


def test_expert_groups_lie_over_tp_where_they_fit_no_other_way() -> None:
    """ep 8 on dp 2 and tp 4: Megatron's etp is 1, and four parts of ep lie across tp."""
    cells = Cells({"experts": "8"})
    assert workload.expert_degree(cells, 8, 4, 2) == 2
    assert any("fits only over tp x dp" in said for said in cells.assumed)
    assert workload.expert_degree(Cells({"experts": "8"}), 8, 4, 16) == 8
    assert workload.expert_degree(Cells({"experts": "8", "etp": "1"}), 8, 4, 16) == 2
    assert workload.expert_degree(Cells({}), 8, 4, 2) == 8  # of a dense model it stays what is impossible


@pytest.mark.parametrize(
    ("entry", "nodes", "gpus_per_node"),
    [
        ({"gpu": "A100", "gpus": 16}, 2, 8),
        ({"gpu": "A100", "gpus": 4}, 1, 4),
        ({"gpu": "GB200", "gpus": 16}, 4, 4),
        ({"gpu": "A100", "gpus": 12, "nodes": 3}, 3, 4),
        ({"gpu": "A100", "gpus": 12, "gpus_per_node": 4}, 3, 4),
        ({"gpu": "A100", "gpus": "8"}, 1, 8),
        ({"gpu": "A100", "nodes": 2, "gpus_per_node": 8}, 2, 8),
    ],
)
def test_entries_of_a_mixed_cluster_may_give_gpus_in_all(
    entry: dict[str, object], nodes: int, gpus_per_node: int
) -> None:
    """Nodes follow from what is given and from what nodes of that GPU are like."""
    (group,) = cluster_of(Cells({"cluster": json.dumps([entry])}), HWDB).groups
    assert (group.count, group.node.gpus) == (nodes, gpus_per_node)


def test_gpus_that_do_not_fill_the_stated_nodes_are_a_reason() -> None:
    """12 GPUs are not 5 equal nodes."""
    with pytest.raises(CellError, match="are not its 12 gpus"):
        cluster_of(Cells({"cluster": json.dumps([{"gpu": "A100", "gpus": 12, "nodes": 5}])}), HWDB)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared folder of measured data is absent")
def test_at_most_three_rows_in_a_hundred_of_complete_ones_are_refused() -> None:
    """Of the rows in which a source states all or nearly all (tiers A and B)."""
    rows = [row for row in read_table(SHARED / "data" / "training_runs.csv") if row["tier"] in ("A", "B")]
    refused = [found for row in rows if isinstance(found := read_run(row, HWDB), Problem)]
    assert len(refused) <= 0.03 * len(rows)


@pytest.mark.parametrize(
    ("cells", "blocking"),
    [
        ({"framework": "Megatron-LM"}, False),
        ({"extra": "note=3; CUDA_LAUNCH_BLOCKING=1"}, True),
        ({"framework": "DeepSpeed/Megatron (AMP fork)"}, True),  # its configuration times every pass
        ({"framework": "DeepSpeed/Megatron (AMP fork)", "extra": "CUDA_LAUNCH_BLOCKING=0"}, False),
        ({"source": "github:bigscience-workshop/bigscience train/tr11-176B-ml/chronicles.md"}, True),
        ({"source": "github:bigscience-workshop/bigscience train/tr1-13B-base/chronicles.md"}, False),
    ],
)
def test_launches_block_where_a_remark_or_the_published_script_says_so(
    cells: dict[str, str], blocking: bool
) -> None:
    run_by = defaults.software(cells.get("framework", ""), "2022")
    assert workload.launch_blocking(Cells(cells), run_by) is blocking


@pytest.mark.parametrize(
    ("cells", "gpu", "captured"),
    [
        ({"source": "github:mlcommons/training_results_v4.1 NVIDIA/results/eos/gpt3"}, "H100-80GB", True),
        ({"source": "github:mlcommons/training_results_v5.0 AMD/results/8xMI300X"}, "MI300X", False),
        ({"source": "github:mlcommons/training_results_v4.1", "extra": "cuda_graphs=0"}, "H100-80GB", False),
        ({"extra": "x=1; CUDA graphs: yes"}, "A100-80GB", True),
        ({"extra": "x=1;cuda_graph=True"}, "A100-80GB", True),
        ({}, "H100-80GB", False),
    ],
)
def test_blocks_are_captured_where_a_remark_or_nvidias_code_for_mlperf_does(
    cells: dict[str, str], gpu: str, captured: bool
) -> None:
    assert workload.cuda_graphs(Cells(cells), HWDB.gpu(gpu)) is captured


@pytest.mark.parametrize(
    ("hidden", "tp", "expected"),
    [
        (1024, 4, 16),
        (4096, 8, 32),
        (13824, 1, 108),
        (13824, 4, 108),
        (13824, 8, 96),
        (5120, 16, 32),
        (97, 8, 1),
    ],
)
def test_unstated_heads_can_be_shared_out(hidden: int, tp: int, expected: int) -> None:
    """Usual widths where these divide; else the nearest width that whole heads per rank and kernels allow."""
    assert defaults.heads(hidden, tp)[0] == expected
