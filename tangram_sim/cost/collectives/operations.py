"""Seconds of collectives over groups, by a given algorithm or by the one that NCCL would choose.

Every function is vectorised over the K layouts of a group and returns 0 for groups of one rank and for no
bytes. Validity: uncontended, one collective at a time.
"""

from collections.abc import Iterator

import numpy as np

from tangram_sim.cost.collectives import curves
from tangram_sim.cost.collectives.curves import Curve
from tangram_sim.cost.collectives.groups import Group
from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.errors import BadInputError, unknown_name

# What `algorithm=` may say; auto: the fastest of those that NCCL has for the group.
ALGORITHMS = ("auto", "ring", "tree", "halving_doubling", "hierarchical", "in_switch")


def all_gather_s(total_bytes: Number, over: Group, algorithm: str = "auto") -> Floats:
    """Seconds of an all-gather whose full buffer is `total_bytes`; 0 for one rank."""
    if algorithm == "auto":
        return _least((over.once, over.aggregated), total_bytes, over)
    return _least((_once(over, algorithm),), total_bytes, over)


def reduce_scatter_s(total_bytes: Number, over: Group, algorithm: str = "auto") -> Floats:
    """Seconds of a reduce-scatter whose full buffer is `total_bytes`: the mirror image of an all-gather.

    The reduction itself adds nothing: NCCL adds while it copies (fits drive a term for it to zero).
    """
    return all_gather_s(total_bytes, over, algorithm)


def all_reduce_s(total_bytes: Number, over: Group, algorithm: str = "auto") -> Floats:
    """Seconds of an all-reduce of `total_bytes` per rank."""
    if algorithm == "auto":
        return _least((over.twice, over.switched, over.treed), total_bytes, over)
    return _least((_twice(over, algorithm),), total_bytes, over)


def broadcast_s(total_bytes: Number, over: Group) -> Floats:
    """Seconds to send `total_bytes` of one rank to all others, through a pipelined ring."""
    curve = curves.broadcast(np.maximum(over.ranks, 2.0), over.domains, over.ring, over.network)
    return _least((curve,), total_bytes, over)


def all_to_all_s(rank_bytes: Number, over: Group, skew: Number = 1.0, copies: int = 1) -> Floats:
    """Seconds of an all-to-all in which every rank has `rank_bytes` to send.

    `skew` is the load of the fullest rank over the mean (1: balanced; unequal experts: more): all ranks wait
    for that rank. Traffic inside the scale-up domain and traffic leaving it overlap.

    `copies`: number of copies of each piece in `rank_bytes`, for ranks drawn at random; a domain receives one
    copy and forwards it inside (hierarchical exchange). Of m domains a piece then goes to (m - 1) (1 - (1 -
    1/m)^copies) others instead of copies (m - 1) / m.
    """
    ranks, inside, path, network = over.ranks, over.inside, over.pairwise, over.network
    loaded = np.asarray(rank_bytes * skew)
    inner = loaded * (inside - 1) / ranks / path.bytes_per_s
    outer = loaded * (ranks - inside) / ranks / over.outside_bytes_per_s
    if copies > 1:
        domains = over.domains
        outer = outer * domains * (1.0 - (1.0 - 1.0 / domains) ** copies) / copies
        inner = loaded * (inside - 1) / inside / path.bytes_per_s
    filling = np.maximum(np.sqrt(path.fill_s * inner) + inner, np.sqrt(network.fill_s * outer) + outer)
    start = path.base_s + (inside - 1) * path.hop_s + np.where(over.domains > 1, network.hop_s, 0.0)
    seconds = start + filling + loaded / ranks * path.copy_s_per_byte
    return np.where((ranks > 1) & (loaded > 0), seconds, 0.0)


def send_receive_s(total_bytes: Number, over: Group) -> Floats:
    """Seconds for one rank to send `total_bytes` to another, across domains if the group has several."""
    path, network = over.pairwise, over.network
    crossing = over.domains > 1
    rate = np.where(crossing, over.outside_bytes_per_s, path.bytes_per_s)
    fill = np.where(crossing, network.fill_s, path.fill_s)
    start = path.base_s + np.where(crossing, network.hop_s, 0.0)
    return _least((Curve(start, np.sqrt(fill / rate), 1.0 / rate),), total_bytes, over)


def transfer_s(total_bytes: float, bytes_per_s: float, latency_s: float) -> float:
    """Seconds of a point-to-point transfer."""
    return latency_s + total_bytes / max(bytes_per_s, 1.0) if total_bytes > 0 else 0.0


def _least(options: tuple[Curve | None, ...], total_bytes: Number, over: Group) -> Floats:
    first, *others = (curve.seconds(total_bytes) for curve in options if curve is not None)
    seconds = first
    for candidate in others:
        seconds = np.minimum(seconds, candidate)
    return np.where((over.ranks > 1) & (np.asarray(total_bytes) > 0), seconds, 0.0)


def _once(over: Group, algorithm: str) -> Curve:
    ranks = np.maximum(over.ranks, 2.0)
    if algorithm == "ring":
        return over.once
    if algorithm == "halving_doubling":
        return curves.halving_doubling(ranks, over.domains, 1, over.ring, over.network)
    raise _refused(algorithm, "all-gather and reduce-scatter", ("auto", "ring", "halving_doubling"))


def _twice(over: Group, algorithm: str) -> Curve:
    ranks = np.maximum(over.ranks, 2.0)
    if algorithm == "ring":
        return over.twice
    if algorithm == "tree":
        return curves.tree(ranks, over.inside, over.domains, over.ring, over.network)
    if algorithm == "halving_doubling":
        return curves.halving_doubling(ranks, over.domains, 2, over.ring, over.network)
    if algorithm == "hierarchical":
        return curves.hierarchical(ranks, over.inside, over.domains, over.ring, over.network)
    if algorithm == "in_switch" and over.switch is None:
        raise BadInputError(
            "in_switch given; no switch of this group adds up (NVSwitch of NVLink4 on, members of one chip); "
            f"known: {', '.join(_except('in_switch'))}"
        )
    if algorithm == "in_switch" and over.switch is not None:
        return curves.in_switch(over.domains, over.switch, over.network)
    raise _refused(algorithm, "all-reduce", ALGORITHMS)


def _except(name: str) -> Iterator[str]:
    return (known for known in ALGORITHMS if known != name)


def _refused(algorithm: str, operation: str, known: tuple[str, ...]) -> Exception:
    return unknown_name(f"algorithm of {operation}", algorithm, known)
