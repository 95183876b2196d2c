"""Plans priced through the graph that a cluster states: parts taken out cost what they carried."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.cost.collectives import all_gather_s, all_reduce_s, all_to_all_s, group
from tangram_sim.hwdb import cluster_from_dict, cluster_to_dict, load_cluster
from tangram_sim.hwdb.models import load_model
from tangram_sim.models import Model
from tangram_sim.placement.islands import find_islands
from tangram_sim.placement.ranks import Placement
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.studies.api import estimate, estimate_many
from tangram_sim.topology.full import full_wiring
from tangram_sim.training.job import Job
from tests.commands import tangram
from tests.neutral import neutral_hwdb

HWDB = neutral_hwdb()


def cluster(*groups: dict[str, Any], **keys: Any) -> Cluster:
    return cluster_from_dict({"nodes": list(groups), **keys}, HWDB, "my.yaml")


def full(given: Cluster) -> dict[str, Any]:
    """The cluster's file with its graph stated in full, to edit."""
    return copy.deepcopy(cluster_to_dict(replace(given, wiring=full_wiring(given))))


def without(data: dict[str, Any], *pairs: tuple[str, str]) -> Cluster:
    """The stated graph with the edges between some pairs of vertices taken out."""
    gone = [set(pair) for pair in pairs]
    kept = [edge for edge in data["topology"]["edges"] if set(edge["ends"]) not in gone]
    assert len(kept) == len(data["topology"]["edges"]) - len(pairs)
    return cluster_from_dict(data | {"topology": data["topology"] | {"edges": kept}}, HWDB, "my.yaml")


def step_s(given: Cluster, seq: int = 1024, **degrees: int) -> float:
    job = Job(global_batch=16, seq=seq)
    return estimate(model(), given, job, Uniform(**degrees), hwdb=HWDB).forecast.step_s


def model() -> Model:
    return load_model("gpt3-1.3b")


# what was stated equals what was derived


@pytest.mark.parametrize("name", ["dgx-a100-h100", "h100x8-nodes4"])
def test_switched_boxes_stated_in_full_keep_their_prices(name: str) -> None:
    """NVSwitch nodes (the last group): all groups of a node, and strided ones over two."""
    given = load_cluster(name, HWDB)
    own, stated = Placement(given, HWDB), Placement(replace(given, wiring=full_wiring(given)), HWDB)
    first = own.first_rank
    for ranks in (tuple(range(first[-2], first[-1])), tuple(range(first[-3], first[-1]))):
        pairs = [(n, s) for n in (2, 4, 8, 16) for s in (1, 2, 8) if n * s <= len(ranks)]
        sizes, strides = (np.array(column) for column in zip(*pairs, strict=True))
        for price in (all_reduce_s, all_gather_s, all_to_all_s):
            expected, found = (
                price(64e6, group(placement.island(ranks), sizes, strides, HWDB))
                for placement in (own, stated)
            )
            assert found == pytest.approx(expected, rel=1e-9)
    near, far = (tuple(range(first[node], first[node + 1])) for node in (-3, -2))
    assert stated.road(near, far) == pytest.approx(own.road(near, far))
    assert stated.nic_share(near) == pytest.approx(own.nic_share(near))


def test_clusters_without_a_stated_graph_are_priced_without_one() -> None:
    given = load_cluster("azure-c2", HWDB)
    assert Placement(given, HWDB).island((0, 1)).paths is None
    assert all(island.paths is None for island in find_islands(given, "fp16", hwdb=HWDB))


# taking parts out


def test_a_missing_nvlink_lengthens_the_step() -> None:
    """A cube mesh has several links per pair and relays: one pair's links are a sixth or two of a GPU's."""
    data = full(cluster({"count": 1, "node": "DGX-1-V100"}))
    whole, cut = without(data), without(data, ("0/gpu0", "0/gpu1"))
    assert step_s(cut, tp=8) > step_s(whole, tp=8) * 1.001
    # Groups that never used the link cost what they did.
    ranks = (4, 5, 6, 7)
    prices = [
        all_reduce_s(
            1e8, group(Placement(item, HWDB).island(ranks), np.array([4]), np.array([1]), HWDB)
        ).item()
        for item in (whole, cut)
    ]
    assert prices[0] == prices[1]


def test_a_gpu_off_its_switch_falls_back_to_pcie() -> None:
    data = full(cluster({"count": 1, "node": "DGX-A100-80GB"}))
    whole, cut = without(data), without(data, ("0/gpu3", "0/nvswitch"))
    assert step_s(cut, tp=8) > 2 * step_s(whole, tp=8)


def test_a_missing_bridge_lengthens_the_step() -> None:
    data = full(cluster({"count": 1, "node": "NC96ads_A100_v4"}))
    bridge = next(edge["ends"] for edge in data["topology"]["edges"] if "gpu" in edge["ends"][1])
    assert step_s(without(data, tuple(bridge)), tp=2, dp=2) > step_s(without(data), tp=2, dp=2) * 1.01


def test_a_missing_nic_lengthens_sync_and_sends() -> None:
    data = full(cluster({"count": 2, "node": "DGX-A100-80GB"}))
    nic = next(v["name"] for v in data["topology"]["vertices"] if v["kind"] == "nic")
    edges = [edge for edge in data["topology"]["edges"] if nic not in edge["ends"]]
    vertices = [vertex for vertex in data["topology"]["vertices"] if vertex["name"] != nic]
    cut = cluster_from_dict(data | {"topology": {"edges": edges, "vertices": vertices}}, HWDB, "my.yaml")
    whole = without(data)
    # Rings of pairs: GPU 0 has to share its neighbour's NIC. Short sequences do not hide the reduction.
    assert step_s(cut, seq=128, tp=8) > step_s(whole, seq=128, tp=8) * 1.01
    near, far = tuple(range(8)), tuple(range(8, 16))
    assert Placement(cut, HWDB).road(near, far)[0] < Placement(whole, HWDB).road(near, far)[0]
    assert Placement(cut, HWDB).nic_rate((0,)) < Placement(whole, HWDB).nic_rate((0,))


def test_many_layouts_at_once_are_priced_through_the_graph_too() -> None:
    data = full(cluster({"count": 1, "node": "DGX-A100-80GB"}))
    cut = without(data, ("0/gpu3", "0/nvswitch"))
    layouts = [Uniform(tp=8), Uniform(tp=2, dp=4), Uniform(pp=2, tp=4)]
    job = Job(global_batch=16, seq=1024)
    for layout, found in zip(layouts, estimate_many(model(), cut, job, layouts, hwdb=HWDB), strict=True):
        alone = estimate(model(), cut, job, layout, hwdb=HWDB).forecast
        assert found.step_s == pytest.approx(alone.lowered.step_s(), rel=1e-9)


def test_ranks_that_no_path_joins_crawl_instead_of_failing() -> None:
    """A chain of direct links without a host: the ends meet only over a GPU that is not in the group."""
    chain = {
        "vertices": [{"name": f"gpu{rank}", "kind": "gpu"} for rank in range(4)],
        "edges": [{"ends": [f"gpu{a}", f"gpu{a + 1}"], "link": "NVLink3"} for a in range(3)],
    }
    node = {"count": 1, "gpu": "A100-SXM4-80GB", "gpus": 4, "intra_link": "NVLink3", "nic_gbps": 100}
    item = cluster(node, topology=chain)
    placement, sizes = Placement(item, HWDB), (np.array([2]), np.array([1]))
    near, far = (all_reduce_s(1e8, group(placement.island(r), *sizes, HWDB)).item() for r in ((0, 1), (0, 2)))
    assert near < 1.0 < 1e7 < far


# islands and plans


def test_nodes_are_one_island_only_if_their_graphs_are_equal() -> None:
    data = full(cluster({"count": 3, "node": "DGX-A100-80GB"}))
    assert [island.nodes for island in find_islands(without(data), "fp16", hwdb=HWDB)] == [3]
    cut = find_islands(without(data, ("1/gpu3", "1/nvswitch")), "fp16", hwdb=HWDB)
    assert [island.node_indices for island in cut] == [(0, 2), (1,)]
    assert "part of the stated graph differs" in cut[1].reason


def test_a_share_of_an_uneven_node_is_priced_at_its_worst() -> None:
    """The search does not know yet which GPUs of the node a slice will take."""
    data = full(cluster({"count": 1, "node": "DGX-A100-80GB"}))
    (island,) = find_islands(without(data, ("0/gpu5", "0/nvswitch")), "fp16", hwdb=HWDB)
    assert island.paths is not None
    half = island.part(1, 4).paths
    lone = Placement(without(data), HWDB).island((0, 1, 2, 3)).paths
    assert half is not None and lone is not None
    assert half.rates(4, 1).ring_bytes_per_s < lone.rates(4, 1).ring_bytes_per_s / 5


@pytest.mark.slow
def test_plan_and_simulate_follow_the_stated_graph(tmp_path: Path) -> None:
    import json

    data = full(cluster({"count": 2, "node": "DGX-A100-80GB"}))
    steps = {}
    for name, gone in (("whole", ()), ("cut", (("1/gpu3", "1/nvswitch"),))):
        file, planned = tmp_path / f"{name}.json", tmp_path / f"{name}.plan.json"
        edges = [e for e in data["topology"]["edges"] if set(e["ends"]) not in [set(g) for g in gone]]
        file.write_text(json.dumps(data | {"topology": data["topology"] | {"edges": edges}}))
        made = tangram("plan", "gpt3-125m", file, "--global-batch", 16, "--seq", 1024, "-o", planned)
        assert made.code == 0, made.err
        played = tangram("simulate", planned, "--json").json
        slow = tangram("simulate", planned, "--json", "--engine", "reference").json
        assert played["step_s"] == pytest.approx(slow["step_s"], rel=1e-9)
        steps[name] = played["step_s"]
    assert steps["cut"] > steps["whole"]
