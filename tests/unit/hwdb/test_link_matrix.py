"""`nvidia-smi topo -m` beside `nvidia-smi -q -x`: links, sockets, switches and NICs of a node, read and said.

The matrices are those that such machines print (layouts as in public reports: sgl-project/sglang issue 13973,
NVIDIA/nccl issues 933, 1505 and 1617, kubernetes issue 53497, the NVIDIA DGX-1 white paper for the mesh).
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.hwdb.inventories import FoundGroup, from_nvidia_smi
from tangram_sim.hwdb.link_matrix import link_matrix
from tangram_sim.topology.derive import topology_of
from tangram_sim.topology.forms import cube_mesh
from tests.commands import tangram

HWDB = Hwdb.load()
LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"


def smi(product: str, gpus: int, gen: int = 4, width: int = 16) -> str:
    """`nvidia-smi -q -x` of a node, cut to what is read."""
    link = (
        f"<pci><pci_gpu_link_info><pcie_gen><max_link_gen>{gen}</max_link_gen></pcie_gen><link_widths>"
        f"<max_link_width>{width}x</max_link_width></link_widths></pci_gpu_link_info></pci>"
    )
    item = f"<gpu><product_name>{product}</product_name>{link}</gpu>"
    return f"<nvidia_smi_log>{item * gpus}</nvidia_smi_log>"


def topo(
    between: Callable[[int, int], str],
    gpus: int,
    nics: Callable[[int, int], str] | None = None,
    count: int = 0,
    numa: Callable[[int], int] | None = None,
) -> str:
    """What the driver prints: tabs, an underlined header, affinities, rows of the NICs and a legend."""
    names = [f"GPU{gpu}" for gpu in range(gpus)] + [f"NIC{nic}" for nic in range(count)]
    heads = [f"\x1b[4m{names[0]}", *names[1:], "CPU Affinity", "NUMA Affinity", "GPU NUMA ID\x1b[0m"]
    lines = ["\t" + "\t".join(heads)]
    for gpu in range(gpus):
        cells = [" X " if other == gpu else between(gpu, other) for other in range(gpus)]
        cells += [nics(nic, gpu) for nic in range(count)] if nics else []
        node = numa(gpu) if numa else 0
        lines.append(
            "\t".join([names[gpu], *cells, f"{node * 56}-{node * 56 + 55},112-167", f"{node}", "", "N/A"])
        )
    for nic in range(count):
        cells = [nics(nic, gpu) for gpu in range(gpus)] if nics else []
        lines.append(
            "\t".join([names[gpus + nic], *cells, *(" X " if o == nic else "SYS" for o in range(count))])
        )
    return "\n".join(lines) + LEGEND


def switched(links: int) -> Callable[[int, int], str]:
    return lambda a, b: f"NV{links}"


def halves(near: str) -> Callable[[int, int], str]:
    return lambda a, b: near if a // 4 == b // 4 else "SYS"


def found(product: str, gpus: int, matrix: str, **slot: int) -> FoundGroup:
    [group] = from_nvidia_smi({"n.xml": smi(product, gpus, **slot), "n.topo": matrix}, HWDB).groups
    return group


def test_eight_h100_behind_a_switch_with_a_nic_each_and_one_for_storage() -> None:
    """NV18 to seven others are more links than a GPU has: a switch. The ninth NIC is beside no GPU."""
    matrix = topo(
        switched(18), 8, lambda nic, gpu: "PIX" if nic == gpu else "NODE" if nic // 4 == gpu // 4 else "SYS",
        9, lambda gpu: gpu // 4,
    )  # fmt: skip
    group = found("NVIDIA H100 80GB HBM3", 8, matrix, gen=5)
    assert group.entry == {
        "count": 1, "gpu": "H100-SXM5-80GB", "gpus": 8, "intra_link": "NVLink4", "sockets": 2,
        "pcie_switches": 8, "nics": 8, "nic_gbps": 3200.0,
        "labels": ["assumed: 400 Gbit/s a NIC (as DGX-H100)"],
    }  # fmt: skip
    assert group.inside.said == (
        "NV18 between all GPUs, through a switch: 450 GB/s a GPU", "8 NICs beside GPUs of 9 listed",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("product", "gpus", "links", "link", "how"),
    [
        ("NVIDIA A100-SXM4-80GB", 4, 4, "NVLink3", "direct"),
        ("NVIDIA H100 80GB HBM3", 4, 6, "NVLink4", "direct"),
        ("NVIDIA A100-SXM4-80GB", 4, 12, "NVLink3", "through a switch"),
        ("NVIDIA A100-SXM4-40GB", 8, 12, "NVLink3", "through a switch"),
        ("NVIDIA A800-SXM4-80GB", 8, 8, "NVLink3-A800", "through a switch"),
        ("Tesla V100-SXM2-32GB", 16, 6, "NVLink2", "through a switch"),
        ("NVIDIA H100 80GB HBM3", 2, 18, "NVLink4", "direct"),
    ],
)
def test_all_links_of_a_gpu_shared_out_or_behind_a_switch(
    product: str, gpus: int, links: int, link: str, how: str
) -> None:
    group = found(product, gpus, topo(switched(links), gpus))
    assert dict(group.inside.keys)["intra_link"] == link and f", {how}:" in group.inside.said[0]
    assert not group.inside.edges


def test_a_pcie_box_has_the_slots_sockets_and_switches_that_are_printed() -> None:
    """Pairs below one switch on two sockets, one NIC on the first; the slots are eight lanes wide."""

    def between(a: int, b: int) -> str:
        return "PIX" if a // 2 == b // 2 else "PHB" if a // 4 == b // 4 else "SYS"

    matrix = topo(between, 8, lambda nic, gpu: "PHB" if gpu < 4 else "SYS", 1, lambda gpu: gpu // 4)
    keys = dict(found("NVIDIA L40S", 8, matrix, gen=4, width=8).inside.keys)
    assert keys["intra_link"] == "PCIe4x8"
    assert (keys["sockets"], keys["pcie_switches"], keys["nics"]) == (2, 4, 1)
    alone = dict(found("NVIDIA L40S", 8, topo(halves("NODE"), 8, numa=lambda gpu: gpu // 4)).inside.keys)
    assert (alone["sockets"], alone["pcie_switches"]) == (2, 0) and "nics" not in alone


def test_boards_of_two_gpus_are_pairs_whatever_links_a_kind_has() -> None:
    """More links than the usual board has are no switch where no GPU has a second neighbour."""
    boards = topo(lambda a, b: "NV12" if a // 2 == b // 2 else "SYS", 4)
    for product in ("NVIDIA A800-SXM4-80GB", "NVIDIA H800", "NVIDIA A100-SXM4-80GB"):
        assert [edge[:2] for edge in found(product, 4, boards).inside.edges] == [(0, 1), (2, 3)]


def test_two_gpus_on_a_bridge_or_on_none() -> None:
    bridged = found("NVIDIA A100 80GB PCIe", 2, topo(switched(12), 2))
    assert bridged.entry["links"] == [[0, 1]] and bridged.entry["bridge"] == "NVLink3-bridge"
    assert bridged.entry["intra_link"] == "PCIe4x16"
    plain = found("NVIDIA GeForce RTX 4090", 2, topo(lambda a, b: "PHB", 2))
    assert plain.inside.said[0] == "PCIe alone, no NVLink" and "links" not in plain.entry
    hidden = found("NVIDIA H100 80GB HBM3", 2, topo(lambda a, b: "PHB", 2), gen=5)
    assert hidden.entry["intra_link"] == "PCIe5x16" and "virtual machine" in hidden.inside.said[0]


def cube(order: tuple[int, ...]) -> Callable[[int, int], str]:
    """The mesh of DGX-1 with its GPUs numbered in another order."""
    mesh = cube_mesh(HWDB.link("NVLink2"), 8)

    def cell(a: int, b: int) -> str:
        low, high = sorted((order[a], order[b]))
        rate = mesh.get((low, high), 0.0)
        return f"NV{round(rate / 25e9)}" if rate else "NODE" if order[a] // 4 == order[b] // 4 else "SYS"

    return cell


def test_a_hybrid_mesh_is_known_and_one_in_another_order_is_stated_as_a_graph(tmp_path: Path) -> None:
    usual = found("Tesla V100-SXM2-16GB", 8, topo(cube(tuple(range(8))), 8, numa=lambda gpu: gpu // 4))
    assert dict(usual.inside.keys)["intra_link"] == "NVLink2" and not usual.inside.edges
    order = (0, 2, 1, 3, 4, 5, 6, 7)
    for name in ("a", "b"):
        (tmp_path / f"{name}.xml").write_text(smi("Tesla V100-SXM2-16GB", 8, gen=3))
    (tmp_path / "all.topo").write_text(topo(cube(order), 8, numa=lambda gpu: gpu // 4))
    texts = [tmp_path / name for name in ("a.xml", "b.xml", "all.topo")]
    made = tangram("cluster", "from-nvidia-smi", *texts, "-o", tmp_path / "v100.yaml")
    assert made.code == 0, made.err
    cluster = load_cluster(str(tmp_path / "v100.yaml"), HWDB)
    [kind] = topology_of(cluster).kinds
    links = {
        tuple(sorted((kind.names[e.a], kind.names[e.b]))): e.bytes_per_s
        for e in kind.edges
        if e.kind == "nvlink"
    }
    assert links["gpu0", "gpu3"] == 50e9 and links["gpu0", "gpu1"] == 25e9
    assert ("gpu3", "gpu4") not in links and len(links) == 16
    assert {end for pair in links for end in pair} == {f"gpu{n}" for n in range(8)}
    assert tangram("islands", tmp_path / "v100.yaml").code == 0


def test_a_gpu_with_fewer_links_than_its_board_has_is_not_overlooked(tmp_path: Path) -> None:
    """Two links of GPU 3 are down: 16 of 18, to the switch; the others keep theirs."""
    (tmp_path / "n.xml").write_text(smi("NVIDIA H100 80GB HBM3", 8, gen=5))
    (tmp_path / "n.topo").write_text(topo(lambda a, b: "NV16" if 3 in (a, b) else "NV18", 8))
    made = tangram("cluster", "from-nvidia-smi", tmp_path / "n.xml", tmp_path / "n.topo")
    assert made.code == 0 and "16 of 18 at the GPU with fewest" in made.out
    stated = yaml.safe_load(made.out)["topology"]["edges"]
    rates = {tuple(edge["ends"]): edge["gb_per_s"] for edge in stated if edge["link"] == "NVLink4"}
    assert rates == {(f"0/gpu{gpu}", "0/nvswitch"): 400 if gpu == 3 else 450 for gpu in range(8)}


def test_uneven_sockets_are_said_and_left_to_what_is_usual() -> None:
    matrix = topo(switched(18), 8, numa=lambda gpu: (0, 0, 0, 1, 2, 2, 2, 3)[gpu])
    group = found("NVIDIA H100 80GB HBM3", 8, matrix)
    assert "sockets" not in group.entry
    assert "GPUs on host bridges as 0 1 2 | 3 | 4 5 6 | 7: uneven, left to what is usual" in group.inside.said


def test_groups_of_a_socket_hold_every_gpu_once() -> None:
    matrix = link_matrix(
        topo(lambda a, b: "PIX" if (a + b) % 2 == 0 else "SYS", 6, numa=lambda gpu: gpu % 2), "x"
    )
    for groups in (matrix.sockets(), matrix.switches()):
        assert sorted(gpu for group in groups for gpu in group) == list(range(6))
        assert all(a < b for group in groups for a, b in pairwise(group)) and len(groups) == 2


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"n.topo": topo(switched(18), 8)}, "a matrix names no GPU"),
        ({"n.xml": smi("NVIDIA L40S", 4), "n.topo": topo(switched(4), 4)}, "L40S has none"),
        ({"n.xml": smi("NVIDIA L40S", 4), "n.topo": topo(halves("PHB"), 8)}, "8 GPUs, and n.xml lists 4"),
        (
            {
                "n.xml": smi("NVIDIA L40S", 4),
                "a.topo": topo(halves("PHB"), 4),
                "b.topo": topo(halves("PHB"), 4),
            },
            "of which node?",
        ),
        ({"n.xml": smi("Tesla T4", 2), "n.topo": topo(lambda a, b: "ODD", 2)}, "'ODD' between GPU0 and GPU1"),
        ({"n.xml": smi("Tesla T4", 2), "n.topo": topo(lambda a, b: ("PIX", "PHB")[a], 2)}, "both ways"),
        ({"n.xml": smi("Tesla T4", 2), "n.topo": "GPU0 GPU1\nGPU0 X PIX\n"}, "no row of GPU1"),
        ({"n.xml": smi("Tesla T4", 2), "n.topo": "GPU0 GPU2\nGPU0 X PIX\n"}, "in order"),
    ],
)
def test_matrices_that_contradict_are_refused(files: dict[str, str], words: str) -> None:
    with pytest.raises(BadInputError, match=words.replace("?", r"\?")):
        from_nvidia_smi(files, HWDB)
