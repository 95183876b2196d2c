"""Collectives and all-reduce trees over islands, sizes and algorithms: every figure as recorded."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from tangram_sim.clusters import Island
from tangram_sim.cost.algorithms import algorithm, algorithm_names
from tangram_sim.cost.collectives import groups, operations
from tangram_sim.cost.gentree import fixed_plans, gentree
from tangram_sim.cost.switchtree import tree_of
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import load_cluster
from tests.records import HWDB, hold

SIZES = np.array([64.0, 4096.0, 65536.0, 1e6, 3e7, 1e9])
# Name: (GPU, nodes, GPUs a node, link, NIC bytes/s, bridge of pairs).
ISLANDS = {
    "h100": ("H100-SXM5-80GB", 2, 8, "NVLink4", 50e9, ""),
    "a100": ("A100-SXM4-80GB", 4, 4, "NVLink3", 25e9, ""),
    "v100": ("V100-SXM2-16GB", 2, 8, "NVLink2", 3e9, ""),
    "t4": ("T4", 4, 4, "PCIe3x16", 3e9, ""),
    "a6000": ("RTX-A6000", 2, 4, "PCIe4x16", 12e9, "NVLink3-bridge"),
    "mi300x": ("MI300X", 2, 8, "xGMI-MI300X", 50e9, ""),
    "one node": ("H100-SXM5-80GB", 1, 8, "NVLink4", 0.0, ""),
}
TREES = ("azure-c1", "p3-p4d-p5", "lab-v100-a100-a6000", "consumer-3090-4090")


def island(name: str) -> Island:
    """An island of round figures."""
    gpu, nodes, gpus, link, nic, bridge = ISLANDS[name]
    plain = Island(name, HWDB.gpu(gpu), nodes, gpus, HWDB.link(link), nic, 8e-6)
    return replace(plain, bridge=HWDB.link(bridge)) if bridge else plain


def over(name: str) -> groups.Group:
    """All groups of an island: every size, neighbours and strided."""
    where = island(name)
    pairs = [
        (n, s)
        for n in (1, 2, 3, 4, 8, 16)
        for s in (1, 2, 4, 8)
        if n * s <= where.nodes * where.gpus_per_node
    ]
    sizes, strides = (np.array(column) for column in zip(*pairs, strict=True))
    return groups.group(where, sizes, strides, HWDB)


def told(ask: Callable[[], Any]) -> Any:
    """What is answered, or the words of the refusal."""
    try:
        return ask()
    except TangramError as refused:
        return str(refused)


def collectives(name: str) -> dict[str, Any]:
    """Seconds by operation and algorithm; one row a size, one column a group."""
    all_groups = over(name)
    columns = SIZES[:, np.newaxis]
    found: dict[str, Any] = {}
    for named in operations.ALGORITHMS:
        for ask in (operations.all_reduce_s, operations.all_gather_s, operations.reduce_scatter_s):
            found[f"{ask.__name__} {named}"] = told(lambda f=ask, a=named: f(columns, all_groups, a))
    for ask in (operations.broadcast_s, operations.send_receive_s, operations.all_to_all_s):
        found[ask.__name__] = told(lambda f=ask: f(columns, all_groups))
    found["uneven"] = operations.all_to_all_s(columns, all_groups, 1.7, 2)
    return found


def trees(name: str) -> dict[str, Any]:
    """All-reduce on a cluster's tree of switches: the plan that is found, fixed ones, what each takes."""
    tree = tree_of(load_cluster(name, HWDB), HWDB)
    found: dict[str, Any] = {"names": list(algorithm_names())}
    for size in (1e4, 1e8):
        for op in ("all_reduce", "reduce_scatter", "all_gather"):
            found[f"{op} {size:g}"] = told(lambda s=size, o=op: asdict(gentree(tree, s, o)))
        found[f"fixed {size:g}"] = {key: plan.seconds for key, plan in fixed_plans(tree, size).items()}
        for known in algorithm_names():
            found[f"{known} {size:g}"] = told(
                lambda k=known, s=size: algorithm(k)(tree, s, "all_reduce").seconds
            )
    return found


def recorded() -> dict[str, Callable[[], Any]]:
    """What is recorded, by name."""
    cases: dict[str, Callable[[], Any]] = {}
    for name in ISLANDS:
        cases[f"collectives of {name}"] = lambda n=name: collectives(n)
    for name in TREES:
        cases[f"trees of {name}"] = lambda n=name: trees(n)
    return cases


CASES = recorded()


@pytest.mark.parametrize("case", CASES)
def test_figures_are_as_recorded(case: str) -> None:
    hold("collectives", case, CASES[case]())
