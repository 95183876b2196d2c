"""What a plan leaves idle, of scale-up domains and of whole groups, is said."""

from dataclasses import replace

from tangram_sim.clusters import Cluster, Node, NodeGroup
from tangram_sim.hwdb import Hwdb
from tangram_sim.placement.domains import idle_in_domains, idle_in_groups

HWDB = Hwdb.load()


def racks(trays: int) -> Cluster:
    """Trays of NVL72 racks beside one DGX."""
    tray: Node = HWDB.node("GB200-NVL72-tray")
    return Cluster("racks", (NodeGroup("gb", trays, tray), NodeGroup("dgx", 1, HWDB.node("DGX-H100"))))


def test_the_idle_gpus_of_racks_in_use_are_counted_and_of_others_not() -> None:
    """64 of one rack, all of another; a third rack and the DGX are not used at all."""
    (note,) = idle_in_domains(racks(54), range(8, 144))
    assert note.text.startswith("gb: 8 of 72 GPUs of a scale-up domain stay idle")


def test_full_racks_and_racks_that_end_early_leave_nothing_idle() -> None:
    """A domain has the trays that the cluster has of it."""
    assert idle_in_domains(racks(20), range(80)) == []


def test_domains_of_any_size_are_counted_one_by_one() -> None:
    """Against who sits where: of one node none is told; of two and more those that are used in part."""
    for size in (1, 2, 3):
        node = replace(HWDB.node("DGX-H100"), scale_up_nodes=size)
        cluster = Cluster("some", (NodeGroup("a", 5, node),))
        used = [*range(3, 8), *range(16, 24), *range(32, 35)]
        members = [range(8 * first, 8 * min(first + size, 5)) for first in range(0, 5, size)]
        left = [(sum(rank not in used for rank in member), len(member)) for member in members]
        partly = ", ".join(f"{idle} of {whole}" for idle, whole in left if 0 < idle < whole)
        found = [note.text for note in idle_in_domains(cluster, used)]
        assert [text.split(" GPUs")[0].replace(" and ", ", ") for text in found] == (
            [f"a: {partly}"] if size > 1 else []
        )


def test_idle_gpus_are_counted_by_group_where_they_have_the_format() -> None:
    """Two trays idle and four GPUs of the DGX; in a format that only the trays have, the DGX is not named."""
    used = [*range(64), *range(72, 76)]
    (note,) = idle_in_groups(racks(18), used, "bf16", "no faster plan found uses them")
    assert note.text == (
        "12 of 80 GPUs stay idle: 8 x GB200 (gb), 4 x H100-SXM5-80GB (dgx); no faster plan found uses them"
    )
    (note,) = idle_in_groups(racks(18), used, "fp4")
    idle = "12 of 80 GPUs stay idle: 8 x GB200 (gb)"
    assert note.text == f"{idle}; 4 x H100-SXM5-80GB (dgx), without units for fp4"
    (note,) = idle_in_groups(racks(18), used, "fp4", "why")
    assert note.text.startswith("12 of 80 GPUs stay idle: 8 x GB200 (gb); why; 4 x H100")
    assert idle_in_groups(racks(18), range(80), "bf16") == []
