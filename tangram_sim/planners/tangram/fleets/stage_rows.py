"""Possible stages on every kind of node, with lower bounds on their times by atom (docs/models/bound.md)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from math import gcd, inf
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster, Island, Node
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import Atom
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.laws import first_broken
from tangram_sim.parallelizers.layouts import divisors, expert_counts, head_counts
from tangram_sim.planners.tangram.enumeration.table import slice_classes
from tangram_sim.planners.tangram.passage import passes
from tangram_sim.training.job import Job
from tangram_sim.training.stage import state
from tangram_sim.training.stage.atom_prices import AtomPrices
from tangram_sim.training.stage.setting import Setting

Floats: TypeAlias = NDArray[np.float64]

NODES = (2, 3, 4, 8, 16, 32)  # of one replica, where it has more than one: it takes one sequence at a time
SEQUENCES = (1, 2, 4, 8, 16)  # of one replica at a time, else
MANY = 1 << 16  # replicas: state is sharded over no more


@dataclass(frozen=True, slots=True)
class StageRows:
    """Possible stages ("rows") by class of slices, as arrays over rows."""

    pointers: NDArray[np.int64]  # (classes + 1)
    ahead_s: Floats  # (classes): forward, least of all rows
    kinds: NDArray[np.int64]  # of nodes
    gpus: Floats  # for one sequence in flight
    seconds: Floats  # forward and backward of one microbatch
    backward_s: Floats
    closing_s: Floats  # from its last microbatch on: forward, gradients that leave the domain, new weights
    behind: Floats  # most stages behind
    sequences: Floats  # of the replica
    beside: Floats  # of the same slice that the rest of the domain does in a second

    def __getitem__(self, kept: NDArray[np.bool_]) -> "StageRows":
        pointers = np.concatenate([[0], np.cumsum(kept)])[self.pointers]
        columns = {field.name: getattr(self, field.name)[kept] for field in fields(self)[2:]}
        return StageRows(pointers, self.ahead_s, **columns)


def node_kinds(cluster: Cluster) -> dict[Node, int]:
    """Number of nodes of each kind; differences that do not affect training are ignored."""
    found: dict[Node, int] = {}
    for group in cluster.groups:
        node = plain(group.node)
        found[node] = found.get(node, 0) + group.count
    return found


def plain(node: Node) -> Node:
    """The node without properties that do not affect training: host, labels, price, power, name."""
    return replace(node, host="", labels=(), usd_per_hour=0.0, power_w=0.0, name="")


def questions(model: Model, cluster: Cluster) -> int:
    """Atoms x node kinds x expert-parallel degrees: a measure of the work to compute and to use rows."""
    return (len(model.blocks) + 2) * len(node_kinds(cluster)) * len(_expert_degrees(model))


def _expert_degrees(model: Model) -> list[int]:
    experts = expert_counts(model)
    return (
        [divisor for divisor in divisors(gcd(*experts)) if divisor & (divisor - 1) == 0] if experts else [1]
    )


def replica_sizes(node: Node) -> tuple[int, ...]:
    """Numbers of GPUs that a replica of a stage may have."""
    return (*divisors(node.gpus), *(nodes * node.gpus for nodes in NODES))


def sequences_of(node: Node, gpus: int) -> tuple[int, ...]:
    """Numbers of sequences that a replica with this many GPUs may process at a time."""
    return SEQUENCES if gpus <= node.gpus else (1,)


def stage_rows(model: Model, job: Job, hwdb: Hwdb, cluster: Cluster, sharded: bool) -> StageRows:
    """Undominated rows of all node kinds that have units for the job's number format.

    `sharded`: include ZeRO 2 and 3.
    """
    firsts, _ = slice_classes(model)
    found: list[StageRows] = []
    for kind, (node, count) in enumerate(node_kinds(cluster).items()):
        if not node.gpu.peak_flop_per_s(job.precision.compute):
            continue
        found.append(_undominated(_Kind(model, job, hwdb, node, count, sharded).rows(kind, np.array(firsts))))
    return _joined(found, len(firsts))


def _undominated(rows: StageRows) -> StageRows:
    """Rows of one kind of nodes that no other of their class beats."""
    from tangram_sim.planners.tangram.fleets.fleet_bound_kernels import unbeaten

    small = (rows.gpus, rows.seconds, rows.backward_s, rows.closing_s)
    costs = np.stack([*small, -rows.behind, -rows.sequences, -rows.beside], axis=1)
    return rows[unbeaten(rows.pointers, costs)]


def _joined(parts: list[StageRows], classes: int) -> StageRows:
    of_class = np.concatenate([np.repeat(np.arange(classes), np.diff(part.pointers)) for part in parts])
    chosen = np.argsort(of_class, kind="stable")
    columns = (
        np.concatenate([getattr(part, field.name) for part in parts])[chosen]
        for field in fields(StageRows)[2:]
    )
    ahead: Floats = np.min([part.ahead_s for part in parts], axis=0)
    counts = np.bincount(of_class, minlength=classes)
    return StageRows(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), ahead, *columns)


class _Kind:
    """Rows of one node kind: layouts x sequences of a replica, each with several ways to store its state."""

    def __init__(self, model: Model, job: Job, hwdb: Hwdb, node: Node, count: int, sharded: bool) -> None:
        self.sharded = sharded
        self.model, self.job, self.hwdb, self.node = model, job, hwdb, node
        self.domain = node.gpus * min(node.scale_up_nodes, count)
        self.most_gpus = node.gpus * count

    def rows(self, kind: int, slices: NDArray[np.int64]) -> StageRows:
        """Rows of all slice classes as flat arrays."""
        parts = [
            part
            for inside in (True, False)
            if (replicas := tuple(self._replicas(inside)))
            for part in self._priced(replicas, inside, slices)
        ]
        seconds, backward, ahead, closing, behind, gpus, sequences = (
            np.concatenate(column, axis=1) for column in zip(*parts, strict=True)
        )
        whole = -(-gpus // self.domain) * self.domain  # of the domains that it touches
        least = (gpus / sequences * seconds).min(axis=1, keepdims=True)  # GPU-seconds of a sequence
        beside = (whole - gpus) / least
        fits = behind >= 0
        pointers = np.concatenate([[0], np.cumsum(fits.sum(axis=1))]).astype(np.int64)
        columns = (gpus / sequences, seconds, backward, closing, behind, sequences, beside)
        flat = (np.ascontiguousarray(column[fits], dtype=np.float64) for column in columns)
        return StageRows(pointers, ahead.min(axis=1), np.full(int(pointers[-1]), kind, np.int64), *flat)

    def _replicas(self, inside: bool) -> Iterator[tuple[Layout, int, int]]:
        """(layout of one replica, its sequences, its GPUs), inside one scale-up domain or on several."""
        model, job = self.model, self.job
        heads, shared = gcd(*head_counts(model)), _expert_degrees(model)
        fused = self._setting((), (), self._island(1)).rates.fused_attention
        for gpus in replica_sizes(self.node):
            if gpus > self.most_gpus or (gpus <= self.domain) != inside:
                continue
            for tp in divisors(gcd(gpus, heads)):
                for ep in shared:
                    for recompute in RECOMPUTE:
                        for sharded in (False, True)[: 1 + (tp > 1)]:
                            layout = Layout(
                                tp,
                                dp=1,
                                cp=gpus // tp,
                                ep=ep,
                                pp=1,
                                zero_stage=1,
                                recompute=recompute,
                                sequence_parallel=sharded,
                            )
                            if first_broken(model, job.seq, layout, 1, fused):
                                continue
                            yield from (
                                (layout, some, gpus)
                                for some in sequences_of(self.node, gpus)
                                if some <= job.global_batch
                            )

    def _island(self, domains: int, gpus: int = 0) -> Island:
        """An island of scale-up domains, each a node of `gpus` GPUs (0: all) with the domain's NICs."""
        node = self.node
        trays = self.domain // node.gpus
        return Island(
            node.gpu.name,
            node.gpu,
            nodes=domains,
            gpus_per_node=gpus or self.domain,
            intra=node.intra,
            nic_bytes_per_s=node.nic_bytes_per_s * trays,
            nic_latency_s=node.nic_latency_s,
            network_bytes_per_s=inf,
            bridge=node.bridge,
        )

    def _setting(self, sequences: tuple[int, ...], layouts: tuple[Layout, ...], island: Island) -> Setting:
        return Setting(self.model, island, self.job, sequences or 1, layouts, self.hwdb)

    def _priced(
        self, replicas: tuple[tuple[Layout, int, int], ...], inside: bool, slices: NDArray[np.int64]
    ) -> Iterator[tuple[Floats, ...]]:
        """Per way to store state: (seconds, backward, forward, closing, stages behind, GPUs, sequences)."""
        sequences, gpus = (np.array(column, np.int64) for column in list(zip(*replicas, strict=True))[1:])
        singles = [layout for layout, _, _ in replicas]
        island = self._island(1 if inside else max(NODES))

        def spread(copies: NDArray[np.int64], zero: int, on: Island = island) -> Setting:
            """Setting with `copies` replicas of each layout side by side, under ZeRO stage `zero`."""
            layouts = tuple(
                replace(single, dp=many, zero_stage=zero)
                for single, many in zip(singles, copies.tolist(), strict=True)
            )
            return self._setting(tuple((copies * sequences).tolist()), layouts, on)

        prices = AtomPrices(spread(np.full(len(singles), MANY), 1))
        both, forward, back = passes(prices, self.job)
        rows = prices.rows

        def over(each: Floats) -> Floats:
            """Sums over the atoms of every slice, from values of shape (kinds of atoms, ..., K)."""
            of_atoms = np.concatenate([np.zeros((1, *each.shape[1:])), np.cumsum(each[rows], axis=0)])
            of_slices: Floats = of_atoms[slices[:, 1]] - of_atoms[slices[:, 0]]
            return of_slices

        def of(what: Callable[[Setting, Atom], Floats], setting: Setting) -> Floats:
            return over(np.array([what(setting, atom) for atom in prices.different.values()]))

        seconds, ahead, backward = (over(some).max(axis=1) for some in (both, forward, back))
        kept = over(np.array([prices.held(kind, atom).activation for kind, atom in prices.different.items()]))
        copies = np.maximum(self.domain // gpus, 1)
        reduced, scattered, gathered = (
            over(some) for some in self._closing(singles, gpus, list(prices.different.values()))
        )
        rates, shape = prices.setting.rates, seconds.shape
        # No more stages behind, or microbatches, than there may be.
        most = max(len(rows), self.job.global_batch if self.job.schedule == "gpipe" else 0)

        def behind(static: Floats) -> Floats:
            free: Floats = np.maximum((rates.usable_memory_bytes - static) / (1.0 + rates.fragmentation), 0.0)
            found: Floats = np.minimum(np.floor(free / np.maximum(kept, 1.0)) - 1.0, most)
            return found

        own = np.broadcast_to(gpus.astype(np.float64), shape), np.broadcast_to(sequences * 1.0, shape)
        many = np.full(len(singles), MANY)
        usual = ahead + np.minimum(reduced, scattered + gathered)
        yield seconds, backward, ahead, usual, behind(of(state.static_bytes, spread(many, 1))), *own
        if not self.sharded:
            return
        # Sharded inside the domain, for nothing; over all NICs, with its exchanges in every microbatch.
        nothing = np.zeros(shape)
        held = of(state.static_bytes, spread(copies, 3)), of(state.static_bytes, spread(many, 2)), nothing
        exchanged = nothing, scattered, scattered + gathered
        for static, beside in zip(held, exchanged, strict=True):
            yield np.maximum(seconds, beside), backward, ahead, ahead + scattered, behind(static), *own

    def _closing(
        self, singles: list[Layout], gpus: NDArray[np.int64], atoms: list[Atom]
    ) -> tuple[Floats, Floats, Floats]:
        """Seconds of gradient traffic between domains by kind of atom and layout: all-reduced; scattered;
        gathered. Computed for two domains full of replicas, a lower bound: more domains and fewer replicas in
        each send more over a NIC. Experts shared among ranks count as zero, since their copies may all be in
        one group."""
        found = np.zeros((3, len(atoms), len(singles)))
        filled = np.where(gpus <= self.domain, self.domain // gpus * gpus, self.domain)
        for size in np.unique(filled).tolist():
            chosen = np.flatnonzero(filled == size)
            copies = np.maximum(size // gpus[chosen], 1)
            domains = 2 * int(max(-(-gpus[chosen] // size)))
            island = self._island(domains, size)
            layouts = tuple(
                replace(single, dp=2 * many, ep=1 if single.ep == 1 else 2 * many * single.cp)
                for single, many in zip((singles[at] for at in chosen), copies.tolist(), strict=True)
            )
            whole, cut = (
                self._setting(
                    tuple(layout.dp for layout in layouts),
                    tuple(replace(layout, zero_stage=zero) for layout in layouts),
                    island,
                )
                for zero in (0, 1)
            )
            for row, atom in enumerate(atoms):
                found[0, row, chosen] = state.gradient_sync_s(whole, atom, True) + state.behind_last_pass_s(
                    whole, atom
                )
                found[1, row, chosen] = state.gradient_sync_s(cut, atom, True)
                found[2, row, chosen] = state.behind_last_pass_s(cut, atom)
        return found[0], found[1], found[2]
