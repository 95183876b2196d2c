"""What crosses the boundary between two stages whose parts share a microbatch differently.

Parts take consecutive sequences of every microbatch in the order in which the stage lists them; what one
part computed and another one needs moves between the two, spread over the ranks of both. Every tensor
crosses the network once: a tensor-parallel group that receives re-assembles it inside its node.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tangram_sim.cost.collectives import transfer_s
from tangram_sim.layouts import gradient_copies
from tangram_sim.placement.ranks import Placement
from tangram_sim.training.plan import Part, Stage


@dataclass(frozen=True, slots=True)
class Flow:
    """A share of a microbatch's activations that moves from one part to another."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    share: Fraction


def flows(before: Stage, after: Stage) -> tuple[Flow, ...]:
    """Flows from the parts of one stage to those of the next; their shares sum to 1."""
    total = sum(part.sequences_per_microbatch for part in before.parts)
    found = []
    for source, first in _starts(before.parts):
        for target, second in _starts(after.parts):
            common = min(
                first + source.sequences_per_microbatch, second + target.sequences_per_microbatch
            ) - max(first, second)
            if common > 0:
                found.append(Flow(source.ranks, target.ranks, Fraction(common, total)))
    return tuple(found)


def _starts(parts: Sequence[Part]) -> list[tuple[Part, int]]:
    """Every part with the index of the first sequence that it takes."""
    found, position = [], 0
    for part in parts:
        found.append((part, position))
        position += part.sequences_per_microbatch
    return found


def boundary_s(moving: Sequence[Flow], placement: Placement, total_bytes: float) -> float:
    """Seconds to hand one microbatch of `total_bytes` over, all flows at once.

    The longest of: what a part sends through its share of its nodes' NICs, what a part receives through its
    own, what two parts or two groups exchange over the road between them.
    """
    if len(moving) == 1:
        return placement.transfer_s(moving[0].source, moving[0].target, total_bytes)
    seconds, latency = 0.0, 0.0
    sent: defaultdict[tuple[str, tuple[int, ...]], float] = defaultdict(float)
    limits: defaultdict[tuple[int, int], float] = defaultdict(float)
    for flow in moving:
        if flow.source == flow.target:
            continue  # wrap-around of a single stage: nothing moves
        size = float(flow.share) * total_bytes
        rate, delay = placement.road(flow.source, flow.target)
        seconds, latency = max(seconds, transfer_s(size, rate, 0.0)), max(latency, delay)
        if placement.same_domain(flow.source, flow.target):
            continue
        sent["out", flow.source] += size
        sent["in", flow.target] += size
        for groups, share in group_shares(placement, flow).items():
            limits[groups] += size * float(share)
    for (_, ranks), size in sent.items():
        seconds = max(seconds, transfer_s(size, placement.nic_share(ranks), 0.0))
    for groups, size in limits.items():
        seconds = max(seconds, transfer_s(size, placement.group_rate(*groups), 0.0))
    return latency + seconds if seconds else 0.0


def tied_copies(first: Stage, last: Stage) -> int:
    """Copies of a tied matrix's gradient that two stages exchange: one per replica of the larger end."""
    ends = [
        gradient_copies([part.layouts[place].layout for part in stage.parts])
        for stage, place in ((first, 0), (last, -1))
    ]
    return max(ends)


def tied_exchange_s(
    placement: Placement, first: tuple[int, ...], last: tuple[int, ...], total_bytes: float
) -> float:
    """Seconds to all-reduce a tied matrix's gradient between the ranks of the first and the last stage.

    Every replica does this separately, after the reduction over replicas: a group of two for every pipeline
    of ranks (NVIDIA/Megatron-LM megatron/core/parallel_state.py, `_EMBEDDING_GROUP`,
    distributed/finalize_model_grads.py; DeepSpeed's tied layers, runtime/pipe/module.py, do the same). So
    `total_bytes`, `tied_copies` times `Job.tied_bytes`, are sent in each direction, all pairs of ranks
    concurrently; two latencies, since each side waits for the other.
    """
    rate, latency = placement.road(first, last)
    return transfer_s(total_bytes, rate, 2 * latency)


def group_shares(placement: Placement, flow: Flow) -> dict[tuple[int, int], Fraction]:
    """Share of a flow between each pair of node groups, with both sides spread evenly over their ranks."""
    node_group, node_of = placement.cluster.node_group, placement.node_of
    sides = [Counter(node_group[node_of[rank]] for rank in side) for side in (flow.source, flow.target)]
    return {
        (min(a, b), max(a, b)): Fraction(count_a * count_b, len(flow.source) * len(flow.target))
        for a, count_a in sides[0].items()
        for b, count_b in sides[1].items()
    }
