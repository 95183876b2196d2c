"""`tangram cluster`: saved output of nvidia-smi, Slurm and Kubernetes becomes a cluster file that is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.hwdb.inventories import Inventory, from_nvidia_smi, gpu_named
from tangram_sim.hwdb.kubernetes_inventory import from_k8s
from tangram_sim.hwdb.slurm_inventory import from_slurm, host_names
from tests.commands import tangram

HWDB = Hwdb.load()
H100 = {"gpu": "H100-SXM5-80GB", "gpus": 8}


def smi(*products: str) -> str:
    gpus = "".join(f"<gpu><product_name>{name}</product_name></gpu>" for name in products)
    doctype = '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">'
    return f'<?xml version="1.0" ?>{doctype}<nvidia_smi_log>{gpus}</nvidia_smi_log>'


def entries(found: Inventory) -> list[dict[str, Any]]:
    return [group.entry for group in found.groups]


def k8s(*nodes: tuple[str, int]) -> str:
    items = [
        {
            "metadata": {
                "name": f"n{i}",
                "labels": {"nvidia.com/gpu.product": name, "nvidia.com/gpu.count": str(n)},
            }
        }
        for i, (name, n) in enumerate(nodes)
    ]
    return json.dumps({"items": [*items, {"metadata": {"name": "without-gpus"}}]})


@pytest.mark.parametrize(
    ("printed", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("Tesla T4", "T4"),
        ("Tesla-V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA L40S", "L40S"),
        ("h100", "H100-SXM5-80GB"),
    ],
)
def test_names_as_drivers_and_schedulers_print_them(printed: str, gpu: str) -> None:
    assert gpu_named(printed, HWDB, "x") == gpu


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "part of a GPU"),
        ("Tesla-T4-SHARED", "part of a GPU"),
        ("NVIDIA L40S-48Q", "part of a GPU"),
        ("a100_3g.20gb", "part of a GPU"),
        ("nvidia_a100_80gb_pcie_1g.10gb+me", "part of a GPU"),
        ("1g.5gb", "part of a GPU"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX-3090 is another card"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX-4090 is another card"),
        ("NVIDIA A100-SXM-64GB", "A100-SXM4-80GB is another card"),
    ],
)
def test_parts_of_gpus_and_cards_of_like_names_are_refused(printed: str, words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        gpu_named(printed, HWDB, "x")


def test_equal_nodes_are_grouped_and_nodes_in_two_partitions_count_once() -> None:
    text = "NODELIST GRES\na gpu:h100:8(S:0-1)\na gpu:h100:8\nb gpu:h100:8\nc (null)\nd gpu:t4:4\n"
    assert entries(from_slurm(text, HWDB, "x")) == [
        {"count": 2, **H100},
        {"count": 1, "gpu": "T4", "gpus": 4},
    ]
    used = "Gres=gpu:h100:4(S:0),gpu:h100:4(S:1)\n   GresUsed=gpu:h100:3(IDX:0-2)\n"
    shown = f"NodeName=a Arch=x86_64\n   Gres=gpu:h100:8\nNodeName=b Arch=x86_64\n   {used}"
    assert entries(from_slurm(shown, HWDB, "x")) == [{"count": 2, **H100}]
    assert from_k8s(k8s(("NVIDIA-H100-80GB-HBM3", 8), ("Tesla-T4", 4)), HWDB, "x").groups[1].gpus == 4
    name = "NVIDIA H100 80GB HBM3"
    assert entries(from_nvidia_smi({"a": smi(*[name] * 8), "b": smi(*[name] * 8)}, HWDB)) == [
        {"count": 2, **H100}
    ]


@pytest.mark.parametrize(
    ("verb", "text", "words"),
    [
        ("from-slurm", "NODELIST GRES\nc (null)\n", "no node with GPUs"),
        ("from-slurm", "a gpu:z900:8\n", "node a"),
        ("from-slurm", "a gpu:h100:4,gpu:t4:4\n", "one kind of GPU"),
        ("from-slurm", "a gpu:h100:8\nb gpu:8\n", "node b: 8 GPUs without a type"),
        ("from-k8s", "[]", "kubectl get nodes"),
        ("from-k8s", '{"items": []}', "nvidia.com/gpu.product"),
        (
            "from-k8s",
            '{"items": [{"metadata": {"name": "n7"}, "status": {"capacity": {"nvidia.com/gpu": "8"}}}]}',
            "node n7: has GPUs",
        ),
        ("from-nvidia-smi", "GPU 0: H100", "neither the XML"),
        ("from-nvidia-smi", smi(), "product_name"),
        ("from-nvidia-smi", smi("NVIDIA L40S", "Tesla T4"), "one kind of GPU"),
        ("from-nvidia-smi", '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', "entities"),
    ],
)
def test_other_output_is_refused_by_file(verb: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_text(text)
    refused = tangram("cluster", verb, path, "-o", tmp_path / "out.yaml")
    assert (refused.code, refused.out) == (2, "") and words in refused.err and str(path) in refused.err
    assert not (tmp_path / "out.yaml").exists()


SINFO = """NODELIST    GRES                          STATE
gpu[001-002] gpu:h100:8(S:0-1)            mixed
gpu003       gpu:h100:8(S:0-1)            drained*
gpu004       gpu:a100_3g.39gb:4,gpu:a100:2 idle
cpu01        (null)                       idle
"""
SHOWN = """NodeName=mi01 Arch=x86_64
   ActiveFeatures=mi300x,ib
   Gres=gpu:8
   State=IDLE+DRAIN ThreadsPerCore=1
NodeName=mi02 Arch=x86_64
   ActiveFeatures=mi300x,ib
   Gres=gpu:8
   State=MIXED+CLOUD ThreadsPerCore=1
"""


def test_slurm_nodes_that_take_no_job_or_are_cut_are_left_out_and_named() -> None:
    found = from_slurm(SINFO, HWDB, "x")
    assert entries(found) == [{"count": 2, **H100}], "a list of hosts is its nodes"
    assert [item.partition(": ")[0] for item in found.left_out] == ["x, node gpu003", "x, node gpu004"]
    shown = from_slurm(SHOWN, HWDB, "x")
    assert entries(shown) == [{"count": 1, "gpu": "MI300X", "gpus": 8}], "the type is the node's feature"
    assert shown.left_out == ("x, node mi01: drain",)
    on_one_line = "\n".join(SHOWN.replace("\n ", "").splitlines())
    assert from_slurm(on_one_line, HWDB, "x") == shown, "as `scontrol -o` prints it"
    sliced = from_slurm("n1 gpu:a100_3g.20gb:2\nn2 gpu:1g.5gb+me:1\nn3 gpu:h100:8", HWDB, "x")
    assert entries(sliced) == [{"count": 1, **H100}] and len(sliced.left_out) == 2, "slices are no GPUs"
    with pytest.raises(BadInputError, match=r"node gpu003: drained.*no node is left"):
        from_slurm(SINFO.splitlines()[2], HWDB, "x")


def test_lists_of_hosts() -> None:
    assert host_names("a[08-10,3]-ib,b1", "x") == ["a08-ib", "a09-ib", "a10-ib", "a3-ib", "b1"]
    blades = ["r0-b1", "r0-b2", "r1-b1", "r1-b2", "c"]
    assert host_names("r[0-1]-b[1,2],c", "x") == blades, "two ranges are a grid of nodes"
    for bad in ("a[3-1]", "a[x-y]", "a[1-999999999]", "a[]", "a[1-900]b[1-900]", "a" + "[1-2]" * 9999):
        with pytest.raises(BadInputError):
            host_names(bad, "x")


@pytest.mark.parametrize(
    ("labels", "capacity", "entry"),
    [
        (
            {"cloud.google.com/gke-accelerator": "nvidia-l4"},
            {"nvidia.com/gpu": "4"},
            {"gpu": "L4", "gpus": 4},
        ),
        ({"amd.com/gpu.device-id": "74b5"}, {"amd.com/gpu": "8"}, {"gpu": "MI300X", "gpus": 8}),
        (
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
            {"amd.com/gpu": "8"},
            {"gpu": "MI300X", "gpus": 8},
        ),
        (
            {"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"},
            {"nvidia.com/gpu": "8"},
            {"node": "ND96isr_H100_v5"},
        ),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, {"nvidia.com/gpu": "4"}, {**H100, "gpus": 4}),
        (
            {"nvidia.com/gpu.product": "NVIDIA-L40S"},
            {"nvidia.com/gpu": "4", "gpu.intel.com/i915": "1"},
            {"gpu": "L40S", "gpus": 4},
        ),
    ],
)
def test_nodes_of_clouds_and_of_amd_are_known_by_their_labels(labels, capacity, entry) -> None:
    nodes = [{"metadata": {"name": "n", "labels": labels}, "status": {"capacity": capacity}}] * 2
    assert entries(from_k8s(json.dumps({"items": nodes}), HWDB, "x")) == [{"count": 2, **entry}]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"spec": {"unschedulable": True}}, "cordoned"),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "not ready"),
        ({"status": {"capacity": {"nvidia.com/mig-3g.40gb": "16"}}}, "cut by MIG"),
        ({"status": {"capacity": {"habana.ai/gaudi": "8"}}}, "habana.ai/gaudi is no GPU"),
    ],
)
def test_kubernetes_nodes_that_take_no_job_are_left_out_and_named(node, words) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.count": "4"}
    items = [
        {"metadata": {"name": name, "labels": labels}, **more} for name, more in (("a", node), ("b", {}))
    ]
    found = from_k8s(json.dumps({"items": items}), HWDB, "x")
    assert entries(found) == [{"count": 1, "gpu": "L40S", "gpus": 4}]
    [said] = found.left_out
    assert said.startswith("x, node a: ") and words in said


def test_a_gpu_that_mig_has_cut_is_named() -> None:
    cut = smi("NVIDIA H100 80GB HBM3").replace(
        "</gpu>", "<mig_mode><current_mig>Enabled</current_mig></mig_mode></gpu>"
    )
    with pytest.raises(BadInputError, match="1 of 1 GPUs are cut by MIG"):
        from_nvidia_smi({"a": cut}, HWDB)


def test_the_written_file_is_a_cluster_that_says_what_is_assumed(tmp_path: Path) -> None:
    (tmp_path / "sinfo.txt").write_text("a gpu:h100:8\nb gpu:h100:8\n")
    made = tangram("cluster", "from-slurm", tmp_path / "sinfo.txt", "-o", tmp_path / "mine.yaml")
    assert made.code == 0 and "16 GPUs" in made.out
    text = (tmp_path / "mine.yaml").read_text()
    assert "assumed: NVLink4 inside" in text and yaml.safe_load(text)["nodes"] == [{"count": 2, **H100}]
    assert load_cluster(str(tmp_path / "mine.yaml"), HWDB).gpus == 16
    with pytest.raises(TangramError):
        from_slurm("", HWDB, "x")
