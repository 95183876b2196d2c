"""The interconnect's graph: what is derived, what may be stated, and that prices follow the paths."""

import copy
from typing import Any

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.cost.paths import path_finder
from tangram_sim.errors import BadInputError, InfeasibleError, TangramError, UnknownNameError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, cluster_names, cluster_to_dict, load_cluster
from tangram_sim.placement.ranks import Placement
from tangram_sim.topology import GroupPaths, PathFinder, topology_of
from tangram_sim.topology.full import full_wiring
from tangram_sim.topology.maxflow import max_flow
from tests.commands import tangram

HWDB = Hwdb.load()
NETWORK_SHARE = HWDB.network_efficiency.value


def cluster(*groups: dict[str, Any], **keys: Any) -> Cluster:
    return cluster_from_dict({"nodes": list(groups), **keys}, HWDB, "my.yaml")


def finder(*groups: dict[str, Any], **keys: Any) -> PathFinder:
    return path_finder(cluster(*groups, **keys), HWDB)


def full(given: Cluster) -> dict[str, Any]:
    """The cluster's file with its graph stated in full, to edit."""
    from dataclasses import replace

    return copy.deepcopy(cluster_to_dict(replace(given, wiring=full_wiring(given))))


def without(data: dict[str, Any], *pairs: tuple[str, str]) -> PathFinder:
    """The stated graph with the edges between some pairs of vertices taken out."""
    gone = [set(pair) for pair in pairs]
    edges = data["topology"]["edges"]
    kept = [edge for edge in edges if set(edge["ends"]) not in gone]
    assert len(kept) == len(edges) - len(pairs)
    changed = data | {"topology": data["topology"] | {"edges": kept}}
    return path_finder(cluster_from_dict(changed, HWDB, "my.yaml"), HWDB)


# measured figures


@pytest.mark.parametrize(("ranks", "measured"), [(2, 38.6), (4, 26.4), (8, 24.7)])
def test_a_pcie_box_falls_off_with_ranks_as_measured(ranks: int, measured: float) -> None:
    """RTX PRO 6000 all-reduce bus bandwidth at 512 MiB; four ranks and the two-rank rate set the defaults."""
    box = finder({"count": 1, "gpu": "RTX-PRO-6000", "gpus": 8, "intra_link": "PCIe5x16", "nic_gbps": 400})
    assert box.group(range(ranks)).ring.bytes_per_s / 1e9 == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize(("ranks", "measured"), [(2, 47.7), (8, 312.9)])
def test_a_mesh_of_direct_links_gives_two_ranks_one_link(ranks: int, measured: float) -> None:
    """MI300X: one xGMI link between two, all seven when eight ranks relay for each other."""
    found = finder({"count": 1, "node": "MI300X-platform"}).group(range(ranks))
    assert found.ring.bytes_per_s / 1e9 == pytest.approx(measured, rel=0.08)


def test_nics_per_node_set_the_bandwidth_not_the_ranks() -> None:
    """Eight ranks on 8, 4 and 2 DGX-2: 7.7, 16.2 and 21.2 GB/s (NCCL issue 569); ratios to the first."""
    found = []
    for nodes, each in ((8, 1), (4, 2), (2, 4)):
        item = finder({"count": nodes, "node": "DGX-2"})
        ranks = [node * 16 + 2 * rank for node in range(nodes) for rank in range(each)]
        found.append(item.group(ranks).ring.bytes_per_s)
    assert found[1] == pytest.approx(2 * found[0])
    assert found[2] > found[1]


# today's closed form


@pytest.mark.parametrize(
    "node", ["DGX-H100", "DGX-A100-80GB", "p4d.24xlarge", "p5.48xlarge", "NC64as_T4_v3", "GB200-NVL72-tray"]
)
def test_the_derived_graph_gives_plain_clusters_their_closed_form(node: str) -> None:
    """Groups inside a domain, over whole nodes, and strided ones side by side."""
    item = finder({"count": 36, "node": node})
    row, box = HWDB.node(node), len(item.topology.kinds[0].gpus)
    nodes = 1 if row.scale_up_nodes == 1 else row.scale_up_nodes
    link = row.intra.bytes_per_s * HWDB.link_efficiency(row.intra).value
    nic = row.nic_bytes_per_s * nodes * HWDB.network_efficiency.value
    assert item.group(range(box)).ring.bytes_per_s == pytest.approx(link)
    assert item.group(range(2 * box)).ring.bytes_per_s == pytest.approx(min(link, nic))
    strided = [range(first, 2 * box, box) for first in range(box)]
    assert item.group(strided[0], strided[1:]).ring.bytes_per_s == pytest.approx(nic / box)


PLAIN = ("azure-c1", "azure-c2", "azure-c3", "dgx-a100-h100", "gb200-nvl72-h100", "p3-p4d-p5")


@pytest.mark.parametrize("name", PLAIN)
def test_roads_between_nodes_equal_those_of_lowering(name: str) -> None:
    """Whole nodes to whole nodes; latency is the mean of both NICs' where lowering has the larger."""
    given = load_cluster(name, HWDB)
    item, placement = path_finder(given, HWDB), Placement(given, HWDB)
    nodes = [tuple(range(*placement.first_rank[node : node + 2])) for node in range(len(given.node_group))]
    for a, group_a in enumerate(given.node_group):
        b = next((b for b in range(a + 1, len(nodes)) if not placement.same_domain(nodes[a], nodes[b])), None)
        if b is None or (a and group_a == given.node_group[a - 1]):
            continue
        rate, latency = item.road(nodes[a], nodes[b])
        expected, slower = placement.road(nodes[a], nodes[b])
        assert rate.bytes_per_s == pytest.approx(expected), rate.limited_by
        assert slower / 2 <= latency <= slower * (1 + 1e-9)


@pytest.mark.parametrize("name", cluster_names(HWDB))
def test_every_shipped_cluster_has_a_graph(name: str) -> None:
    given = load_cluster(name, HWDB)
    item = path_finder(given, HWDB)
    assert item.topology.gpus == given.gpus
    ring = item.group(range(given.gpus)).ring
    assert 0 < ring.bytes_per_s < float("inf")
    assert ring.limited_by


# taking parts out of a stated graph


def test_a_graph_written_in_full_prices_as_the_derived_one() -> None:
    for name in ("dgx-a100-h100", "azure-c2", "consumer-3090-4090", "mi300x-mi250x"):
        given = load_cluster(name, HWDB)
        stated = path_finder(cluster_from_dict(full(given), HWDB), HWDB)
        assert not stated.topology.derived
        groups = [range(given.gpus), range(2), range(0, given.gpus, 2)]
        for ranks in groups:
            mine, theirs = stated.group(ranks), path_finder(given, HWDB).group(ranks)
            for figure in ("ring", "tree", "all_to_all"):
                expected = getattr(theirs, figure).bytes_per_s
                assert getattr(mine, figure).bytes_per_s == pytest.approx(expected), (name, ranks, figure)
            assert mine.hop_outside_s == pytest.approx(theirs.hop_outside_s)


def test_removing_one_nvlink_of_a_cube_mesh_costs_its_share() -> None:
    """DGX-1: six links of 25 GB/s per GPU. Without one single link, a cut of five is left."""
    data = full(cluster({"count": 1, "node": "DGX-1-V100"}))
    whole = without(data).group(range(8)).ring
    cut = without(data, ("0/gpu0", "0/gpu1")).group(range(8)).ring
    assert cut.bytes_per_s == pytest.approx(whole.bytes_per_s * 5 / 6)
    assert "gpu0" in cut.limited_by or "gpu1" in cut.limited_by


def test_removing_one_xgmi_link_of_a_mesh_costs_a_seventh() -> None:
    data = full(cluster({"count": 1, "node": "MI300X-platform"}))
    whole, cut = without(data).group(range(8)), without(data, ("0/gpu2", "0/gpu5")).group(range(8))
    assert cut.ring.bytes_per_s == pytest.approx(whole.ring.bytes_per_s * 6 / 7)
    # An all-to-all now relays between the two over a third GPU's links: twice the load on these.
    assert cut.all_to_all.bytes_per_s == pytest.approx(whole.all_to_all.bytes_per_s / 2)


def test_removing_a_bridge_sends_the_pair_over_pcie() -> None:
    data = full(cluster({"count": 1, "node": "NC96ads_A100_v4"}))
    pcie = HWDB.link("PCIe4x16")
    assert without(data).group((0, 1)).ring.bytes_per_s == pytest.approx(210e9)
    cut = without(data, ("0/gpu0", "0/gpu1"))
    rate = pcie.bytes_per_s * HWDB.link_efficiency(pcie).value
    assert cut.group((0, 1)).ring.bytes_per_s == pytest.approx(rate)
    assert cut.group((2, 3)).ring.bytes_per_s == pytest.approx(210e9)
    # Four ranks: rings of both directions use both PCIe slots of a pair; without its bridge, one each.
    assert cut.group(range(4)).ring.bytes_per_s < without(data).group(range(4)).ring.bytes_per_s


def test_removing_a_nic_costs_whole_groups_an_eighth_and_strided_ones_a_half() -> None:
    given = cluster({"count": 2, "node": "DGX-A100-80GB"})
    data = full(given)
    whole, cut = without(data), without(data, ("1/nic3", "1/pcie3"), ("1/nic3", "g0/leaf"))
    assert cut.group(range(16)).ring.bytes_per_s == pytest.approx(
        whole.group(range(16)).ring.bytes_per_s * 7 / 8
    )
    # GPU 3 of the second node now shares the NICs of its socket: whoever is side by side with it has half.
    strided = [(first, first + 8) for first in range(8)]
    rates = [
        [
            item.group(ranks, [other for other in strided if other != ranks]).ring.bytes_per_s
            for ranks in strided
        ]
        for item in (whole, cut)
    ]
    assert min(rates[1]) == pytest.approx(min(rates[0]) / 2)
    assert rates[1][4:] == pytest.approx(rates[0][4:])
    assert cut.group(strided[5]).ring.bytes_per_s == pytest.approx(whole.group(strided[5]).ring.bytes_per_s)


def test_a_slower_direction_limits_a_ring() -> None:
    data = full(cluster({"count": 1, "node": "DGX-H100"}))
    data["topology"]["edges"][0]["back_gb_per_s"] = 45
    stated = path_finder(cluster_from_dict(data, HWDB), HWDB)
    assert stated.group(range(8)).ring.bytes_per_s == pytest.approx(45e9 * 0.78)
    assert stated.group(range(1, 8)).ring.bytes_per_s == pytest.approx(450e9 * 0.78)
    assert cluster_from_dict(cluster_to_dict(cluster_from_dict(data, HWDB)), HWDB) == cluster_from_dict(
        data, HWDB
    )


# fabric


def test_rails_keep_strided_groups_off_the_spine() -> None:
    """NIC i of every node on leaf i: a strided group stays on its rail however thin the spine is."""
    shape = {"leaf_nodes": 4, "leaf_oversubscription": 8.0}
    plain = finder({"count": 8, "node": "DGX-H100"}, topology=shape)
    rails = finder({"count": 8, "node": "DGX-H100"}, topology=shape | {"rails": True})
    near = [tuple(range(first, 32, 8)) for first in range(8)]
    far = [tuple(range(first, 64, 8)) for first in range(8)]
    for item in (plain, rails):
        assert item.group(near[0], near[1:]).ring.bytes_per_s == pytest.approx(50e9 * NETWORK_SHARE)
    # Eight rings share the leaf's uplink of 4 x 400 / 8 GB/s; on rails each has its own leaf's.
    assert plain.group(far[0], far[1:]).ring.bytes_per_s == pytest.approx(4 * 400e9 / 8 * NETWORK_SHARE / 8)
    assert rails.group(far[0], far[1:]).ring.bytes_per_s == pytest.approx(4 * 50e9 / 8 * NETWORK_SHARE)
    assert "uplink" in rails.group(far[0], far[1:]).ring.limited_by


def test_oversubscription_shows_in_the_all_to_all_before_the_ring() -> None:
    thin = finder({"count": 16, "node": "DGX-H100"}, topology={"leaf_nodes": 8, "leaf_oversubscription": 4.0})
    fat = finder({"count": 16, "node": "DGX-H100"})
    ranks = range(128)
    assert thin.group(ranks).ring.bytes_per_s == pytest.approx(fat.group(ranks).ring.bytes_per_s)
    # 64 x 64 pairs of S/128 each over 8 x 400 / 4 GB/s at the reachable share.
    assert thin.group(ranks).all_to_all.bytes_per_s == pytest.approx(800e9 * NETWORK_SHARE / 32)
    assert "leaf uplink" in thin.group(ranks).all_to_all.limited_by


def test_a_two_node_tree_beats_the_ring_on_its_nics() -> None:
    """A tree moves S through the NICs of two nodes, a ring 2 S 15/16; measured 1.2 to 1.7 times the NICs."""
    found = finder({"count": 2, "node": "DGX-A100-80GB"}).group(range(16))
    assert found.tree.bytes_per_s > found.ring.bytes_per_s


def test_ten_thousand_gpus_are_one_box_looked_at_once() -> None:
    item = finder({"count": 1250, "node": "DGX-H100"})
    assert len(item.topology.kinds) == 1
    found = item.group(range(10_000))
    assert (found.boxes, found.inside) == (1250, 8)
    assert isinstance(found, GroupPaths) and item.group(range(10_000)) is found


def test_max_flow_equals_the_least_of_all_cuts() -> None:
    import itertools
    import random

    rng = random.Random(3)
    for _ in range(40):
        n = rng.randint(2, 6)
        arcs = {
            (a, b): float(rng.randint(1, 9))
            for a in range(n)
            for b in range(n)
            if a != b and rng.random() < 0.6
        }
        cuts = [
            sum(rate for (a, b), rate in arcs.items() if a in side and b not in side)
            for many in range(n - 1)
            for rest in itertools.combinations(range(1, n - 1), many)
            for side in [{0, *rest}]
        ]
        assert max_flow(arcs, 0, n - 1)[0] == pytest.approx(min(cuts))


# refusals


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(TangramError) as caught:
        topology_of(cluster_from_dict(data, HWDB, "my.yaml"))
    assert isinstance(caught.value, BadInputError | UnknownNameError)
    return str(caught.value)


def test_bad_graphs_are_named() -> None:
    data = full(cluster({"count": 2, "node": "DGX-A100-80GB"}))

    def changed(**topology: Any) -> dict[str, Any]:
        return data | {"topology": data["topology"] | topology}

    edges, vertices = data["topology"]["edges"], data["topology"]["vertices"]
    torn = [edge for edge in edges if "g0/leaf" not in edge["ends"]]
    assert "no NIC" in refusal(changed(edges=torn)) or "no path joins" in refusal(changed(edges=torn))
    lone = [edge for edge in edges if "0/gpu3" not in edge["ends"]]
    assert "0/gpu3" in refusal(changed(edges=lone))
    assert "no bandwidth" in refusal(changed(edges=[edges[0] | {"gb_per_s": 0.0}, *edges[1:]]))
    unknown = {"ends": edges[0]["ends"], "link": "NVLink33"}
    assert "NVLink3" in refusal(changed(edges=[unknown, *edges[1:]]))
    assert "edges[0].ends" in refusal(changed(edges=[edges[0] | {"ends": ["0/gpu0", "0/gpu99"]}]))
    assert "given twice" in refusal(changed(vertices=[*vertices, vertices[0]]))
    assert "15" in refusal(
        changed(vertices=[vertex for vertex in vertices if vertex["name"] != "0/gpu0"], edges=edges[:0])
    )
    assert "shape a derived fabric" in refusal(changed(rails=True))
    assert "unknown key" in refusal(changed(vertexes=[]))
    assert "without vertices" in refusal(changed(vertices=[]))


def test_ranks_that_do_not_exist_or_do_not_meet_are_refused() -> None:
    item = finder({"count": 2, "node": "DGX-A100-80GB"})
    with pytest.raises(InfeasibleError, match="0 to 15"):
        item.group((0, 16))
    with pytest.raises(InfeasibleError):
        item.group(())


# command line


def test_the_command_shows_writes_and_reads_back_a_graph(tmp_path: Any) -> None:
    shown = tangram("hw", "topology", "dgx-a100-h100")
    assert shown.code == 0
    assert "half to half: 380 GB/s, limited by g0/leaf - core (uplink)" in shown.out
    found = tangram("hw", "topology", "azure-c2", "--json").json
    assert found["vertices"]["gpu"] == 16 and found["all_gpus"]["ring"]["bytes_per_s"] > 0
    path = tmp_path / "own.json"
    path.write_text(tangram("hw", "topology", "azure-c2", "--full").out)
    again = tangram("hw", "topology", path, "--json").json
    assert not again["derived"]
    assert again["all_gpus"]["ring"]["bytes_per_s"] == pytest.approx(found["all_gpus"]["ring"]["bytes_per_s"])
    assert tangram("hw", "topology", "no-such-cluster").code == 2
