"""From measured medians to rows of `hwdb/collectives`: which points make which row, and fallbacks by kind."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tangram_sim.cost.collectives.groups import SWITCH_RANKS
from tangram_sim.hwdb import Row
from tangram_validate.collectives.fitting import (
    PAIR_OPS,
    RING_OPS,
    PatternFit,
    Values,
    fit_in_switch,
    fit_network,
    fit_pairwise,
    fit_ring,
)
from tangram_validate.collectives.points import Point

FITTED = "2026-11-21"  # the day of the fit; rows must not depend on the day they are written again
HEADER = "link,gpu,pattern,library,version,parameter,value,sigma,n,source,date,note"
DISTILLED = "distilled in traces/collectives/medians.csv"
_FEWEST = 12  # points of a pattern that make a row of its own
# Where a fit starts, and what a parameter that no point speaks of stays near. PCIe boxes copy through
# nothing faster than PCIe, and lose rate once a ring passes a host bridge.
RING = {"base_s": 6e-6, "hop_s": 1e-6, "fill_s": 15e-6, "rate_share": 0.87, "copy_share": 1.8}
PAIR = {"base_s": 8e-6, "hop_s": 0.2e-6, "fill_s": 18e-6, "rate_share": 0.85, "copy_share": 2.5}
SWITCH = {"base_s": 20e-6, "fill_s": 60e-6, "rate_share": 0.6}
NETWORK = {"hop_s": 12e-6, "fill_s": 60e-6, "rate_share": 0.93}
PCIE_RING = {
    **{"base_s": 4.2e-6, "hop_s": 1.2e-6, "fill_s": 6e-6},
    **{"rate_share": 0.7, "bridged_share": 0.45, "copy_share": 2.0},
}
PCIE_PAIR = {
    **{"base_s": 6e-6, "hop_s": 0.9e-6, "fill_s": 5e-6},
    **{"rate_share": 0.6, "bridged_share": 0.4, "copy_share": 2.0},
}
# Of NICs that GPUs reach by RDMA: 0.92 and 0.96 on four nodes (H200 over EFA v3, B200 over EFA v4), where
# a ring must cross; 0.94 and 0.90 on two nodes of A100 and MI300X.
RDMA_SHARE = 0.95
SWITCHED = ("NVLink4", "NVLink5")  # generations whose switches add up
# Stacks that copy through the host or a user-space fabric reach a share of their own; the rest is RDMA.
OWN_STACKS = ("Slingshot-11", "GPUDirect-TCPX", "GPUDirect-TCPXO")


@dataclass(frozen=True, slots=True)
class Set:
    """One parameter set: a pattern on a class of links."""

    link: str
    gpu: str
    pattern: str
    fitted: PatternFit
    library: str
    version: str
    source: str
    note: str = ""

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Cells in the order of HEADER, four digits each: platforms differ in the tenth."""
        figures = {name: (value, self.fitted.sigma[name]) for name, value in self.fitted.values.items()}
        figures["error"] = (self.fitted.error, self.fitted.error / math.sqrt(2 * max(self.fitted.n, 1)))
        first = (self.link, self.gpu, self.pattern, self.library, self.version)
        for name, (value, sigma) in figures.items():
            cells = (name, f"{value:.4g}", f"{sigma:.2g}", str(self.fitted.n), self.source, FITTED, self.note)
            yield (*first, *cells)


# Groups within one domain ask for a network and never use it.
ANY_NETWORK = Set(
    "kind:network",
    "*",
    "network",
    PatternFit(NETWORK, dict.fromkeys(NETWORK, 0.0), 0.3, 0),
    "any",
    "",
    "assumed",
)


@dataclass(frozen=True, slots=True)
class ParameterScope:
    """What a parameter set is for: a class of links, and one GPU kind where boxes differ more than links."""

    link: str
    kind: str
    gpu: str = "*"


def scope_of(point: Point) -> ParameterScope:
    """NVLink sets are one per generation, whatever the GPU; PCIe sets one per GPU kind that was measured."""
    link = point.fabric.intra
    gpu = point.fabric.gpu if link.kind == "pcie" and link.name != "PCIe-SHM" else "*"
    return ParameterScope(link.name, link.kind, gpu)


def usable_for_ring(point: Point) -> bool:
    """Whether a ring must have carried the point."""
    chosen = point.op == "all_reduce" and point.ranks >= SWITCH_RANKS
    return point.op in RING_OPS and not (chosen and point.fabric.intra.name in SWITCHED)


def clean(point: Point) -> bool:
    """Whether a point can be fitted: timed, not held apart, no all-gather of oneCCL (sized by its shard)."""
    return (
        not point.apart and point.seconds > 0 and not (point.library == "oneCCL" and point.op == "all_gather")
    )


Fits: TypeAlias = dict[tuple[ParameterScope, tuple[int, ...]], list[Set]]


def fit_sets(points: Sequence[Point], known: Fits | None = None) -> list[Set]:
    """All parameter sets that `points` support: generations, kinds as fallback, networks.

    `known` keeps the sets of generations by their points (the objects), for callers who fit again and again.
    """
    known = {} if known is None else known
    points = [point for point in points if clean(point)]
    inside = [point for point in points if point.fabric.nic is None]
    scopes: dict[ParameterScope, list[Point]] = {}
    for point in inside:
        scopes.setdefault(scope_of(point), []).append(point)
    sets: list[Set] = []
    for scope in sorted(
        scopes, key=lambda parameter_scope: (parameter_scope.kind, parameter_scope.link, parameter_scope.gpu)
    ):
        key = scope, tuple(map(id, scopes[scope]))
        if key not in known:
            known[key] = _inner_sets(scope, scopes[scope])
        sets += known[key]
    sets += fallbacks(sets)
    sets += _network_sets([point for point in points if point.fabric.nic is not None], sets)
    return sets


def _inner_sets(scope: ParameterScope, points: Sequence[Point]) -> list[Set]:
    pcie = scope.kind == "pcie"
    found = []
    ring_points = [point for point in points if usable_for_ring(point)]
    if len(ring_points) < _FEWEST:
        return []
    prior = PCIE_RING if pcie else RING
    if scope.link == "PCIe-SHM":  # a measured rate, not a line rate: no bridge to fall off at, no copy seen
        prior = {"base_s": 10e-6, "hop_s": 5e-6, "fill_s": 20e-6, "rate_share": 0.6}
    ring = fit_ring(ring_points, prior)
    found.append(named(scope, "ring", ring, ring_points))
    pairs = [point for point in points if point.op in PAIR_OPS]
    if len(pairs) >= _FEWEST:
        found.append(named(scope, "pairwise", fit_pairwise(pairs, PCIE_PAIR if pcie else PAIR), pairs))
    added = [point for point in points if point.op == "all_reduce" and point.ranks >= SWITCH_RANKS]
    if scope.link in SWITCHED and len(added) >= _FEWEST:
        found.append(named(scope, "in_switch", fit_in_switch(added, SWITCH, ring.values), added))
    return found


def named(
    scope: ParameterScope, pattern: str, fitted: PatternFit, points: Sequence[Point], note: str = ""
) -> Set:
    """The set that `fitted` makes for `scope`, with what its points say of their origin."""
    kinds = sorted({point.label for point in points})
    said = f"{', '.join(kinds[:3])}{' and others' if len(kinds) > 3 else ''}"
    sources = sorted({name for point in points for name in point.source.split(";") if "/" in name})
    source = f"{' '.join(sources[:3])}{' and others' if len(sources) > 3 else ''}; {DISTILLED}"
    versions = sorted({name for point in points for name in point.version.split(";") if name})
    libraries = " ".join(sorted({point.library for point in points}))
    sizes = [point.size_bytes for point in points]
    ranks = sorted({point.ranks for point in points})
    reach = f"{min(sizes) / 1024:g} KiB to {max(sizes) / 2**20:g} MiB, ranks {' '.join(map(str, ranks))}"
    return Set(
        scope.link,
        scope.gpu,
        pattern,
        fitted,
        libraries or "unknown",
        " ".join(versions),
        source,
        f"{said}: {reach}{'; ' + note if note else ''}",
    )


def fallbacks(sets: Sequence[Set]) -> list[Set]:
    """For each kind of link the geometric mean of its generations, with the error that such a guess has."""
    found = []
    kinds = {"nvlink": "NVLink", "pcie": "PCIe", "xgmi": "xGMI"}
    for kind, prefix in kinds.items():
        for pattern in ("ring", "pairwise"):
            members = [
                row_set
                for row_set in sets
                if row_set.pattern == pattern
                and row_set.link.startswith(prefix)
                and row_set.link != "PCIe-SHM"
                and (row_set.library == "NCCL" or kind == "xgmi")
            ]
            if members:
                found.append(_mean(f"kind:{kind}", pattern, members))
    by_pattern = {row_set.pattern: row_set for row_set in found if row_set.link == "kind:nvlink"}
    for row_set in by_pattern.values():
        slow = {**row_set.fitted.values, "rate_share": 0.7}
        fitted = replace(row_set.fitted, values=slow, error=max(0.3, row_set.fitted.error), n=0)
        known = {found_.link for found_ in found if found_.pattern == row_set.pattern}
        for link in (name for name in ("kind:nvlink-bridge", "kind:xgmi", "*") if name not in known):
            note = "times as kind:nvlink; the share is a round figure"
            found.append(
                replace(row_set, link=link, fitted=fitted, library="any", source="assumed", note=note)
            )
    return found


def _mean(link: str, pattern: str, members: Sequence[Set]) -> Set:
    names = members[0].fitted.values
    # A generation that one kind of point never reached (two ranks only) does not speak of it.
    values = {
        name: math.exp(sum(math.log(member.fitted.values[name]) for member in members) / len(members))
        for name in names
    }
    sigma = {
        name: value
        * math.sqrt(
            sum(math.log(member.fitted.values[name] / value) ** 2 for member in members)
            / max(len(members) - 1, 1)
        )
        for name, value in values.items()
    }
    # Parameters that differ between generations move whole curves: the spread of latencies and rates.
    apart = max(sigma[name] / values[name] for name in ("base_s", "rate_share"))
    error = math.hypot(max(member.fitted.error for member in members), apart)
    fitted = PatternFit(values, sigma, error, sum(member.fitted.n for member in members))
    names_of = ", ".join(
        f"{member.link}{'' if member.gpu == '*' else ' ' + member.gpu}" for member in members
    )
    return Set(
        link,
        "*",
        pattern,
        fitted,
        "any",
        "",
        f"geometric mean of the rows of {names_of}",
        "fallback for generations without a row",
    )


def _network_sets(points: Sequence[Point], sets: Sequence[Set]) -> list[Set]:
    def inner(point: Point) -> tuple[Values, Values | None]:
        scope = scope_of(point)
        ring = _find(sets, "ring", scope)
        switch = _find(sets, "in_switch", scope) if scope.link in SWITCHED else None
        return ring or RING, switch

    families: dict[str, list[Point]] = {}
    for point in points:
        nic = point.fabric.nic
        # A pair of single ranks uses one channel of a few: that measures the pair, not the fabric.
        if nic is not None and point.op in RING_OPS and point.per_node > 1:
            families.setdefault(nic.name, []).append(point)
    rdma = [
        point
        for name, members in families.items()
        if name not in OWN_STACKS and not name.startswith("EFA")
        for point in members
    ]
    efa = [point for name, members in families.items() if name.startswith("EFA") for point in members]
    found = []
    base = NETWORK
    if rdma:
        fitted = fit_network(rdma, NETWORK, inner, RDMA_SHARE)
        base = dict(fitted.values)
        everywhere = replace(fitted, error=max(fitted.error, 0.25))
        found.append(
            named(
                ParameterScope("kind:network", "network"), "network", everywhere, rdma, "InfiniBand and RoCE"
            )
        )
        for prefix in ("IB-", "RoCE-"):
            for name in (
                f"{prefix}{speed}" for speed in ("EDR", "HDR", "NDR", "XDR", "100G", "200G", "400G", "800G")
            ):
                if name in families:
                    found.append(
                        named(ParameterScope(name, "network"), "network", fitted, rdma, "InfiniBand and RoCE")
                    )
    if efa:
        starting = {**base, "hop_s": 40e-6}
        fitted = fit_network(efa, starting, inner, RDMA_SHARE)
        for name in ("EFA-v1", "EFA-v2", "EFA-v3", "EFA-v4"):
            own = families.get(name, [])
            if len(own) >= _FEWEST:
                found.append(
                    named(
                        ParameterScope(name, "network"),
                        "network",
                        fit_network(own, fitted.values, inner, RDMA_SHARE),
                        own,
                    )
                )
            else:
                wider = replace(fitted, error=max(fitted.error, 0.4))
                found.append(
                    named(ParameterScope(name, "network"), "network", wider, efa, "all generations of EFA")
                )
    for name in OWN_STACKS:
        own = families.get(name, [])
        if len(own) >= _FEWEST:
            starting = {**base, "hop_s": 30e-6, "rate_share": 0.6}
            found.append(
                named(ParameterScope(name, "network"), "network", fit_network(own, starting, inner), own)
            )
    return found


def _find(sets: Sequence[Set], pattern: str, scope: ParameterScope) -> Values | None:
    generation = scope.link.partition("-")[0]
    for link in (scope.link, generation, f"kind:{scope.kind}", "*"):
        for gpu in dict.fromkeys((scope.gpu, "*")):
            for row_set in sets:
                if (row_set.pattern, row_set.link, row_set.gpu) == (pattern, link, gpu):
                    return row_set.fitted.values
    return None


def table_rows(sets: Sequence[Set]) -> list[Row]:
    """The sets as rows of the database, without a file between."""
    columns = HEADER.split(",")
    cells = (dict(zip(columns, row, strict=True)) for row_set in sets for row in row_set.rows())
    return [
        Row("collectives", "/".join(row[key] for key in ("link", "gpu", "pattern", "parameter")), row)
        for row in cells
    ]


def csv_text(sets: Sequence[Set]) -> str:
    """A file of `hwdb/collectives`."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(HEADER.split(","))
    for row_set in sets:
        writer.writerows(row_set.rows())
    return stream.getvalue()


def files(sets: Sequence[Set]) -> Mapping[str, str]:
    """Name and text of every file of `hwdb/collectives`: one per kind of link."""
    kinds: dict[str, list[Set]] = {
        "nvlink.csv": [],
        "pcie.csv": [],
        "xgmi.csv": [],
        "network.csv": [],
        "any.csv": [],
    }
    for row_set in sets:
        name = row_set.link.removeprefix("kind:").lower()
        if row_set.pattern == "network":
            kinds["network.csv"].append(row_set)
        elif name.startswith("nvlink"):
            kinds["nvlink.csv"].append(row_set)
        elif name.startswith("pcie"):
            kinds["pcie.csv"].append(row_set)
        else:
            kinds["xgmi.csv" if name.startswith("xgmi") else "any.csv"].append(row_set)
    return {name: csv_text(members) for name, members in kinds.items() if members}
