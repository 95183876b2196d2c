"""One's own fabric: from a log to rows of hwdb/collectives, and whether it reaches what it should."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.collectives import CollectiveParameters
from tangram_sim.units import gbps_to_bytes_per_s
from tangram_validate.collectives import rows
from tangram_validate.collectives.fabrics import MeasuredFabric
from tangram_validate.collectives.fitting import (
    LONG_BYTES,
    PAIR_OPS,
    RING_OPS,
    Values,
    fit_in_switch,
    fit_network,
    fit_pairwise,
    fit_ring,
    slowed_ring,
)
from tangram_validate.collectives.logs import Log
from tangram_validate.collectives.points import Point
from tangram_validate.collectives.predict import busbw_factor, predict

LEAST_REACHED = 0.6  # of what the parts allow; below it something is broken or misconfigured
MOST_REACHED = 1.5  # above it the parts must be others than those named, or a unit is wrong
FEWEST_SIZES = 4  # a curve of three parameters


@dataclass(frozen=True, slots=True)
class FabricParts:
    """What the user says of the fabric; "" or 0.0: what the log or the database says."""

    gpu: str = ""
    link: str = ""
    nic: str = ""
    nic_gbps: float = 0.0  # of one node


@dataclass(frozen=True, slots=True)
class Reached:
    """Bus bandwidth of one curve at its largest size against what its parts allow."""

    op: str
    ranks: int
    nodes: int
    size_bytes: float
    busbw_bytes_per_s: float
    expected_bytes_per_s: float

    @property
    def share(self) -> float:
        """Measured bus bandwidth over the expected one."""
        return self.busbw_bytes_per_s / self.expected_bytes_per_s

    @property
    def faulty(self) -> bool:
        """Whether the curve reaches too little to be the model's fault."""
        return self.share < LEAST_REACHED

    @property
    def implausible(self) -> bool:
        """Whether the curve reaches more than parts like these can."""
        return self.share > MOST_REACHED


def points_of(log: Log, parts: FabricParts, source: str, hwdb: Hwdb) -> list[Point]:
    """The log's measurements on the fabric that log and user describe."""
    given = parts.gpu or log.gpu
    if not given and not parts.link:
        raise BadInputError(f"{source}: the log names no GPU; give `gpu=` or `link=`")
    gpu = hwdb.gpu(given).name if given else "*"
    link = hwdb.link(parts.link or hwdb.gpu_row(gpu)["link"])
    if link.kind == "none":
        raise BadInputError(f"{gpu} has no link but PCIe; give `link=`, such as PCIe4x16")
    crosses = any(measurement.nodes > 1 for measurement in log.measurements)
    if crosses and not (parts.nic and parts.nic_gbps > 0):
        raise BadInputError(
            f"{source}: ranks on several nodes; give `nic=` (a network row of links.csv, such as IB-NDR) and "
            "`nic_gbps=`, what all NICs of one node move together in Gbit/s"
        )
    nic = hwdb.link(parts.nic) if crosses else None
    if nic is not None and nic.kind != "network":
        raise BadInputError(f"`nic={parts.nic}` given; that link is of kind {nic.kind}, a network is wanted")
    architectures = hwdb.architectures(hwdb.gpu(gpu)) if given else frozenset({"unknown"})
    inside = MeasuredFabric(gpu, architectures, link, None, 0.0)
    across = replace(inside, nic=nic, node_bytes_per_s=gbps_to_bytes_per_s(parts.nic_gbps))
    return [
        Point(
            line=index,
            label=given or parts.link,
            where=parts.nic if measurement.nodes > 1 else "",
            fabric=across if measurement.nodes > 1 else inside,
            op=measurement.op,
            ranks=measurement.ranks,
            nodes=measurement.nodes,
            size_bytes=measurement.size_bytes,
            dtype="",
            seconds=measurement.seconds,
            apart="",
            library=log.library,
            version=log.version,
            algorithm="",
            source=source,
        )
        for index, measurement in enumerate(log.measurements)
    ]


def reached(points: Sequence[Point], hwdb: Hwdb) -> list[Reached]:
    """For each curve that is long enough: its last bus bandwidth against the prediction for its parts."""
    curves: dict[tuple[str, int, int], Point] = {}
    for point in points:
        key = (point.op, point.ranks, point.nodes)
        if point.size_bytes >= LONG_BYTES and (
            key not in curves or point.size_bytes > curves[key].size_bytes
        ):
            curves[key] = point
    answers = predict(list(curves.values()), hwdb)
    found = []
    for answer in answers:
        point = answer.point
        if not answer.seconds > 0:
            raise BadInputError(f"{point.op} of {point.ranks} rank: nothing moves; give the log of 2 or more")
        moved = busbw_factor(point.op, point.ranks) * point.size_bytes
        figures = (moved / point.seconds, moved / answer.seconds)
        found.append(Reached(point.op, point.ranks, point.nodes, point.size_bytes, *figures))
    return found


def fit_own(points: Sequence[Point], hwdb: Hwdb, source: Path) -> list[rows.Set]:
    """Parameter sets of the user's own fabric, near the database's where the log says nothing."""
    sizes = {point.size_bytes for point in points}
    if len(sizes) < FEWEST_SIZES:
        raise BadInputError(
            f"{source}: {len(sizes)} sizes; {FEWEST_SIZES} or more are wanted (nccl-tests -b 1K -e 1G -f 2)"
        )
    point = points[0]
    scope = rows.scope_of(point)
    inside = [item for item in points if item.fabric.nic is None]
    found: list[rows.Set] = []
    ring = _prior("ring", point, hwdb)
    for pattern, chosen in (
        ("ring", [item for item in inside if rows.usable_for_ring(item)]),
        ("pairwise", [item for item in inside if item.op in PAIR_OPS]),
    ):
        if chosen:
            fit = fit_ring if pattern == "ring" else fit_pairwise
            fitted = fit(chosen, _prior(pattern, point, hwdb))
            ring = fitted.values if pattern == "ring" else ring
            found.append(rows.named(scope, pattern, fitted, chosen))
    added = [item for item in inside if item.op in RING_OPS and not rows.usable_for_ring(item)]
    if added:
        options = _switched(added, scope, ring, hwdb, bounded=not found)
        best = min(options, key=lambda sets: missed(added, [*found, *sets], hwdb))
        found += best
        ring = next((row_set.fitted.values for row_set in best if row_set.pattern == "ring"), ring)
    across = [item for item in points if item.fabric.nic is not None and item.op in RING_OPS]
    if across:
        nic = across[0].fabric.nic
        known = hwdb.collective("network", nic, "*") if nic is not None else None
        prior = rows.NETWORK if known is None else _values(known, ("hop_s", "fill_s", "rate_share"))
        switched = hwdb.collective("in_switch", point.fabric.intra, point.fabric.gpu)
        switch = None if switched is None else _values(switched, tuple(rows.SWITCH))
        # Two nodes exchange through trees: they do not say what a NIC delivers.
        held = prior["rate_share"] if all(item.nodes == 2 for item in across) else None
        fitted = fit_network(across, prior, lambda _: (ring, switch), held)
        network = rows.ParameterScope(nic.name if nic is not None else "*", "network")
        found.append(rows.named(network, "network", fitted, across))
    if not found:
        raise BadInputError(f"{source}: no operation that a row can be fitted to")
    return [replace(row_set, source=source.name) for row_set in found]


def _switched(
    points: Sequence[Point], scope: rows.ParameterScope, ring: Values, hwdb: Hwdb, bounded: bool
) -> list[list[rows.Set]]:
    """Alternative fits of all-reduces that a switch may have summed, one list of sets for each reading.

    Either each all-reduce ran on the faster of switch and known ring, or the switch did all of them. With
    `bounded` both come again with the ring slowed until it no longer beats what was measured.
    """
    prior = _prior("in_switch", points[0], hwdb)
    beside = rows.named(scope, "in_switch", fit_in_switch(points, prior, ring), points)
    alone = rows.named(scope, "in_switch", fit_in_switch(points, prior, None), points)
    slowed = slowed_ring(points, ring) if bounded else None
    options = [[beside], [alone]]
    if slowed is not None:
        bound = rows.named(scope, "ring", slowed, points, "a bound: the ring is no faster")
        options += [[bound, beside], [bound, alone]]
    return options


def missed(points: Sequence[Point], sets: Sequence[rows.Set], hwdb: Hwdb) -> float:
    """The median relative error at the log's own points once its rows are in force."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "collectives").mkdir()
        (Path(folder) / "collectives" / "own.csv").write_text(rows.csv_text(sets), encoding="utf-8")
        answers = predict(points, Hwdb.load([*hwdb.folders[1:], Path(folder)]))
    return median(abs(answer.seconds / answer.point.seconds - 1.0) for answer in answers)


def _prior(pattern: str, point: Point, hwdb: Hwdb) -> Values:
    known = hwdb.collective(pattern, point.fabric.intra, point.fabric.gpu)
    if known is None:
        return rows.SWITCH
    names = rows.SWITCH if pattern == "in_switch" else rows.RING
    wanted = (*names, "bridged_share") if known.bridged_share > 0 else tuple(names)
    return _values(known, wanted)


def _values(known: CollectiveParameters, names: Sequence[str]) -> Values:
    return {name: value for name in names if (value := float(getattr(known, name))) > 0}
