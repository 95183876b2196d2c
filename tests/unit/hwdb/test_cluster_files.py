"""Cluster files: what they mean, what is refused and in which words, and that an embedded cluster replays."""

import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.clusters import Cluster
from tangram_sim.errors import BadInputError, TangramError, UnknownNameError
from tangram_sim.hwdb import Hwdb, ReadSet, cluster_from_dict, cluster_names, cluster_to_dict, load_cluster

HWDB = Hwdb.load()

LAB = """
name: lab-mix
nodes:
  - {count: 2, gpu: A100-SXM4-80GB, gpus: 8, intra_link: NVLink3, nic_gbps: 200}
  - {count: 4, gpu: V100-PCIe-16GB, gpus: 4, intra_link: PCIe3x16, nic_gbps: 25}
  - {count: 1, node: p4d.24xlarge}
network:
  oversubscription: 2.0
  between: [{groups: [0, 1], gbps: 100, latency_us: 30}]
"""


def group(**keys: object) -> dict[str, object]:
    return {"count": 2, "gpu": "T4", "gpus": 4, "intra_link": "PCIe3x16", "nic_gbps": 32} | keys


def build(*groups: dict[str, object], **keys: object) -> Cluster:
    return cluster_from_dict({"nodes": list(groups), **keys}, HWDB, "my.yaml")


def refusal(*groups: dict[str, object], **keys: object) -> str:
    with pytest.raises((BadInputError, UnknownNameError)) as caught:
        build(*groups, **keys)
    return str(caught.value)


# meaning


def test_the_example_of_the_manual_means_what_it_says(tmp_path):
    path = tmp_path / "some-file.yaml"
    path.write_text(LAB)
    cluster = load_cluster(str(path), HWDB)
    assert cluster.name == "lab-mix"
    assert [(g.name, g.count, g.node.gpus, g.node.gpu.name) for g in cluster.groups] == [
        ("g0", 2, 8, "A100-SXM4-80GB"),
        ("g1", 4, 4, "V100-PCIe-16GB"),
        ("g2", 1, 8, "A100-SXM4-40GB"),
    ]
    assert cluster.gpus == 2 * 8 + 4 * 4 + 8
    assert cluster.groups[0].node.nic_bytes_per_s == 25e9
    assert cluster.groups[2].node.nic_bytes_per_s == 50e9
    assert cluster.group_limit(0, 1) == (4 * 25e9 / 8 / 2, 30e-6)


def test_the_name_defaults_to_the_files_stem_and_json_means_the_same(tmp_path):
    path = tmp_path / "my-lab.json"
    path.write_text(json.dumps({"nodes": [group()]}))
    cluster = load_cluster(str(path), HWDB)
    assert cluster.name == "my-lab"
    assert cluster.groups == build(group()).groups


def test_keys_beside_node_override_the_row():
    row = HWDB.node("NC96ads_A100_v4")
    node = (
        build({"count": 1, "node": "NC96ads_A100_v4", "nic_gbps": 100, "usd_per_hour": 14.5}).groups[0].node
    )
    assert (node.nic_bytes_per_s, node.usd_per_hour) == (12.5e9, 14.5)
    assert (node.gpu, node.intra, node.bridges, node.name) == (row.gpu, row.intra, row.bridges, row.name)
    smaller = build({"count": 1, "node": "NC96ads_A100_v4", "gpus": 2}).groups[0].node
    assert smaller.bridges == ((0, 1),)
    assert build({"count": 1, "node": "NC96ads_A100_v4", "links": []}).groups[0].node.bridge is None


def test_bridges_are_of_the_gpus_own_class_where_it_has_one():
    own = build(group(gpu="RTX-A6000", links=[[3, 2], [0, 1]])).groups[0].node
    assert own.bridge == HWDB.bridge_of("RTX-A6000")
    assert own.bridge.name == HWDB.gpu_row("RTX-A6000")["link"]
    assert own.bridges == ((0, 1), (2, 3))
    generic = build(group(gpu="T4", links=[[0, 1]])).groups[0].node
    assert generic.bridge.name == "NVLink-bridge"


def test_a_single_gpu_node_needs_no_link():
    node = build({"count": 8, "gpu": "L4", "gpus": 1, "nic_gbps": 10}).groups[0].node
    assert node.intra.kind == "none"


def test_every_shipped_cluster_loads_by_name_and_covers_the_paper():
    names = cluster_names(HWDB)
    assert {"azure-c1", "azure-c2", "azure-c3"} <= set(names)
    for name in names:
        assert load_cluster(name, HWDB).name == name
    assert load_cluster("azure-c1", HWDB).gpus == 32
    assert load_cluster("azure-c2", HWDB).gpus == 16
    assert load_cluster("azure-c3", HWDB).gpus == 20


def test_an_overlay_may_bring_clusters(tmp_path):
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "ours.yaml").write_text(LAB.replace("name: lab-mix\n", ""))
    hwdb = Hwdb.load([tmp_path])
    assert "ours" in cluster_names(hwdb)
    assert load_cluster("ours", hwdb).name == "ours"


# refusals


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": 0}, ["nodes[1].count", "0", "1 or more"]),
        ({"count": -4}, ["nodes[1].count", "-4"]),
        ({"count": 2.5}, ["nodes[1].count", "2.5", "whole number"]),
        ({"count": True}, ["nodes[1].count", "True", "whole number"]),
        ({"count": 10**400}, ["nodes[1].count"]),
        ({"count": 99_999, "gpus": 8}, ["100001 nodes in all"]),
        ({"gpus": "8"}, ["nodes[1].gpus", "'8'", "without quotes"]),
        ({"gpus": None}, ["nodes[1].gpus", "missing"]),
        ({"nic_gbps": math.nan}, ["nodes[1].nic_gbps", "nan", "finite"]),
        ({"nic_gbps": math.inf}, ["nodes[1].nic_gbps", "inf"]),
        ({"nic_gbps": 0}, ["nodes[1].nic_gbps", "0"]),
        ({"nic_gbps": "25 Gb/s"}, ["nodes[1].nic_gbps", "25 Gb/s", "number"]),
        ({"gpu": "T44"}, ["nodes[1].gpu", "T44", "Nearest: T4"]),
        ({"gpu": None}, ["nodes[1]", "gpu", "node"]),
        ({"node": "p4d.24xlarge"}, ["nodes[1]", "p4d.24xlarge", "T4", "both given"]),
        ({"intra_link": "PCIe3x17"}, ["nodes[1].intra_link", "Nearest: ", "PCIe3x16"]),
        ({"intra_link": "none"}, ["nodes[1].intra_link", "missing"]),
        ({"intra_link": "IB-HDR"}, ["nodes[1].intra_link", "network"]),
        ({"links": [[0, 4]]}, ["nodes[1].links[0]", "[0, 4]", "0 to 3"]),
        ({"links": [[-1, 2]]}, ["nodes[1].links[0]", "0 to 3"]),
        ({"links": [[1, 1]]}, ["nodes[1].links[0]", "two GPUs"]),
        ({"links": [[0, 1], [1, 2]]}, ["nodes[1].links[1]", "one bridge"]),
        ({"links": [[0, 1, 2]]}, ["nodes[1].links[0]", "at most 2"]),
        ({"links": "0-1"}, ["nodes[1].links", "list"]),
        ({"bridge": "NVLink3-bridge"}, ["nodes[1].bridge", "without links"]),
        ({"links": [[0, 1]], "bridge": "IB-HDR"}, ["nodes[1].bridge", "network"]),
        ({"gpuss": 4}, ["nodes[1].gpuss", "unknown key", "did you mean gpus", "intra_link"]),
        ({"nics": 0}, ["nodes[1].nics"]),
        ({"scale_up_nodes": 0}, ["nodes[1].scale_up_nodes"]),
        ({"nic_latency_us": -1}, ["nodes[1].nic_latency_us", "0 or more"]),
        ({"labels": "fast"}, ["nodes[1].labels", "list"]),
    ],
)
def test_a_mistake_in_a_group_is_named_by_file_and_key(change, words):
    message = refusal(group(), group(**change))
    assert message.startswith("my.yaml: ")
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"oversubscription": 0.5}, ["network.oversubscription", "0.5", "1 or more"]),
        ({"oversubscribtion": 2}, ["network.oversubscribtion", "did you mean oversubscription"]),
        ({"between": [{"groups": [0, 2], "gbps": 1}]}, ["network.between[0].groups", "2", "0 to 1"]),
        ({"between": [{"groups": [0, -1], "gbps": 1}]}, ["network.between[0].groups", "-1"]),
        ({"between": [{"groups": [0], "gbps": 1}]}, ["network.between[0].groups", "at least 2"]),
        ({"between": [{"groups": [0, 1]}]}, ["network.between[0].gbps", "missing"]),
        ({"between": [{"groups": [0, 1], "gbps": -1}]}, ["network.between[0].gbps", "-1"]),
        ({"between": {"groups": [0, 1]}}, ["network.between", "list"]),
        ([], ["network", "mapping"]),
    ],
)
def test_a_mistake_in_the_network_is_named_by_key(network, words):
    message = refusal(group(), group(gpu="L4"), network=network)
    for word in words:
        assert word in message


def test_several_mistakes_are_reported_at_once():
    message = refusal(group(count=0, gpus=0), group(nic_gbps=-1))
    assert message.count("my.yaml: ") == 3


@pytest.mark.parametrize(
    "data", [None, [], "x", 3, {}, {"nodes": []}, {"nodes": None}, {"nodes": {}}, {1: 2}, {"nodes": [3]}]
)
def test_something_that_is_no_cluster_is_refused(data):
    with pytest.raises(BadInputError, match=r"my\.yaml"):
        cluster_from_dict(data, HWDB, "my.yaml")


def test_a_row_that_states_no_nic_rate_has_that_of_the_usual_machine_and_says_so():
    node = build({"count": 1, "node": "gpu_8x_v100"}).groups[0].node
    assert node.labels == ("assumed: 25 Gbit/s of NICs (as p3.16xlarge)",)
    assert node.nic_bytes_per_s == HWDB.node("p3.16xlarge").nic_bytes_per_s
    assert node.intra == HWDB.link("NVLink2"), "what the row states stays"
    stated = build({"count": 1, "node": "gpu_8x_v100", "nic_gbps": 10}).groups[0].node
    assert (stated.gpus, stated.nic_bytes_per_s, stated.labels) == (8, 1.25e9, ())


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nodes: [", "line"),
        ("nodes: []\nnodes: []\n", "twice"),
        ("", "nothing given"),
        ("!!python/object:os.system {}", "not YAML"),
        ("\x00", "YAML"),
        ("nodes:\n  - {count: 1, gpu: T4, gpus: 1, nic_gbps: .nan}\n", "nan"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, word):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(BadInputError, match=r"broken\.yaml") as caught:
        load_cluster(str(path), HWDB)
    assert word in str(caught.value)


@pytest.mark.parametrize("name", ["azure-c9", "", "x" * 5000, "a\0b", "a\0.yaml"])
def test_an_unknown_name_is_an_error_in_words(name):
    with pytest.raises(UnknownNameError, match="path of a cluster file"):
        load_cluster(name, HWDB)


@pytest.mark.parametrize("path", ["nowhere.yaml", "no/where", "."])
def test_a_path_that_cannot_be_read_is_an_error_in_words(path):
    with pytest.raises(BadInputError, match="cannot be read"):
        load_cluster(path, HWDB)


# an embedded cluster replays


@pytest.mark.parametrize("name", cluster_names(HWDB))
def test_a_shipped_cluster_survives_the_way_through_a_plan_file(name):
    cluster = load_cluster(name, HWDB)
    text = json.dumps(cluster_to_dict(cluster), allow_nan=False)
    assert cluster_from_dict(json.loads(text), HWDB) == cluster


def test_an_embedded_cluster_keeps_its_figures_under_another_database(tmp_path):
    cluster = load_cluster("azure-c2", HWDB)
    (tmp_path / "gpus.csv").write_text("name,memory_gb\nA100-PCIe-80GB,40\n")
    (tmp_path / "links.csv").write_text("name,gb_per_s\nPCIe4x16,1\n")
    other = Hwdb.load([tmp_path])
    assert cluster_from_dict(cluster_to_dict(cluster), other) == cluster
    assert load_cluster("azure-c2", other) != cluster


def test_replaying_under_the_same_database_gives_the_same_digest_for_its_hardware():
    made, replayed = ReadSet(), ReadSet()
    data = cluster_to_dict(cluster_from_dict({"nodes": [group()]}, HWDB.read_into(made)))
    cluster_from_dict(data, HWDB.read_into(replayed))
    assert replayed.digest() == made.digest()


def test_a_gpu_that_no_database_knows_may_travel_with_the_file():
    figures = {
        "vendor": "acme",
        "architecture": "X",
        "peaks_flop_per_s": {"bf16": 1e15},
        "memory_bytes": 1e11,
        "memory_bytes_per_s": 5e12,
    }
    cluster = build(group(gpu="X1", links=[[0, 1]]), hardware={"gpus": {"X1": figures}})
    assert cluster.groups[0].node.gpu.peaks == (("bf16", 1e15),)
    assert cluster_from_dict(cluster_to_dict(cluster), HWDB) == cluster
    bad = copy.deepcopy(figures)
    bad["peaks_flop_per_s"] = {"bf17": 1e15}
    assert "hardware.gpus.X1.peaks_flop_per_s.bf17" in refusal(
        group(gpu="X1"), hardware={"gpus": {"X1": bad}}
    )


one_line = st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), max_size=10)
sensible = st.fixed_dictionaries(
    {
        "count": st.integers(1, 5),
        "gpu": st.sampled_from(HWDB.gpu_names()),
        "gpus": st.integers(1, 9),
        "intra_link": st.sampled_from(
            [name for name in HWDB.link_names() if HWDB.link(name).kind not in ("network", "none")]
        ),
        "nic_gbps": st.floats(0.001, 1e6),
    },
    optional={
        "nic_latency_us": st.floats(0, 1e7),
        "usd_per_hour": st.floats(0, 1e4),
        "power_w": st.floats(0, 1e5),
        "nics": st.integers(1, 9),
        "scale_up_nodes": st.integers(1, 20),
        "host": one_line,
        "labels": st.lists(one_line, max_size=3),
    },
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(sensible, min_size=1, max_size=4), st.floats(1, 1e4), st.floats(0.001, 1e6), st.floats(0, 1e7)
)
def test_every_well_formed_cluster_replays_exactly(groups, oversubscription, gbps, latency):
    limit = {"groups": [len(groups) - 1, 0], "gbps": gbps, "latency_us": latency}
    cluster = build(*groups, network={"oversubscription": oversubscription, "between": [limit]})
    text = json.dumps(cluster_to_dict(cluster), allow_nan=False)
    assert cluster_from_dict(json.loads(text), HWDB) == cluster


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-2, 9),
        st.floats(),
        st.text(max_size=6),
        st.sampled_from(["T4", "p4d.24xlarge", "NVLink3", "IB-HDR", "none"]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 2), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = [*group(), "node", "links", "bridge", "scale_up_nodes", "nics", "labels", "host", "row", "typo"]


@settings(max_examples=250, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(KEYS), anything, max_size=3).map(lambda change: group(**change)),
        max_size=3,
    )
    | anything,
    anything,
    anything,
)
def test_any_mapping_gives_a_cluster_or_an_error_in_words(nodes, network, hardware):
    data = {"nodes": nodes}
    if network is not None:
        data["network"] = network
    if hardware is not None:
        data["hardware"] = hardware
    try:
        cluster = cluster_from_dict(data, HWDB, "my.yaml")
    except TangramError as error:
        assert str(error).startswith("my.yaml")
    else:
        assert cluster.gpus >= 1
        assert all(
            math.isfinite(g.node.nic_bytes_per_s) and g.node.nic_bytes_per_s > 0 for g in cluster.groups
        )


def test_a_link_that_travels_with_the_file_has_a_rate_that_can_be_divided_by():
    """1e-308 bytes/s, found by fuzzing: seconds of a transfer would be no number."""
    shipped = cluster_to_dict(load_cluster("dgx-a100-h100", HWDB))
    link = next(iter(shipped["hardware"]["links"].values()))
    link["bytes_per_s"] = 1e-308
    with pytest.raises(
        BadInputError, match=r"bytes_per_s: 1e-308 given; 0 \(no link\), or 1 and more bytes/s"
    ):
        cluster_from_dict(shipped, HWDB)
