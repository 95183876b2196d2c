"""Seconds of one uncontended collective: groups of ranks, algorithms over them, and NCCL's choice."""

from tangram_sim.cost.collectives.groups import Group, group, network_rate, spanning
from tangram_sim.cost.collectives.operations import (
    ALGORITHMS,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    broadcast_s,
    reduce_scatter_s,
    send_receive_s,
    transfer_s,
)

__all__ = [
    "ALGORITHMS",
    "Group",
    "all_gather_s",
    "all_reduce_s",
    "all_to_all_s",
    "broadcast_s",
    "group",
    "network_rate",
    "reduce_scatter_s",
    "send_receive_s",
    "spanning",
    "transfer_s",
]
