"""Fleets: bought nodes join equal ones, and every rank belongs to one member."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tangram_sim.clusters import GroupLimit, Network
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.purchasing.fleets import Fleet, parse_purchases, standing_fleet

KINDS = ("H100x8", "A100-80GBx8", "L40Sx4")


def fleet_of(standing: str, *added: str, hwdb: Hwdb | None = None) -> Fleet:
    hwdb = hwdb or Hwdb.load(())
    bought = [purchase for item in added for purchase in parse_purchases(item, hwdb)]
    return standing_fleet(standing, hwdb).with_purchases(bought)


def test_bought_nodes_join_equal_ones_and_others_form_a_group() -> None:
    fleet = fleet_of("H100x8:2+A100-80GBx8:1", "L40Sx4:3", "H100x8:4")
    assert [(group.name, group.count) for group in fleet.cluster.groups] == [("g0", 6), ("g1", 1), ("g2", 3)]
    assert [member.nodes for member in fleet.members] == [2, 1, 3, 4]
    assert fleet.group_of == (0, 1, 2, 0)
    assert fleet.ranks() == (range(16), range(48, 56), range(56, 68), range(16, 48))
    assert fleet.used(range(15, 18)) == ((1, 1), (0, 0), (0, 0), (2, 1))


def test_a_limit_of_the_network_keeps_bought_nodes_apart() -> None:
    standing = load_cluster("H100x8:2+A100-80GBx8:1", Hwdb.load(()))
    limited = Network(between=(GroupLimit((0, 1), 1e9, 0.0),))
    for network in (limited, Network(oversubscription=2.0)):
        cluster = type(standing)(standing.name, standing.groups, network)
        bought = parse_purchases("H100x8:4", Hwdb.load(()))
        larger = Fleet.of(cluster).with_purchases(bought)
        assert [group.count for group in larger.cluster.groups] == [2, 1, 4]
        assert larger.cluster.network == network


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), min_size=1, max_size=3),
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(1, 3)), max_size=3, unique_by=lambda item: item[0]
    ),
    st.data(),
)
def test_members_share_out_all_ranks_and_what_is_retired_goes(
    standing: list[tuple[str, int]], added: list[tuple[str, int]], data: st.DataObject
) -> None:
    hwdb = Hwdb.load(())
    fleet = fleet_of(
        "+".join(f"{kind}:{count}" for kind, count in standing),
        *(f"{kind}:{count}" for kind, count in added),
        hwdb=hwdb,
    )
    gpus = sum(group.count * group.node.gpus for group in fleet.cluster.groups)
    assert sorted(rank for ranks in fleet.ranks() for rank in ranks) == list(range(gpus))
    owners = [fleet.cluster.groups[group].node for group in fleet.group_of]
    assert owners == [member.node for member in fleet.members]
    retired = {member.label: data.draw(st.integers(0, member.nodes)) for member in fleet.members[:-1]}
    rest = fleet.without(retired)
    left = {member.label: member.nodes - retired.get(member.label, 0) for member in fleet.members}
    assert {member.label: member.nodes for member in rest.members} == {k: n for k, n in left.items() if n}
    for number, group in enumerate(rest.cluster.groups):
        own = [item.nodes for item, place in zip(rest.members, rest.group_of, strict=True) if place == number]
        assert sum(own) == group.count


def test_nothing_is_left_is_refused() -> None:
    fleet = fleet_of("H100x8:2")
    with pytest.raises(BadInputError, match="keep one or buy one"):
        fleet.without({"g0": 2})
