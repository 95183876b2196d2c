"""The bound of one sequence: no step is shorter than its passage through all atoms and back.

A small batch cannot keep many GPUs busy, and there this is nearer than the work of the batch spread over all
of them (`WorkBound`). A microbatch holds a sequence or more, and data parallelism hands whole sequences to
ranks: only tensor, context and expert parallelism make a passage shorter, and the exchanges that they need
are on its way.
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
    """Seconds of any step: those of one sequence that passes all atoms and comes back, at least.

    Every atom counts on its fastest kind of GPU, links and number of ranks; nothing runs beside it.
    """
    kinds = dict.fromkeys(gpu for island in islands for gpu in members(island, cluster))
    ranks = {layout.gpus for layout in _widths(model, job.seq, cluster.gpus)}
    near = sorted({some for number in ranks for some in divisors(number)})
    rows = np.array([_crossing(model, job, _lanes(gpu, cluster, near), hwdb) for gpu in kinds])
    return float(rows.min(axis=0).sum(axis=1).max())


def _lanes(gpu: Gpu, cluster: Cluster, near: Sequence[int]) -> tuple[Island, ...]:
    """Ranks of one kind as near to each other as the cluster has them: one island for each way to be so.

    Wherever ranks stand, the borders of nodes, or of racks that are one scale-up domain, cut the groups of a
    layout as blocks of `near` ranks do, one of the divisors of its number of ranks. Each such block counts as
    a node with its share of NICs, and there are as many as all ranks of the cluster would fill; between them
    nothing but NICs slows a transfer. Where links are stated one by one, or some are slow, links are free.
    """
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
    """The layouts under which one sequence crosses an atom in the least time, one for each way to share it.

    All degrees that the laws of layouts allow on so many ranks, norms shared or not. Of what else a layout
    decides, what takes the least time on a rank: nothing computed again, every expert where its tokens are.
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
    """Per atom, seconds that one sequence takes through it on one of the `lanes`, at least.

    Five rows, each least over lanes and layouts: forward and backward what devices compute, what hosts launch
    or what lies on the way with its exchanges, as they can be the nearest.
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
    """By kind of atom, way to read it and layout: seconds of both passes (5 ways), of each alone (3).

    A stage is no faster than the sum over its atoms of any one reading.
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
    """Seconds of one pass through an atom under K layouts, at least: three things that it cannot be below."""

    kernels_s: Floats  # one after another on the device
    launches_s: Floats  # one after another on the host
    way_s: Floats  # on the longest way from what the atom before puts out, exchanges included

    @classmethod
    def of(cls, program: Program, atom: Atom, first: type[Atom]) -> "_Pass":
        """Of the program of an atom in a direction in which an atom of the type `first` comes first.

        Without what some passes lack: gaps that launches leave, which transfers may fill, adding up gradients
        in a pass of their own, and their reduction. Ends of the model count with their kernels in place of
        launches, behind which they may hide theirs; the first with nothing, since hosts do not wait for it.
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
        """The pass where weight gradients are made in one of their own, so many seconds of it."""
        return _Pass(self.kernels_s - put_off, self.launches_s - put_off, self.way_s - put_off)


def _put_off_s(program: Program) -> Floats:
    """Seconds of weight gradients among what a pass counts, K: adding them up is left out of it already."""
    lacking = sum((op.seconds for op in program.ops if op.name == _ACCUMULATE), np.zeros(program.layouts))
    return program.weight_gradient - lacking


def _way_s(program: Program) -> Floats:
    """Seconds from the output of the atom before to this one's, K: the longest way over what waits for it.

    On a stream ops follow each other as they are issued. What `_Pass.of` leaves out takes no time.
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
