"""GPUs that a plan leaves idle: of whole groups, and of scale-up domains, e.g. 8 of the 72 of an NVL72."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from tangram_sim.clusters import Cluster


def idle_in_domains(cluster: Cluster, ranks: Iterable[int]) -> list[str]:
    """A note for every node group of which some domains are used in part, given the ranks that are used."""
    used = set(ranks)
    places: dict[tuple[int, int], list[int]] = {}
    first, taken = 0, Counter[int]()
    for group in cluster.node_group:
        node = cluster.groups[group].node
        domain = group, taken[group] // node.scale_up_nodes
        places.setdefault(domain, []).extend(range(first, first + node.gpus))
        taken[group] += 1
        first += node.gpus
    notes = []
    for number, kind in enumerate(cluster.groups):
        if kind.node.scale_up_nodes < 2:
            continue
        domains = [members for (of, _), members in places.items() if of == number]
        idle = [len(members) - len(used.intersection(members)) for members in domains]
        partly = [(left, len(all_)) for left, all_ in zip(idle, domains, strict=True) if 0 < left < len(all_)]
        if partly:
            left = ", ".join(f"{count} of {size}" for count, size in partly)
            notes.append(
                f"{kind.name}: {left} GPUs of a scale-up domain stay idle; with them the step would be no "
                f"shorter, or groups of ranks would lie across two domains"
            )
    return notes


def idle_in_groups(cluster: Cluster, ranks: Iterable[int], dtype: str, why: str = "") -> list[str]:
    """A note on all GPUs that are not among the ranks in use, those without units for `dtype` told apart.

    `why` is what a search knows of the reason; a plan that was given, or one planner's only, has none. Where
    only GPUs without such units are idle there is no note: a search leaves them out and says so itself.
    """
    taken = Counter(cluster.node_group[bisect_right(cluster.first_rank, rank) - 1] for rank in ranks)
    able, lacking = list[str](), list[str]()
    idle = 0
    for number, group in enumerate(cluster.groups):
        left = group.count * group.node.gpus - taken[number]
        if left:
            has_units = group.node.gpu.peak_flop_per_s(dtype) > 0
            (able if has_units else lacking).append(f"{left} x {group.node.gpu.name} ({group.name})")
            idle += left
    if not able:
        return []
    words = [f"{idle} of {cluster.gpus} GPUs stay idle: {', '.join(able)}", *([why] if why else [])]
    if lacking:
        words.append(f"{', '.join(lacking)}, without units for {dtype}")
    return ["; ".join(words)]
