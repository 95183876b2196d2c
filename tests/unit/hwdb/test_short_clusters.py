"""Clusters said in few words: nodes on their usual board, clusters on one line."""

from pathlib import Path

import pytest

from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, cluster_to_dict, load_cluster
from tests.commands import tangram

HWDB = Hwdb.load()


def test_a_gpu_and_a_count_make_the_node_the_gpu_is_usually_in() -> None:
    """Links and NICs as the machine of one's own with as many of the GPU: DGX-H100."""
    found = cluster_from_dict({"nodes": [{"count": 2, "gpu": "H100", "gpus": 8}]}, HWDB).groups[0].node
    row = HWDB.node("DGX-H100")
    assert (found.gpu, found.gpus, found.intra) == (row.gpu, 8, row.intra)
    assert (found.nic_bytes_per_s, found.nics) == (row.nic_bytes_per_s, row.nics)
    assert found.labels == ("assumed: NVLink4 inside and 3200 Gbit/s of NICs (as DGX-H100)",)


def test_half_a_board_has_half_of_its_nics_and_a_single_gpu_no_link() -> None:
    groups = [{"count": 1, "gpu": "H100", "gpus": gpus} for gpus in (4, 1)]
    half, single = (group.node for group in cluster_from_dict({"nodes": groups}, HWDB).groups)
    assert half.nic_bytes_per_s == HWDB.node("DGX-H100").nic_bytes_per_s / 2
    assert (half.intra.name, single.intra.kind) == ("NVLink4", "none")


def test_cards_without_links_of_their_own_meet_over_their_host_interface() -> None:
    found = cluster_from_dict({"nodes": [{"count": 1, "gpu": "RTX-4090", "gpus": 4}]}, HWDB).groups[0].node
    assert found.intra.name == "PCIe4x16" and "no server with it is listed" in found.labels[0]


def test_what_is_stated_is_kept_and_only_the_rest_is_assumed() -> None:
    group = {"count": 1, "gpu": "T4", "gpus": 4, "intra_link": "PCIe3x8", "labels": ["rack 7"]}
    found = cluster_from_dict({"nodes": [group]}, HWDB)
    node = found.groups[0].node
    assert node.intra.name == "PCIe3x8" and node.labels[1] == "rack 7"
    assert node.labels[0].startswith("assumed: ") and "inside" not in node.labels[0]
    stated = cluster_from_dict({"nodes": [{**group, "nic_gbps": 40}]}, HWDB).groups[0].node
    assert (stated.labels, stated.nics) == (("rack 7",), 1)
    assert cluster_from_dict(cluster_to_dict(found), HWDB) == found


def test_every_gpu_has_a_usual_node() -> None:
    for gpu in HWDB.gpu_names():
        for gpus in (1, 2, 8):
            node = cluster_from_dict({"nodes": [{"count": 1, "gpu": gpu, "gpus": gpus}]}, HWDB).groups[0].node
            assert node.nic_bytes_per_s > 0 and (gpus == 1 or node.intra.bytes_per_s > 0), gpu


def test_ports_of_ones_own_machine_are_whole_and_slow_laboratories_are_no_rule() -> None:
    """Four cards of a box with one 25 Gbit/s port have the port; 1 Gbit/s is not what servers have."""
    for gpu, gpus in (("RTX-2080Ti", 4), ("RTX-3090", 2)):
        node = cluster_from_dict({"nodes": [{"count": 1, "gpu": gpu, "gpus": gpus}]}, HWDB).groups[0].node
        assert (node.nic_bytes_per_s, node.nics) == (25e9 / 8, 1)


def test_a_cluster_on_one_line() -> None:
    found = load_cluster("DGX-H100:4+dgx-a100-80gb:6 + T4x4:1", HWDB)
    assert found.name == "DGX-H100:4+dgx-a100-80gb:6+T4x4:1"
    assert [(g.count, g.node.gpus, g.node.gpu.name) for g in found.groups] == [
        (4, 8, "H100-SXM5-80GB"),
        (6, 8, "A100-SXM4-80GB"),
        (1, 4, "T4"),
    ]


@pytest.mark.parametrize(
    "given", ["DGX-H100:", ":4", "DGX-H100:0", "DGX-H100:-1", "DGX-H100:4+", "DGX-H100:x"]
)
def test_a_line_that_is_none_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(BadInputError, match=r"NODE:COUNT"):
        load_cluster(given, HWDB)
    with pytest.raises(UnknownNameError, match="DGX-H100"):
        load_cluster("DGX-H10:4", HWDB)


def test_a_misspelt_gpu_is_answered_with_gpus_and_a_missing_count_with_how_to_write_it() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'H20O'.*H200 \(H200-SXM"):
        load_cluster("H20Ox8:3", HWDB)
    for given, meant in (("H200x8", "H200x8:1"), ("dgx-h100 + T4x4", r"dgx-h100:1\+T4x4:1")):
        with pytest.raises(BadInputError, match=f"how many such nodes.* {meant} "):
            load_cluster(given, HWDB)
    with pytest.raises(UnknownNameError, match="unknown cluster 'azure-c9'"):
        load_cluster("azure-c9", HWDB)


def test_islands_say_what_was_assumed(tmp_path: Path) -> None:
    assert "g0: assumed: NVLink4 inside" in tangram("islands", "H100x8:2").out
    assert "assumed" not in tangram("islands", "DGX-H100:2").out
