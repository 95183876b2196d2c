"""Shipped cluster files, and names of collected facts that must resolve."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from tests.places import SHARED
from tests.unit.hwdb.tables import CLUSTERS, HWDB, NAMES, ROWS, cells, row_of

FACTS = SHARED / "data"

GROUP_KEYS = {
    *("count", "node", "gpu", "gpus", "intra_link", "nic_gbps", "nics", "nic_latency_us", "scale_up_nodes"),
    *("links", "host", "labels", "usd_per_hour", "power_w"),
}


def resolve(kind: str, name: str) -> str | None:
    """The canonical name, or None: exactly what a row or an alias says."""
    if name in NAMES[kind]:
        return name
    rows = ROWS["aliases"]
    found = rows[(rows["kind"] == kind) & (rows["alias"] == name)]["name"]
    return str(found.iloc[0]) if len(found) else None


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_cluster_file_names_known_hardware_and_its_source(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# "), "the first line says what the cluster is"
    assert "ource" in text.splitlines()[0], "the first line names the source of its figures"
    document = yaml.safe_load(text)
    assert set(document) <= {"name", "nodes", "network"}
    assert document["name"] == path.stem
    for group in document["nodes"]:
        assert set(group) <= GROUP_KEYS
        assert group["count"] >= 1
        if "node" in group:
            assert resolve("node", group["node"]), group["node"]
            continue
        assert resolve("gpu", group["gpu"]), group["gpu"]
        assert resolve("link", group["intra_link"]), group["intra_link"]
        assert group["gpus"] >= 1
        assert group["nic_gbps"] > 0
        flat = [gpu for pair in group.get("links", []) for gpu in pair]
        assert sorted(flat) == list(range(len(flat))), "each GPU is in one bridge"
        assert len(flat) <= group["gpus"]
    network = document.get("network", {})
    assert set(network) <= {"oversubscription", "between"}
    assert network.get("oversubscription", 1.0) >= 1.0
    for limit in network.get("between", []):
        assert set(limit) <= {"groups", "gbps", "latency_us"}
        assert limit["gbps"] > 0
        assert all(0 <= group < len(document["nodes"]) for group in limit["groups"])


def test_cluster_nodes_state_a_network() -> None:
    """A cluster of several nodes with an unknown NIC rate cannot be planned on."""
    rate = {row["name"]: row["nic_gbps"] for row in cells("nodes")}
    for path in CLUSTERS:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["nodes"]:
            if "node" in group:
                name = resolve("node", group["node"])
                assert name and rate[name], f"{path.name}: {group['node']} has no NIC rate"


def gpus_of(cluster: str) -> dict[str, int]:
    """GPUs of each kind in a cluster file."""
    total: dict[str, int] = {}
    for group in yaml.safe_load((HWDB / "clusters" / f"{cluster}.yaml").read_text(encoding="utf-8"))["nodes"]:
        gpu, each = group.get("gpu"), group.get("gpus")
        if "node" in group:
            row = row_of("nodes", str(resolve("node", group["node"])))
            gpu, each = row["gpu"], int(row["gpus"])
        total[gpu] = total.get(gpu, 0) + group["count"] * each
    return total


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ("azure-c1", {"T4": 16, "V100-PCIe-16GB": 16}),
        ("azure-c1-t4x12-v100x4", {"T4": 12, "V100-PCIe-16GB": 4}),
        ("azure-c2", {"A100-PCIe-80GB": 8, "H100-NVL-94GB": 8}),
        ("azure-c3", {"T4": 4, "V100-PCIe-16GB": 4, "V100-SXM2-32GB": 8, "A100-PCIe-80GB": 4}),
        ("azure-c3-a100x4-v100x8", {"A100-PCIe-80GB": 4, "V100-SXM2-32GB": 8}),
        ("amp-v100x12-t4x4", {"V100-SXM2-16GB": 12, "T4": 4}),
        ("sailor-a8-v4-gh4", {"A100-SXM4-40GB": 8, "V100-SXM2-16GB": 4, "GH200-96GB": 4}),
        ("sailor-a32-v96", {"A100-SXM4-40GB": 32, "V100-SXM2-16GB": 96}),
        ("a100x128-h100x128", {"A100-SXM4-80GB": 128, "H100-SXM5-80GB": 128}),
        ("gb200-nvl72-h100", {"GB200": 72, "H100-SXM5-80GB": 64}),
    ],
)
def test_published_clusters_have_the_gpus_their_papers_say(cluster: str, expected: dict[str, int]) -> None:
    assert gpus_of(cluster) == expected


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        ("gpu", "A100-80GB", "A100-SXM4-80GB"),
        ("gpu", "A100-40", "A100-SXM4-40GB"),
        ("gpu", "V100-16", "V100-SXM2-16GB"),
        ("gpu", "GH-96", "GH200-96GB"),
        ("gpu", "H100", "H100-SXM5-80GB"),
        ("gpu", "H100-PCIe", "H100-PCIe-80GB"),
        ("gpu", "MI250X", "MI250X-GCD"),
        ("gpu", "RTX-PRO-6000-BSE", "RTX-PRO-6000-Blackwell-Server"),
        ("link", "PCIe3-x16", "PCIe3x16"),
        ("link", "NVLink3/NVSwitch", "NVLink3"),
    ],
)
def test_common_spellings_mean_the_expected_row(kind: str, given: str, meant: str) -> None:
    assert resolve(kind, given) == meant


def shared(file: str) -> pd.DataFrame:
    path = FACTS / file
    if not path.is_file():
        pytest.skip(f"the shared measurement folder is not beside this checkout ({file} absent)")
    return pd.read_csv(path, low_memory=False)


@pytest.mark.parametrize(
    ("kind", "file"), [("gpu", "gpus.csv"), ("node", "nodes.csv"), ("link", "interconnects.csv")]
)
def test_names_of_the_collected_facts_resolve(kind: str, file: str) -> None:
    missing = [name for name in shared(file)["name"].unique() if resolve(kind, name) is None]
    assert not missing


@pytest.mark.parametrize(
    ("file", "column"),
    [
        ("training_runs.csv", "gpu"),
        ("layer_profiles_sailor.csv", "gpu"),
        ("p2p_bandwidth_fits_sailor.csv", "gpu_a"),
    ],
)
def test_gpus_of_the_measurements_resolve(file: str, column: str) -> None:
    missing = [name for name in shared(file)[column].dropna().unique() if resolve("gpu", name) is None]
    assert not missing


def test_clusters_of_the_peer_planners_have_files() -> None:
    known = [gpus_of(path.stem) for path in CLUSTERS]
    for text in shared("peer_planning_runs.csv")["cluster"].dropna().unique():
        wanted = {
            str(resolve("gpu", part.split(":")[0])): int(part.split(":")[1]) for part in text.split(",")
        }
        assert wanted in known, text
