"""Limits between all pairs of node groups at once; pair by pair takes seconds for 1,000 groups."""

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster


def group_limits(cluster: Cluster) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`Cluster.group_limit` of all pairs of groups: (groups, groups) of bytes/s, and of seconds."""
    uplinks = np.array([group.count * group.node.nic_bytes_per_s for group in cluster.groups])
    own = np.array([group.node.nic_latency_s for group in cluster.groups])
    rates: NDArray[np.float64] = np.minimum.outer(uplinks, uplinks) / cluster.network.oversubscription
    latencies: NDArray[np.float64] = np.maximum.outer(own, own)
    np.fill_diagonal(rates, np.inf)
    for limit in cluster.network.between:
        for pair in {limit.groups, limit.groups[::-1]}:
            rates[pair] = min(rates[pair], limit.bytes_per_s)
            latencies[pair] = max(latencies[pair], limit.latency_s)
    return rates, latencies
