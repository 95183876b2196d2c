"""Fits parameters of collectives to measured points: one set per class of links and pattern.

Every fit predicts with the product's own functions, so what is fitted is what is used. Few parameters are
seen by few points (a box measured at two ranks says nothing of hops): each is held near a prior by a weight
that two dozen points outvote.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tangram_sim.clusters import Link
from tangram_sim.cost.collectives.curves import GroupNetwork, Path
from tangram_sim.cost.collectives.groups import SWITCH_RANKS, Group, mesh_share
from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb.collectives import CollectiveParameters
from tangram_sim.units import MIB
from tangram_validate.calibration.robust import fit, spread
from tangram_validate.collectives.points import Point
from tangram_validate.collectives.predict import FUNCTIONS

Values = Mapping[str, float]
PRIOR_WEIGHT = 0.25  # of one parameter's prior, in points
HELD_SIGMA = 0.03  # of a NIC's share that is not fitted: 0.92 to 0.96 on fabrics of three nodes and more
_FEWEST_FOR_SPREAD, _UNKNOWN = 3, 0.2
LONG_BYTES = 16 * MIB  # from here on a rate can be seen
# A ring slowed to a bound: so many percent of the points count, till so near, in at most so many steps; how
# well its parameters are known then.
_MOST_OF_THEM, _NEAR, _MOST_STEPS, _BOUND_SIGMA = 90.0, 1.01, 40, 0.3
_STEP = 1e-4  # of finite differences, in the logarithm
_NOWHERE = GroupNetwork(0.0, 0.0, 1.0)
_NEVER = Path(1e6, 0.0, 0.0, 1.0, 0.0)  # of a ring that loses against anything
RING_OPS = ("all_gather", "reduce_scatter", "all_reduce")
PAIR_OPS = ("all_to_all", "send_receive")


@dataclass(frozen=True, slots=True)
class PatternFit:
    """Parameters of one pattern, their error in log(predicted / measured), the points behind them."""

    values: Values
    sigma: Values  # standard errors
    error: float
    n: int


@dataclass(frozen=True, slots=True)
class _Curve:
    """Points of one operation on one group."""

    op: str
    ranks: int
    per_domain: int
    node_bytes_per_s: float
    link: Link
    rows: np.ndarray  # indices of the points
    sizes: Floats


def _curves(points: Sequence[Point]) -> list[_Curve]:
    found: dict[tuple[str, int, int, float, Link], list[int]] = {}
    for index, point in enumerate(points):
        inside = point.per_node if point.fabric.nic is not None else point.ranks
        key = (point.op, point.ranks, inside, point.fabric.node_bytes_per_s, point.fabric.intra)
        found.setdefault(key, []).append(index)
    return [
        _Curve(*key, np.array(rows), np.array([points[index].size_bytes for index in rows]))
        for key, rows in found.items()
    ]


def path(values: Values, link: Link, ranks: int) -> Path:
    """The path that parameters describe on `link` for groups of `ranks`."""
    known = CollectiveParameters(
        **{name: value for name, value in values.items() if name != "fallback"}  # type: ignore[arg-type]
    )
    copy = known.copy_share * link.bytes_per_s
    return Path(
        known.base_s,
        known.hop_s,
        known.fill_s,
        known.bytes_per_s_of(link, ranks) * mesh_share(link, ranks),
        1.0 / copy if copy > 0 else 0.0,
    )


def fit_ring(points: Sequence[Point], prior: Values) -> PatternFit:
    """Ring parameters from all-gather, reduce-scatter and all-reduce within one domain.

    All-reduces that a switch may have added up must not be among them.
    """

    def group(values: Values, curve: _Curve) -> Group:
        return _inside(curve, path(values, curve.link, curve.ranks), None)

    return _fit(points, prior, group)


def fit_pairwise(points: Sequence[Point], prior: Values) -> PatternFit:
    """Pairwise parameters from all-to-alls and transfers within one domain."""
    return fit_ring(points, prior)


def slowed_ring(points: Sequence[Point], ring: Values) -> PatternFit | None:
    """A known ring, slowed until it no longer beats what was measured; None where it does not.

    All-reduces over many ranks are added up in the switch where that is faster, so they are a bound: the
    ring of that fabric takes at least as long. One that undercuts them would be predicted in their place.
    First the rate gives way, at sizes where a rate can be seen, then launch, hop and fill together.
    """
    measured = np.array([point.seconds for point in points])
    sizes = np.array([point.size_bytes for point in points])
    curves, values = _curves(points), dict(ring)

    def short() -> Floats:
        """Measured over predicted, at each point."""
        found = np.empty(len(points))
        for curve in curves:
            alone = _inside(curve, path(values, curve.link, curve.ranks), None)
            found[curve.rows] = FUNCTIONS[curve.op](curve.sizes, alone)
        return np.asarray(measured / found)

    long = sizes >= LONG_BYTES
    if long.any():
        values["rate_share"] /= max(float(np.percentile(short()[long], _MOST_OF_THEM)), 1.0)
    for _ in range(_MOST_STEPS):
        factor = float(np.percentile(short(), _MOST_OF_THEM))
        if factor <= _NEAR:
            break
        for name in ("base_s", "hop_s", "fill_s"):
            values[name] *= factor
    if values == dict(ring):
        return None
    error = _error(measured / short(), measured)
    return PatternFit(
        values, {name: value * _BOUND_SIGMA for name, value in values.items()}, error, len(points)
    )


def fit_in_switch(points: Sequence[Point], prior: Values, ring: Values | None) -> PatternFit:
    """In-switch parameters from all-reduces that may choose between the switch and a known ring.

    Without a ring all of them are the switch's: where a ring is as fast as the prior's switch, points that
    are faster than both would leave no trace in a fit that lets it win.
    """
    usable = [point for point in points if point.op == "all_reduce" and point.ranks >= SWITCH_RANKS]

    def group(values: Values, curve: _Curve) -> Group:
        switch = path(values, curve.link, curve.ranks)
        known = _NEVER if ring is None else path(ring, curve.link, curve.ranks)
        return _inside(curve, known, switch)

    return _fit(usable, prior, group)


def fit_network(
    points: Sequence[Point],
    prior: Values,
    inner: Callable[[Point], tuple[Values, Values | None]],
    rate_share: float | None = None,
) -> PatternFit:
    """Network parameters from collectives over several domains; `inner` gives (ring, in-switch) inside one.

    With `rate_share` given it stays as it is: two nodes exchange through trees whose rate the inside may
    bound, so they do not say what a NIC delivers.
    """
    held = {} if rate_share is None else {"rate_share": rate_share}
    known = {(point.fabric.intra, point.ranks): inner(point) for point in points}

    def group(values: Values, curve: _Curve) -> Group:
        values = {**values, **held}
        ring, switch = known[curve.link, curve.ranks]
        crossing = curve.node_bytes_per_s * values["rate_share"]
        return Group(
            ranks=np.array([float(curve.ranks)]),
            inside=np.array([float(curve.per_domain)]),
            ring=path(ring, curve.link, curve.per_domain),
            pairwise=path(ring, curve.link, curve.per_domain),
            switch=None if switch is None else path(switch, curve.link, curve.per_domain),
            network=GroupNetwork(values["hop_s"], values["fill_s"], np.array([crossing])),
            outside_bytes_per_s=crossing / curve.per_domain,
        )

    found = _fit(points, {name: value for name, value in prior.items() if name not in held}, group)
    sigma = {**found.sigma, **dict.fromkeys(held, HELD_SIGMA)}
    return PatternFit({**found.values, **held}, sigma, found.error, found.n)


def _error(predicted: Floats, measured: Floats) -> float:
    """Standard error of log(predicted / measured) whose 90 % interval holds nine points of ten.

    Errors at the borders between protocols have longer tails than a normal distribution.
    """
    if len(measured) < _FEWEST_FOR_SPREAD:
        return _UNKNOWN
    tail = float(np.percentile(np.abs(np.log(predicted / measured)), 90)) / 1.645
    return max(spread(predicted, measured), tail)


def _inside(curve: _Curve, known: Path, switch: Path | None) -> Group:
    ranks = np.array([float(curve.ranks)])
    return Group(ranks, ranks, known, known, switch, _NOWHERE, 1.0)


def _fit(points: Sequence[Point], prior: Values, group: Callable[[Values, _Curve], Group]) -> PatternFit:
    measured = np.array([point.seconds for point in points])
    curves = _curves(points)
    names = list(prior)

    def seconds(parameters: Floats) -> Floats:
        values = dict(zip(names, (float(value) for value in parameters), strict=True))
        found = np.empty(len(points))
        for curve in curves:
            found[curve.rows] = FUNCTIONS[curve.op](curve.sizes, group(values, curve))
        return found

    def with_prior(parameters: Floats) -> tuple[Floats, Floats]:
        base = seconds(parameters)
        slopes = np.empty((len(base), len(names)))
        for index in range(len(names)):
            moved = parameters.copy()
            moved[index] *= np.exp(_STEP)
            slopes[:, index] = (seconds(moved) - base) / _STEP
        # A prior is one more measurement, of the parameter itself.
        return np.append(base, parameters), np.vstack([slopes, np.diag(parameters)])

    start = [prior[name] for name in names]
    weights = np.append(np.ones(len(points)), np.full(len(names), PRIOR_WEIGHT))
    found = fit(with_prior, start, np.append(measured, start), weights)
    predicted, slopes = with_prior(found)
    error = _error(predicted[: len(points)], measured)
    relative = slopes / predicted[:, None]
    information = relative.T @ (relative * weights[:, None])
    sigma = max(error, 0.01) * np.sqrt(np.diag(np.linalg.pinv(information)))
    return PatternFit(
        dict(zip(names, (float(value) for value in found), strict=True)),
        {name: float(value * min(size, 1.0)) for name, value, size in zip(names, found, sigma, strict=True)},
        max(error, 0.01),
        len(points),
    )
