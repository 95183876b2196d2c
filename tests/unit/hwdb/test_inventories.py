"""`tangram cluster`: saved output of nvidia-smi, Slurm and Kubernetes becomes a cluster file that is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.hwdb.inventories import FoundGroup, from_k8s, from_nvidia_smi, from_slurm, gpu_named
from tests.commands import tangram

HWDB = Hwdb.load()
H100 = {"gpu": "H100-SXM5-80GB", "gpus": 8}


def smi(*products: str) -> str:
    gpus = "".join(f"<gpu><product_name>{name}</product_name></gpu>" for name in products)
    doctype = '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">'
    return f'<?xml version="1.0" ?>{doctype}<nvidia_smi_log>{gpus}</nvidia_smi_log>'


def entries(found: list[FoundGroup]) -> list[dict[str, Any]]:
    return [group.entry for group in found]


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
    assert from_k8s(k8s(("NVIDIA-H100-80GB-HBM3", 8), ("Tesla-T4", 4)), HWDB, "x")[1].gpus == 4
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


def test_the_written_file_is_a_cluster_that_says_what_is_assumed(tmp_path: Path) -> None:
    (tmp_path / "sinfo.txt").write_text("a gpu:h100:8\nb gpu:h100:8\n")
    made = tangram("cluster", "from-slurm", tmp_path / "sinfo.txt", "-o", tmp_path / "mine.yaml")
    assert made.code == 0 and "16 GPUs" in made.out
    text = (tmp_path / "mine.yaml").read_text()
    assert "assumed: NVLink4 inside" in text and yaml.safe_load(text)["nodes"] == [{"count": 2, **H100}]
    assert load_cluster(str(tmp_path / "mine.yaml"), HWDB).gpus == 16
    with pytest.raises(TangramError):
        from_slurm("", HWDB, "x")
