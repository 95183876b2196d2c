"""GPUs that a plan leaves idle: in whole groups, and in scale-up domains, e.g. 8 of the 72 of an NVL72."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from tangram_sim.clusters import Cluster
from tangram_sim.findings import Finding, Severity, declare

IDLE_IN_DOMAIN = declare(
    "idle-in-scale-up-domain",
    Severity.NOTE,
    "{group}: {idle:listed} GPUs of a scale-up domain stay idle; with them the step would be no shorter, or "
    "groups of ranks would lie across two domains",
)
IDLE_GPUS = declare(
    "idle-gpus", Severity.NOTE, "{idle} of {gpus} GPUs stay idle: {kinds:listed}{reason}{without_units}"
)


def idle_in_domains(cluster: Cluster, ranks: Iterable[int]) -> list[Finding]:
    """Findings on node groups with partly idle scale-up domains, given the ranks in use."""
    used = set(ranks)
    places: dict[tuple[int, int], list[int]] = {}
    first, taken = 0, Counter[int]()
    for group in cluster.node_group:
        node = cluster.groups[group].node
        domain = group, taken[group] // node.scale_up_nodes
        places.setdefault(domain, []).extend(range(first, first + node.gpus))
        taken[group] += 1
        first += node.gpus
    findings = []
    for number, kind in enumerate(cluster.groups):
        if kind.node.scale_up_nodes < 2:
            continue
        domains = [members for (of, _), members in places.items() if of == number]
        idle = [len(members) - len(used.intersection(members)) for members in domains]
        partly = [(left, len(all_)) for left, all_ in zip(idle, domains, strict=True) if 0 < left < len(all_)]
        if partly:
            left_of = [f"{count} of {size}" for count, size in partly]
            findings.append(IDLE_IN_DOMAIN(group=kind.name, idle=left_of))
    return findings


def idle_in_groups(cluster: Cluster, ranks: Iterable[int], dtype: str, why: str = "") -> list[Finding]:
    """A finding on the GPUs not in use, with those without units for `dtype` listed separately; else empty.

    `why` is the reason if a search knows one; it is empty for a given plan or another planner's. Where only
    GPUs without such units are idle there is no finding: a search leaves them out and reports that itself.
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
    reason = f"; {why}" if why else ""
    without = f"; {', '.join(lacking)}, without units for {dtype}" if lacking else ""
    figures = {"idle": idle, "gpus": cluster.gpus, "kinds": able}
    return [IDLE_GPUS(**figures, reason=reason, without_units=without)]
