"""Latency bound: no step is shorter than the passage of one sequence through all atoms and back.

A small batch leaves many GPUs idle, and then this bound is tighter than the work of the batch spread over all
GPUs (`WorkBound`). A microbatch holds at least one sequence, and data parallelism gives whole sequences to
ranks: only tensor, context and expert parallelism shorten a passage, and their communication lies on its
path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd, inf

import numpy as np

from tangram_sim.clusters import Cluster, Gpu, Island, Link
from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import Atom, Embedding, Head
from tangram_sim.layers.program import COMPUTE, GRADIENTS, HOST, PREVIOUS, Program
from tangram_sim.layouts import Layout
from tangram_sim.models import Block, Model
from tangram_sim.parallelizers.layouts import divisors, expert_counts, head_counts
from tangram_sim.planners.tangram.bound import members
from tangram_sim.training.job import Job
from tangram_sim.training.schedules.named import schedule_named
from tangram_sim.training.stage.atom_prices import AtomPrices
from tangram_sim.training.stage.launching import LAUNCH_GAPS
from tangram_sim.training.stage.reductions import backward_directions
from tangram_sim.training.stage.setting import Setting

_FREE = Link("free", "none", 1e30, 0.0)
_ACCUMULATE = "accumulate"
_LACKING = (LAUNCH_GAPS, GRADIENTS, _ACCUMULATE)  # ops that do not lengthen every pass


def passage_s(model: Model, job: Job, islands: Sequence[Island], hwdb: Hwdb, cluster: Cluster) -> float:
    """Lower bound in seconds on any step: one sequence through all atoms and back.

    Every atom is taken on its fastest GPU kind, links and number of ranks; nothing else runs meanwhile.
    """
    kinds = dict.fromkeys(gpu for island in islands for gpu in members(island, cluster))
    ranks = {layout.gpus for layout in _widths(model, job.seq, cluster.gpus)}
    near = sorted({some for number in ranks for some in divisors(number)})
    rows = np.array([_crossing(model, job, _lanes(gpu, cluster, near), hwdb) for gpu in kinds])
    return float(rows.min(axis=0).sum(axis=1).max())


def _lanes(gpu: Gpu, cluster: Cluster, near: Sequence[int]) -> tuple[Island, ...]:
    """Islands of one GPU kind with its ranks as close together as the cluster allows, one per arrangement,
    none of them twice. Wherever ranks are placed, the borders of nodes, or of racks that are one scale-up
    domain, cut the groups of a layout into blocks of a size in `near`, the divisors of the number of ranks.
    Each block counts as a node with its share of NICs; there are as many as all ranks of the cluster would
    fill, and only NICs limit transfers between them. Where links are stated one by one, or some are slow,
    links cost nothing."""
    found: dict[Island, None] = {}
    if cluster.health.is_full and not cluster.wiring.full:
        for node in dict.fromkeys(group.node for group in cluster.groups if group.node.gpu == gpu):
            for share in near:
                if share > node.gpus * node.scale_up_nodes:
                    break
                lane = Island(
                    gpu.name,
                    gpu,
                    nodes=-(-cluster.gpus // share),
                    gpus_per_node=share,
                    intra=node.intra,
                    nic_bytes_per_s=node.nic_bytes_per_s * share / node.gpus,
                    nic_latency_s=node.nic_latency_s,
                    network_bytes_per_s=inf,
                    bridge=node.bridge if share > 1 else None,
                )
                found[lane] = None
    return tuple(found) or (
        Island(
            gpu.name,
            gpu,
            nodes=1,
            gpus_per_node=cluster.gpus,
            intra=_FREE,
            nic_bytes_per_s=1e30,
            nic_latency_s=0.0,
        ),
    )


def _widths(model: Model, seq: int, ranks: int) -> tuple[Layout, ...]:
    """The layouts under which one sequence may pass an atom fastest, one for each way to split it.

    All degrees that the rules of layouts allow on this many ranks, with and without sequence parallelism; no
    recomputation, and every expert where its tokens are, which takes the least time on a rank.
    """
    heads, counts = head_counts(model), expert_counts(model)
    experts = divisors(gcd(*counts)) if counts else (1,)
    found: list[Layout] = []
    for tp in divisors(gcd(*heads)) if heads else divisors(ranks):
        for cp, ep in product(divisors(seq), experts):
            dp = ep // gcd(ep, cp)  # the fewest replicas that so many expert ranks divide
            if tp * cp * dp > ranks:
                continue
            for shared in (False, True)[: 1 + (tp > 1)]:
                found.append(Layout(tp, dp, cp, ep, sequence_parallel=shared, fsep=ep > 1))
    return tuple(found)


@lru_cache(maxsize=256)
def _crossing(model: Model, job: Job, lanes: tuple[Island, ...], hwdb: Hwdb) -> tuple[tuple[float, ...], ...]:
    """Per atom, lower bounds in seconds on one sequence's passes through it on one of the `lanes`.

    Five rows, each minimised over lanes and layouts: combinations of device time, host launch time and
    critical path for forward and backward (see `passes`).
    """
    layouts = _widths(model, job.seq, lanes[0].gpus)
    sequences = tuple(layout.dp for layout in layouts)  # replicas only hold experts: each has one sequence
    found: list[Floats] = []
    for lane in lanes:
        prices = AtomPrices(Setting(model, lane, job, sequences, layouts, hwdb))
        both, _, _ = passes(prices, job)
        rows = both.min(axis=2)
        found.append(rows[prices.rows].T)
    return tuple(tuple(row) for row in np.min(found, axis=0).tolist())


def passes(prices: AtomPrices, job: Job) -> tuple[Floats, Floats, Floats]:
    """Lower bounds in seconds of both passes, forward and backward: (kinds of atoms, 5 / 3 / 3, layouts).

    For each way, the sum over its atoms bounds the time of a stage.
    """
    splits = schedule_named(job.schedule).splits_backward
    both, forward, backward = [], [], []
    for atom in prices.different.values():
        program = prices.program(atom, backward_directions(job)[0])
        ahead = _Pass.of(prices.program(atom, "forward"), atom, Embedding)
        back = _Pass.of(program, atom, Head).without(_put_off_s(program) if splits else 0.0)
        both.append(
            (
                ahead.kernels_s + back.kernels_s,
                ahead.launches_s + back.kernels_s,
                ahead.launches_s + back.launches_s,
                ahead.way_s + back.way_s,
                ahead.way_s + back.launches_s,
            )
        )
        forward.append((ahead.kernels_s, ahead.launches_s, ahead.way_s))
        backward.append((back.kernels_s, back.launches_s, back.way_s))
    return np.array(both), np.array(forward), np.array(backward)


@dataclass(frozen=True, slots=True)
class _Pass:
    """Three lower bounds in seconds on one pass through an atom, each of shape (K,) over layouts."""

    kernels_s: Floats  # one after another on the device
    launches_s: Floats  # one after another on the host
    way_s: Floats  # on the longest way from what the atom before puts out, exchanges included

    @classmethod
    def of(cls, program: Program, atom: Atom, first: type[Atom]) -> "_Pass":
        """Bounds of an atom's program in a direction in which atoms of type `first` come first.

        Omitted is what some passes lack: gaps between launches, which transfers may fill, accumulating
        gradients in a pass of its own, and their reduction. At the model's ends kernels count in place of
        launches, which they may hide; for the first atom launches are zero, since hosts do not wait for it.
        """
        ops = [op for op in program.ops if op.name not in _LACKING]
        gaps = sum((op.seconds for op in program.ops if op.name == LAUNCH_GAPS), np.zeros(program.layouts))
        kernels, hosted = (
            sum((op.seconds for op in ops if op.stream == stream), np.zeros(program.layouts))
            for stream in (COMPUTE, HOST)
        )
        if isinstance(atom, Block):
            launches = hosted - gaps
        else:
            launches = 0.0 * kernels if isinstance(atom, first) else kernels
        return cls(kernels, launches, _way_s(program))

    def without(self, put_off: Number) -> "_Pass":
        """This pass less `put_off` seconds of weight gradients, which a separate pass computes."""
        return _Pass(self.kernels_s - put_off, self.launches_s - put_off, self.way_s - put_off)


def _put_off_s(program: Program) -> Floats:
    """Seconds of weight gradients within a counted pass, (K,), without their accumulation."""
    lacking = sum((op.seconds for op in program.ops if op.name == _ACCUMULATE), np.zeros(program.layouts))
    return program.weight_gradient - lacking


def _way_s(program: Program) -> Floats:
    """Seconds on the longest path from the previous atom's output to this atom's output, shape (K,).

    Ops of one stream follow each other in issue order. Ops that `_Pass.of` omits take no time.
    """
    nothing, now = np.full(program.layouts, -inf), np.zeros(program.layouts)
    ends: list[Floats] = []
    last: dict[int, Floats] = {}  # end of the op issued last, by stream
    for op in program.ops:
        begin = last.get(op.stream, nothing)
        for before in op.after:
            outside = now if before == PREVIOUS else nothing
            begin = np.maximum(begin, ends[before] if before >= 0 else outside)
        ends.append(begin if op.name in _LACKING else begin + op.seconds)
        last[op.stream] = ends[-1]
    return np.maximum(ends[program.output], now)
