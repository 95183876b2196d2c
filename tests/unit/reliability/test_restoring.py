"""Which tiers are left after a loss: on leaves of two nodes, on one leaf, and beside the plan."""

import pytest

from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.reliability.checkpointing import CheckpointTier
from tangram_sim.reliability.restoring import chosen, judged

TIERS = tuple(
    CheckpointTier(survives, 1.0, load_s=10.0 * cost, survives=survives)
    for cost, survives in enumerate(("process", "node", "leaf", "all"))
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    path = tmp_path_factory.mktemp("leaves") / "cluster.yaml"
    path.write_text(
        "name: leaves\ntopology: {leaf_nodes: 2}\n"
        "nodes:\n  - {count: 6, gpu: T4, gpus: 4, intra_link: PCIe3x16, nic_gbps: 25}\n"
    )
    return load_cluster(str(path), Hwdb.load())


@pytest.mark.parametrize(
    ("lost", "used", "left"),
    [
        ({0}, range(6), "node leaf all"),
        ({0, 1}, range(6), "leaf all"),  # neighbours, of one leaf
        ({0, 2}, range(6), "node all"),  # no neighbours, of two leaves
        ({0}, range(2), "node all"),  # all of the plan is on one leaf
        ({0, 1}, range(2), "all"),
        ({0, 4}, range(4), "node leaf all"),  # n4 is not the plan's: one leaf of it is hit
        ({5}, range(4), "process node leaf all"),  # nothing of the plan is gone
    ],
)
def test_a_tier_is_left_where_another_place_of_its_kind_holds_it(
    lost: set[int], used: range, left: str, cluster: Cluster
) -> None:
    verdicts = judged(TIERS, lost, used, cluster)
    assert " ".join(verdict.tier.name for verdict in verdicts if verdict.left) == left
    assert all(verdict.left != bool(verdict.reason) for verdict in verdicts)
    cheapest = chosen(verdicts)
    assert cheapest is not None and cheapest.tier.name == left.split(maxsplit=1)[0]
