"""All limits between groups at once are those of every pair."""

from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.cluster_file import cluster_from_dict
from tangram_sim.placement.between import group_limits

HWDB = Hwdb.load()
LIMITS = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 2)).map(lambda pair: tuple(sorted(pair))),
    st.integers(1, 400),
    max_size=4,
)
GROUPS = (
    {"count": 3, "gpu": "T4", "gpus": 4, "intra_link": "PCIe3x16", "nic_gbps": 25},
    {"count": 1, "gpu": "A100-SXM4-40GB", "gpus": 4, "intra_link": "NVLink3", "nic_gbps": 100},
    {"count": 7, "gpu": "V100-SXM2-16GB", "gpus": 4, "intra_link": "NVLink2", "nic_gbps": 50},
)


@given(LIMITS, st.floats(1.0, 8.0))
def test_all_pairs_are_as_each(limits, oversubscription):
    """Stated limits, those inside a group among them, and none."""
    between = [
        {"groups": list(pair), "gbps": gbps, "latency_us": 3.0 * gbps} for pair, gbps in limits.items()
    ]
    network = {"oversubscription": oversubscription, "between": between}
    cluster = cluster_from_dict({"name": "three", "nodes": list(GROUPS), "network": network}, HWDB, "x")
    rates, latencies = group_limits(cluster)
    for a in range(3):
        for b in range(3):
            assert cluster.group_limit(a, b) == (rates[a, b], latencies[a, b])
