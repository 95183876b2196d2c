"""Random clusters: two to six kinds of node, odd counts, boxes of 1 to 16 GPUs, racks, slow NICs, PCIe."""

import random
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Form:
    """A way to build a node: which GPUs sit behind which link, how many, and behind what network."""

    gpus: tuple[str, ...]  # rows of hwdb/gpus.csv
    link: str  # row of hwdb/links.csv between the GPUs of a node
    sizes: tuple[int, ...]  # GPUs per node; repeated ones are likelier
    nic_gbps: tuple[float, ...]  # of the whole node
    rack: int = 1  # nodes that share one scale-up domain


FORMS = (
    Form(("H100-SXM5-80GB", "H200-SXM-141GB", "H20-96GB"), "NVLink4", (8, 8, 8, 4), (400, 1600, 3200)),
    Form(("A100-SXM4-80GB", "A100-SXM4-40GB"), "NVLink3", (8, 8, 4, 16), (100, 200, 800, 1600)),
    Form(("V100-SXM2-16GB", "V100-SXM2-32GB"), "NVLink2", (8, 4, 16), (25, 100, 400)),
    Form(("B200-HGX", "B300-HGX"), "NVLink5", (8,), (3200,)),
    Form(("GB200", "GB300"), "NVLink5", (4,), (1600,), rack=18),
    Form(("GH200-96GB",), "NVLink4", (1, 4), (200, 800)),
    Form(("MI300X", "MI325X"), "xGMI-MI300X", (8,), (400, 3200)),
    Form(("MI250X-GCD",), "xGMI-MI250X", (8,), (800,)),
    Form(("T4", "V100-PCIe-16GB", "RTX-2080Ti", "Titan-RTX"), "PCIe3x16", (1, 2, 3, 4, 8), (10, 25, 50)),
    Form(("L4", "A10", "A10G", "RTX-3090", "RTX-A6000"), "PCIe4x16", (1, 2, 3, 4, 8), (10, 25, 40, 100)),
    Form(("L40S", "RTX-4090", "RTX-6000-Ada", "A40"), "PCIe4x16", (1, 2, 4, 8), (20, 100, 400)),
    Form(("A100-PCIe-80GB", "A100-PCIe-40GB"), "PCIe4x16", (1, 2, 4, 8), (20, 80, 200)),
    Form(("H100-PCIe-80GB", "H100-NVL-94GB", "H200-NVL-141GB"), "PCIe5x16", (1, 2, 4, 8), (40, 200, 800)),
)
BRIDGED = ("RTX-3090", "RTX-A6000", "A40", "A100-PCIe-80GB", "H100-PCIe-80GB", "H100-NVL-94GB")


def cluster(rng: random.Random, name: str, most_nodes: int, most_gpus: int) -> dict[str, Any]:
    """The mapping of a cluster file: 2 to `most_nodes` nodes in all, of at most `most_gpus` each."""
    total = round(2 * (most_nodes / 2) ** rng.random())
    kinds = min(rng.choice((2, 2, 3, 3, 3, 4, 4, 5, 6)), total)
    groups = [_group(rng, most_gpus) for _ in range(kinds)]
    if kinds > 2 and rng.random() < 0.25:  # one kind behind two networks
        groups[1] = groups[0] | {"nic_gbps": groups[0]["nic_gbps"] / rng.choice((2, 4, 10))}
    counts = _counts(rng, total, kinds)
    nodes = [{"count": count, **group} for count, group in zip(counts, groups, strict=True)]
    found: dict[str, Any] = {"name": name, "nodes": nodes}
    network: dict[str, Any] = {}
    if rng.random() < 0.2:
        network["oversubscription"] = rng.choice((1.5, 2, 4))
    if rng.random() < 0.15:
        far = sorted(rng.sample(range(kinds), 2))
        network["between"] = [{"groups": far, "gbps": rng.choice((5, 20, 100)), "latency_us": 500}]
    return found | ({"network": network} if network else {})


def _group(rng: random.Random, most_gpus: int) -> dict[str, Any]:
    """One kind of node."""
    form = rng.choice(FORMS)
    gpu, gpus = rng.choice(form.gpus), min(rng.choice(form.sizes), most_gpus)
    nic = rng.choice(form.nic_gbps)
    if rng.random() < 0.12:
        nic /= rng.choice((4, 10))  # the network that was there before the GPUs came
    group: dict[str, Any] = {
        "gpu": gpu,
        "gpus": gpus,
        "intra_link": form.link if gpus > 1 else "none",
        "nic_gbps": nic,
        "nics": max(1, min(gpus, round(nic / 400))),
        "nic_latency_us": 10 if nic >= 100 else 50,
    }
    if gpu in BRIDGED and gpus % 2 == 0 and rng.random() < 0.4:
        group["links"] = [[first, first + 1] for first in range(0, gpus, 2)]
    if form.rack > 1:
        group["scale_up_nodes"] = form.rack
    return group


def _counts(rng: random.Random, total: int, kinds: int) -> list[int]:
    """`total` nodes over the kinds, each at least one: shares at random, or two of one kind among many."""
    if total >= 3 * kinds and rng.random() < 0.2:
        few = [rng.choice((1, 2, 2, 3)) for _ in range(kinds - 1)]
        return [*few, total - sum(few)]
    cuts = sorted(rng.sample(range(1, total), kinds - 1))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, total], strict=True)]
