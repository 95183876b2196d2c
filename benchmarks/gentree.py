"""GenTree: CPU seconds of planning on 4,096 servers, and gains on scenarios like the published ones.

`python -m benchmarks gentree` prints both; docs/models/gentree.md reads the gains.
"""

import random
import time
from dataclasses import replace

from tangram_sim.cost.genmodel import GenModelParameters
from tangram_sim.cost.gentree import fixed_plans, gentree
from tangram_sim.cost.switchtree import Tree, tree_of
from tangram_sim.hwdb import Hwdb, cluster_from_dict
from tangram_sim.units import MIB

SERVER = GenModelParameters(30e-6, 1 / 12.5e9, 0.0, 1 / 20e9, 0.0, 9, "100 Gb/s servers, assumed")


def racks(
    count: int, leaves: int, at: GenModelParameters, oversubscription: float = 2.0, seed: int = -1
) -> Tree:
    """Racks of servers under one core; with a seed, every rack differs in servers and uplink."""
    rng = random.Random(seed)
    sizes = [leaves] * count
    if seed >= 0:
        for _ in range(count * 4):  # move single servers, so that the total stays
            a, b = rng.randrange(count), rng.randrange(count)
            if sizes[a] > leaves // 2:
                sizes[a] -= 1
                sizes[b] += 1
    return Tree(
        "core",
        at,
        children=tuple(
            Tree(
                f"rack{index}" if seed >= 0 else "rack",
                at,
                leaves=size,
                up_s_per_byte=at.beta_s_per_byte
                * oversubscription
                / size
                * (rng.uniform(1, 2) if seed >= 0 else 1),
            )
            for index, size in enumerate(sizes)
        ),
    )


def planning() -> dict[str, float]:
    """CPU seconds of one plan."""
    incast = replace(SERVER, epsilon_s_per_byte=8e-12)
    cases = {
        "64 x 64 servers": racks(64, 64, incast),
        "4,096 servers in 64 unequal racks": racks(64, 64, incast, seed=1),
        "4,096 servers in 512 unequal racks": racks(512, 8, incast, seed=1),
    }
    found = {}
    for name, tree in cases.items():
        begin = time.process_time()
        gentree(tree, 256 * MIB)
        found[name] = time.process_time() - begin
    return found


def gains() -> dict[str, float]:
    """Time of the best of ring, halving-doubling and co-located servers (or of the ring) over GenTree's."""
    found = {}
    hwdb = Hwdb.load()
    for node in ("DGX-H100", "DGX-A100-80GB"):
        tree = tree_of(cluster_from_dict({"nodes": [{"count": 8, "node": node}]}, hwdb), hwdb)
        for size in (32, 128, 256, 1024):
            found[f"8 x {node}, {size} MiB, over the ring"] = over(tree, size * MIB, ("ring",))
    for gbps, passes in ((100, 1.0), (100, 20.0)):
        keys = {"count": 8, "node": "DGX-A100-80GB", "nic_gbps": gbps, "nics": 1}
        tree = tree_of(cluster_from_dict({"nodes": [keys]}, hwdb), hwdb)
        tree = tree.with_parameters(delta_s_per_byte=tree.at.delta_s_per_byte * passes)
        for size in (32, 128, 1024):
            name = f"8 x 8 A100, one NIC of {gbps} Gb/s, delta x {passes:g}, {size} MiB, over the ring"
            found[name] = over(tree, size * MIB, ("ring",))
    three = ("ring", "halving-doubling", "colocated-ps")
    for count, leaves in ((24, 16), (32, 16), (32, 32)):
        for epsilon in (0.0, 8e-12, 8e-11):
            tree = racks(count, leaves, replace(SERVER, epsilon_s_per_byte=epsilon))
            for size in (16, 128, 1024):
                name = f"{count * leaves} servers, epsilon {epsilon:g}, {size} MiB, over the best of three"
                found[name] = over(tree, size * MIB, three)
    return found


def over(tree: Tree, size: float, names: tuple[str, ...]) -> float:
    """How much faster GenTree's all-reduce is than the best of some fixed plans."""
    fixed = fixed_plans(tree, size)
    return min(fixed[name].seconds for name in names) / gentree(tree, size).seconds
