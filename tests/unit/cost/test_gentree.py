"""GenTree: never slower than a fixed plan, right where a count by hand is possible."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim import registry
from tangram_sim.cost.algorithms import algorithm, algorithm_names
from tangram_sim.cost.genmodel import GenModelParameters, candidates, ring
from tangram_sim.cost.gentree import FLAT, fixed_plan, fixed_plans, gentree
from tangram_sim.cost.switchtree import Tree, tree_of
from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_cluster
from tests.commands import tangram

HWDB = Hwdb.load()
MIB = 2.0**20

parameters = st.builds(
    GenModelParameters,
    alpha_s=st.floats(0, 1e-3),
    beta_s_per_byte=st.floats(1e-12, 1e-8),
    gamma_s_per_byte=st.floats(0, 1e-10),
    delta_s_per_byte=st.floats(0, 1e-9),
    epsilon_s_per_byte=st.floats(0, 1e-9),
    senders=st.integers(1, 20),
)
uplink = st.floats(0, 1e-8)
lowest = st.builds(Tree, st.just("low"), parameters, leaves=st.integers(1, 9), up_s_per_byte=uplink)
trees = st.recursive(
    lowest,
    lambda below: st.builds(
        Tree,
        st.just("up"),
        parameters,
        children=st.lists(below, min_size=1, max_size=4).map(tuple),
        up_s_per_byte=uplink,
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    tree=trees, size=st.floats(1.0, 1e10), op=st.sampled_from(("all_reduce", "reduce_scatter", "all_gather"))
)
def test_never_slower_than_the_best_fixed_plan(tree: Tree, size: float, op: str) -> None:
    best = gentree(tree, size, op).seconds
    for name, plan in fixed_plans(tree, size, op).items():
        assert best <= plan.seconds * (1 + 1e-12), name


@given(leaves=st.integers(2, 24), at=parameters, size=st.floats(1.0, 1e10))
@settings(max_examples=60, deadline=None)
def test_one_switch_is_genmodel(leaves: int, at: GenModelParameters, size: float) -> None:
    found = gentree(Tree("only", at, leaves=leaves), size).seconds
    fixed = min(plan.terms(leaves, size).seconds(at) for plan in candidates(leaves))
    assert found == pytest.approx(fixed, rel=1e-9)


def test_flat_plans_on_one_switch_are_the_table() -> None:
    """What links carry, counted on the tree, is B of the plan table where there is one level."""
    at = GenModelParameters(1e-5, 1e-9, 1e-11, 1e-10, 1e-11, 4)
    for leaves in (2, 5, 8, 13, 16):
        found = fixed_plans(Tree("only", at, leaves=leaves), 64e6)
        for plan in FLAT:
            expected = plan.terms(leaves, 64e6).seconds(at)
            assert found[plan.name].seconds == pytest.approx(expected, rel=1e-12), (plan.name, leaves)


def test_links_between_switches_are_loaded_as_counted_by_hand() -> None:
    """Two racks of four, only uplinks cost: CPS sends 2 S over each, halving-doubling S/2, a ring 7/8."""
    free = GenModelParameters(0.0, 0.0)
    rack = Tree("rack", free, leaves=4, up_s_per_byte=1.0)
    found = fixed_plans(Tree("core", free, children=(rack, rack)), 8.0)
    assert found["colocated-ps"].seconds == pytest.approx(2 * 4 * 4 / 8 * 8)
    assert found["halving-doubling"].seconds == pytest.approx(2 * 4 * 1 / 8 * 8)
    assert found["ring"].seconds == pytest.approx(2 * 7 / 8 * 8)
    assert found["reduce-broadcast"].seconds == pytest.approx(2 * 4 * 8)
    assert found["hierarchical-colocated-ps"].seconds == pytest.approx(8)


def test_blocks_are_gathered_where_unequal_children_would_flood_a_receiver() -> None:
    """A child of 2 beside one of 16: every owner of the small one hears eight; gathering first avoids it."""
    at = GenModelParameters(1e-6, 1e-10, epsilon_s_per_byte=1e-9, senders=1)
    small, large = (Tree(f"of {n}", at, leaves=n, up_s_per_byte=1e-12) for n in (2, 16))
    both = Tree("core", at, children=(small, large))
    found = gentree(both, 64 * MIB)
    assert any(step.rearranged for step in found.steps) or any(step.flat for step in found.steps)
    calm = gentree(both.with_parameters(epsilon_s_per_byte=0.0), 64 * MIB)
    assert not any(step.rearranged for step in calm.steps)
    assert calm.seconds < found.seconds


def test_a_cluster_is_seen_as_boxes_under_leaves_under_the_core() -> None:
    tree = tree_of(load_cluster("dgx-a100-h100", HWDB), HWDB)
    assert (tree.size, tree.depth, tree.name) == (64, 3, "core")
    nics, nvlink = HWDB.network_efficiency.value, HWDB.link_efficiency(HWDB.link("NVLink3")).value
    assert [child.size for child in tree.children] == [32, 32]
    assert 1 / tree.children[0].up_s_per_byte == pytest.approx(4 * 200e9 / 2 * nics)
    box = tree.children[0].children[0]
    assert 1 / box.at.beta_s_per_byte == pytest.approx(300e9 * nvlink)
    assert 1 / box.up_s_per_byte == pytest.approx(200e9 * nics)
    racks = {
        "nodes": [{"count": 8, "node": "DGX-H100"}],
        "topology": {"leaf_nodes": 4, "leaf_oversubscription": 2},
    }
    tree = tree_of(cluster_from_dict(racks, HWDB), HWDB)
    assert [child.size for child in tree.children] == [32, 32]
    assert 1 / tree.children[0].up_s_per_byte == pytest.approx(4 * 400e9 / 2 * nics)


def test_eight_by_eight_gains_over_the_ring_while_rounds_count() -> None:
    """64 H100 by calibrated figures: large at 32 MiB, none at 1 GiB where the ring is bandwidth-optimal."""
    tree = tree_of(cluster_from_dict({"nodes": [{"count": 8, "node": "DGX-H100"}]}, HWDB), HWDB)
    gains = [
        fixed_plans(tree, size * MIB)["ring"].seconds / gentree(tree, size * MIB).seconds
        for size in (32, 128, 1024)
    ]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.22
    assert gains[-1] == pytest.approx(1.0)


def test_incast_on_large_trees_gives_gains_of_the_published_size() -> None:
    """24 racks of 16 to 32 of 32 servers, 100 Gb/s: over the best of ring, RHD and CPS, 1.2 to 7.4 times."""
    for racks, leaves in ((24, 16), (32, 16), (32, 32)):
        at = GenModelParameters(30e-6, 1 / 12.5e9, 0.0, 1 / 20e9, 8e-12, 9)
        rack = Tree("rack", at, leaves=leaves, up_s_per_byte=1 / (12.5e9 * leaves / 2))
        core = Tree("core", at, children=(rack,) * racks)
        fixed = fixed_plans(core, 128 * MIB)
        best = min(fixed[name].seconds for name in ("ring", "halving-doubling", "colocated-ps"))
        assert 1.2 <= best / gentree(core, 128 * MIB).seconds <= 7.4


def test_algorithms_go_by_name_and_plug_ins_join(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree("only", GenModelParameters(1e-5, 1e-9), leaves=8)
    assert algorithm("ring")(tree, 1e6, "all_reduce").seconds == pytest.approx(ring(8, 1e6).seconds(tree.at))
    assert algorithm("gentree")(tree, 1e6, "all_reduce").seconds == gentree(tree, 1e6).seconds
    with pytest.raises(UnknownNameError, match="gentree"):
        algorithm("gentre")

    from importlib.metadata import EntryPoint

    theirs = EntryPoint("theirs", "tangram_sim.cost.gentree:gentree", registry.COLLECTIVES)
    monkeypatch.setattr(registry, "entry_points", lambda group: [theirs] if group == theirs.group else [])
    assert "theirs" in algorithm_names()
    assert algorithm("theirs")(tree, 1e6, "all_reduce").seconds == gentree(tree, 1e6).seconds


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--bytes", "0"), "above zero"),
        (("--bytes", "nan"), "finite number"),
        (("--op", "all_to_all"), "all_reduce"),
        (("--algorithm", "gentre"), "gentree"),
        (("--set", "epsilon"), "no number"),
        (("--set", "epsilon=-1"), "zero or more"),
        (("--set", "eps=1"), "epsilon"),
    ],
)
def test_bad_requests_are_refused_in_words(arguments: tuple[str, str], words: str) -> None:
    finished = tangram("collectives", "plan", "azure-c1", *arguments)
    assert finished.code == 2 and words in finished.err and "Traceback" not in finished.err


def test_the_command_prints_the_plan_by_level_beside_fixed_plans() -> None:
    found: dict[str, Any] = tangram("collectives", "plan", "azure-c1", "--bytes", "1e6", "--json").json
    assert found["gpus"] == 32 and found["steps"] and found["seconds"] > 0
    assert found["seconds"] <= min(found["others_s"].values()) * (1 + 1e-12)
    shown = tangram("collectives", "plan", "azure-c1", "--bytes", "1e6")
    assert shown.code == 0 and "halving-doubling" in shown.out
    single = tangram("collectives", "plan", "azure-c1", "--algorithm", "ring", "--json").json
    assert [step["plan"] for step in single["steps"]] == ["ring"]


@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather"])
def test_unequal_subtrees_give_no_plan_below_what_the_lone_gpu_must_receive(op: str) -> None:
    """One GPU beside a box of eight: 8 ninths of the buffer cross its own link, whatever the plan."""
    beta, size = 1e-10, 1e9
    at = GenModelParameters(0.0, beta)
    big, lone = (
        Tree(name, at, leaves=leaves, up_s_per_byte=beta) for name, leaves in (("big", 8), ("lone", 1))
    )
    tree = Tree("core", at, children=(big, lone))
    least = 8 / 9 * size * beta * (1 - 1e-9)
    assert gentree(tree, size, op).seconds >= least
    for name, plan in fixed_plans(tree, size, op).items():
        assert plan.seconds >= least, name
    with pytest.raises(BadInputError, match="unequal blocks"):
        fixed_plan("hierarchical-ring", tree, size, op)
