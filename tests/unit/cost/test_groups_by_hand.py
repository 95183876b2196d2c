"""Groups on islands whose links are round figures: what bridges, meshes, chips and stated paths change."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tangram_sim.clusters import Island, PathRates
from tangram_sim.cost.collectives.groups import (
    FILL_WITHOUT_LL128,
    MESHES,
    Group,
    group,
    mesh_share,
    network_rate,
)
from tangram_sim.cost.device import Rates
from tests.neutral import neutral_hwdb

HWDB = neutral_hwdb()
H100, A100, V100 = (HWDB.gpu(name) for name in ("H100-SXM5-80GB", "A100-SXM4-80GB", "V100-SXM2-16GB"))
NVLINK, PCIE, BRIDGE = (HWDB.link(name) for name in ("NVLink3", "PCIe4x16", "NVLink3-bridge"))


def island(nodes: int = 1, gpus: int = 8, **changes: object) -> Island:
    plain = Island("i", A100, nodes, gpus, NVLINK, 100e9, 10e-6)
    return replace(plain, **changes)  # type: ignore[arg-type]


def over(where: Island, *ranks: int, stride: int = 1) -> Group:
    return group(where, np.array(ranks), np.full(len(ranks), stride), HWDB)


@dataclass(frozen=True)
class Stated:
    """A graph that answers every question alike."""

    answer: PathRates

    def part(self, nodes: int, gpus_per_node: int) -> "Stated":
        return self

    def rates(self, ranks: int, stride: int) -> PathRates:
        return self.answer


def test_the_share_of_a_mesh_that_a_group_reaches() -> None:
    """n - 1 of the 7 links of a rank among 8, of the 3 among 4; all of a switch."""
    mesh, small = HWDB.link("xGMI-MI300X"), HWDB.link("xGMI-MI210")
    assert [float(mesh_share(mesh, n)) for n in (2, 5, 8, 16)] == [1 / 7, 4 / 7, 1, 1]
    assert [float(mesh_share(small, n)) for n in (2, 4)] == [1 / 3, 1]
    assert mesh_share(NVLINK, 2) == 1
    assert MESHES == {"xGMI-MI300X": 8, "xGMI-MI355X": 8, "xGMI-MI100": 4, "xGMI-MI210": 4}


@pytest.mark.parametrize(("gpus", "bridged"), [(2, True), (4, True), (3, False)])
def test_a_pair_is_bridged_where_pairs_fill_the_box(gpus: int, bridged: bool) -> None:
    """In boxes of three the second pair would straddle two bridges."""
    where = island(gpus=gpus, intra=PCIE, bridge=BRIDGE)
    pair = over(where, 2)
    expected = HWDB.collective("ring", BRIDGE if bridged else PCIE, A100.name)
    assert pair.ring.base_s == expected.base_s
    assert over(replace(where, nodes=2), gpus * 2).ring.base_s == HWDB.collective("ring", PCIE).base_s
    assert over(where, 1).ranks[0] == 1


def test_chips_that_differ_fill_slower_unless_the_oldest_has_the_fast_protocol() -> None:
    """Twice the fill below Hopper; Hopper beside Blackwell keeps it, and so does a pairwise exchange."""
    old = over(island(gpu=replace(A100, name=f"{A100.name}+{V100.name}")), 8)
    new = over(island(gpu=replace(H100, name=f"{H100.name}+B200-SXM-192GB")), 8)
    assert old.ring.fill_s == FILL_WITHOUT_LL128 * over(island(), 8).ring.fill_s
    assert old.pairwise.fill_s == over(island(), 8).pairwise.fill_s
    assert new.ring.fill_s == over(island(gpu=H100), 8).ring.fill_s
    assert new.switch is None and FILL_WITHOUT_LL128 == 2


def test_what_a_node_sends_out_is_the_least_of_nics_and_uplink_as_reached() -> None:
    reached = HWDB.network_efficiency.value
    assert network_rate(island(nodes=2), HWDB) == 100e9 * reached
    assert network_rate(island(nodes=2, network_bytes_per_s=30e9), HWDB) == 30e9 * reached
    two = over(island(nodes=2), 16, 8)
    assert two.network.bytes_per_s == pytest.approx([100e9 * reached] * 2)
    assert two.outside_bytes_per_s == pytest.approx(100e9 * reached / 8)
    assert two.network.hop_s == 10e-6 and two.inside.tolist() == [8, 8]
    none = over(island(nodes=2, nic_bytes_per_s=0.0), 16)
    assert none.network.bytes_per_s == none.outside_bytes_per_s == 1


def test_a_stated_graph_says_rates_and_detours() -> None:
    """Rates are the graph's; a ring's step takes as much longer as its hop is longer than the link's."""
    answer = PathRates(4, 50e9, 20e9, 10e9, 5e9, NVLINK.latency_s + 2e-6, 7e-6)
    where = island(nodes=2, paths=Stated(answer))
    plain, found = over(island(nodes=2), 8), over(where, 8)
    shares = [HWDB.collective(pattern, NVLINK, A100.name).rate_share for pattern in ("ring", "pairwise")]
    assert found.inside.tolist() == [4] and found.domains.tolist() == [2]
    assert found.ring.bytes_per_s == pytest.approx(50e9)
    assert found.pairwise.bytes_per_s == pytest.approx(20e9 * shares[1] / shares[0])
    assert found.network.bytes_per_s == pytest.approx(10e9) and found.outside_bytes_per_s == pytest.approx(
        5e9
    )
    assert found.ring.hop_s == pytest.approx(plain.ring.hop_s + 2e-6) and found.network.hop_s == 7e-6
    near = replace(answer, hop_inside_s=0.0, hop_outside_s=0.0)
    short = over(island(nodes=2, paths=Stated(near)), 8)
    assert short.ring.hop_s == plain.ring.hop_s and short.network.hop_s == 10e-6


def test_where_a_stated_graph_sets_no_limit_any_finite_figure_does() -> None:
    free = PathRates(8, float("inf"), float("inf"), float("inf"), float("inf"), 0.0, 0.0)
    found = over(island(paths=Stated(free)), 8)
    whole = NVLINK.bytes_per_s
    shares = [HWDB.collective(pattern, NVLINK, A100.name).rate_share for pattern in ("ring", "pairwise")]
    assert found.ring.bytes_per_s == pytest.approx(whole)
    assert found.pairwise.bytes_per_s == pytest.approx(whole * shares[1] / shares[0])
    assert found.network.bytes_per_s == pytest.approx(network_rate(island(), HWDB))
    cut = PathRates(8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    crawling = over(island(paths=Stated(cut)), 8)
    assert crawling.ring.bytes_per_s == crawling.network.bytes_per_s == crawling.outside_bytes_per_s == 1


def test_a_switch_adds_up_as_fast_as_stated_links_let_it() -> None:
    """Half of the links as rings reach them: half of the switch's rate; never more than the whole."""
    link = HWDB.link("NVLink4")
    where, share = island(gpu=H100, intra=link), HWDB.collective("ring", link, H100.name).rate_share
    whole = over(where, 8).switch
    assert whole is not None
    for part, expected in ((0.5, 0.5), (1.0, 1.0), (3.0, 1.0)):
        rate = part * share * link.bytes_per_s
        paths = Stated(PathRates(8, rate, rate, rate, rate, 0.0, 0.0))
        stated = over(replace(where, paths=paths), 8).switch
        assert stated is not None
        assert stated.bytes_per_s == pytest.approx(expected * whole.bytes_per_s)


@pytest.mark.parametrize(
    ("inside", "ranks", "stride", "bridged"), [(2, 2, 1, True), (1, 2, 1, False), (2, 2, 2, False)]
)
def test_stated_pairs_use_their_bridge(inside: int, ranks: int, stride: int, bridged: bool) -> None:
    """Neighbours in one box do; pairs over two boxes and pairs two apart do not."""
    paths = Stated(PathRates(inside, 1e9, 1e9, 1e9, 1e9, 0.0, 0.0))
    found = over(island(gpus=4, intra=PCIE, bridge=BRIDGE, paths=paths), ranks, stride=stride)
    assert (
        float(np.squeeze(found.ring.base_s))
        == HWDB.collective("ring", BRIDGE if bridged else PCIE, A100.name).base_s
    )


def test_rates_without_a_software_stack_hold_nothing_back() -> None:
    """Four bytes of master copy; no buffers, no workspace, no fragmentation unless said."""
    rates = Rates(1, 1, 1, 1, 1, 1, True, 1, 1, 1, False)
    assert (rates.reserved_bytes, rates.workspace_bytes, rates.fragmentation) == (0, 0, 0)
    assert rates.master_bytes == 4
