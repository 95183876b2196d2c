"""Lower bounds on the step time of all plans on a cluster, under the same cost model as the plans.

Let w[a, k] be the least GPU-seconds of atom `a` per sequence on kind `k` (`ideal_seconds`) and n[k] the GPUs
of that kind. Any plan splits the B sequences of every atom over kinds, and a step lasts at least as long as
every GPU's busy time: T >= min over splits x of max_k sum_a B x[a, k] w[a, k] / n[k]. For any prices y[k] >=
0 with sum_k n[k] y[k] = 1, weak duality gives T >= B sum_a min_k w[a, k] y[k]. We take y[k] proportional to
the speed of kind k on the whole model, which is optimal when kinds differ by one factor.

With a small batch, many GPUs stay idle, and the latency of one sequence through all atoms is the tighter
bound (`passage.passage_s`).
"""

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster, Gpu, Island
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors
from tangram_sim.training.job import Job
from tangram_sim.training.step.ideal import ideal_seconds


def members(island: Island, cluster: Cluster | None) -> list[Gpu]:
    """Kinds of GPU in an island. Its `gpu` is the worst; plans are priced at the ranks that they use."""
    if cluster is None or not island.groups:
        return [island.gpu]
    if cluster.health.is_full:
        return list(dict.fromkeys(cluster.groups[group].node.gpu for group in island.groups))
    return list(
        dict.fromkeys(
            cluster.gpu_of(node, (rank,))
            for node in island.node_indices
            for rank in range(cluster.first_rank[node], cluster.first_rank[node + 1])
        )
    )


def has_equal_members(island: Island, cluster: Cluster) -> bool:
    """Whether all nodes of an island are identical, with GPUs and NICs in equal health.

    Parts of an island are priced at its worst member. Where nodes differ, a plan on better members may be
    faster than any that the search priced.
    """
    nodes = {cluster.groups[group].node for group in island.groups}
    nics = {cluster.nic_of(node) for node in island.node_indices}
    return len(nodes) == len(nics) == len(members(island, cluster)) == 1


class WorkBound:
    """Lower bounds on the step time from the ideal work of every atom on every island.

    With `cluster`, each atom on an island costs as on the island's best member; without, as on its worst.
    """

    def __init__(
        self,
        model: Model,
        job: Job,
        islands: Sequence[Island],
        hwdb: Hwdb,
        cluster: Cluster | None = None,
        least: NDArray[np.float64] | None = None,
    ) -> None:
        self.batch = job.global_batch
        self.seconds: NDArray[np.float64] = np.array(  # (kinds, atoms), GPU-seconds per sequence
            [
                np.min([ideal_seconds(model, gpu, job, hwdb) for gpu in members(island, cluster)], axis=0)
                for island in islands
            ]
        )
        self.gpus = np.array([island.gpus for island in islands], dtype=np.float64)
        self._settle(least)

    def tightened(self, least: NDArray[np.float64]) -> "WorkBound":
        """This bound with atoms of at least `least` GPU-seconds per sequence, shape (kinds, atoms)."""
        tighter = copy(self)
        tighter._settle(least)
        return tighter

    def _settle(self, least: NDArray[np.float64] | None) -> None:
        if least is not None:  # what the caller knows of the layouts it allows
            self.seconds = np.maximum(self.seconds, least)
        fits = np.isfinite(self.seconds)  # some kinds cannot hold some atoms
        held = np.where(fits, self.seconds, 0.0)
        speed = self._speeds(fits, held)
        total = (self.gpus * speed).sum()
        self.value: NDArray[np.float64] = speed / total if total > 0 else speed  # y[k]
        shares = np.where(fits, held * self.value[:, None], np.inf)
        self._held_by_some = bool(fits.any(axis=0).all())
        cheapest = np.where(fits.any(axis=0), shares.min(axis=0), 0.0)  # per atom, of the step
        self._prefix = np.concatenate([[0.0], np.cumsum(cheapest)])
        nothing = np.zeros((len(held), 1))
        self._own = np.concatenate([nothing, np.cumsum(held, axis=1)], axis=1)
        self._lacking = np.concatenate([nothing, np.cumsum(~fits, axis=1)], axis=1)

    @staticmethod
    def _speeds(fits: NDArray[np.bool_], held: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sequences per second of one GPU of each kind on the whole model. For a kind that cannot hold some
        atom, its speed on the atoms it can hold, relative to the fastest kind for each atom, stands for the
        whole model: any speeds give a valid bound, accurate ones a tight bound."""
        best = np.where(fits.any(axis=0), np.where(fits, held, np.inf).min(axis=0), 0.0)
        own, reached = held.sum(axis=1), np.where(fits, best, 0.0).sum(axis=1)
        whole = np.divide(own * best.sum(), reached, out=np.full(len(own), np.inf), where=reached > 0)
        return np.asarray(1.0 / np.where(fits.all(axis=1), own, whole))

    def _own_s(
        self, kind: int, starts: int | NDArray[np.int64], stops: int | NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """GPU-seconds per sequence of atoms [start, stop) on one kind; inf where it cannot hold them all."""
        own = self._own[kind, stops] - self._own[kind, starts]
        return np.asarray(np.where(self._lacking[kind, stops] > self._lacking[kind, starts], np.inf, own))

    def step_s(self) -> float:
        """Lower bound in seconds on a step on all islands; inf where some atom fits nowhere."""
        return float(self.batch * self._prefix[-1]) if self._held_by_some else float("inf")

    def microbatch_s(self, microbatch: int) -> float:
        """Lower bound in seconds on any step with this microbatch size.

        The larger of `step_s` and the latency of one microbatch through the pipeline, each atom on at most
        all GPUs of one kind. The two are not added: other microbatches may be in work meanwhile.
        """
        latency = float((self.seconds / self.gpus[:, None]).min(axis=0).sum()) * microbatch
        return max(latency, self.step_s())

    def pipeline_s(self, microbatch: int) -> float:
        """Lower bound in seconds on a step of one pipeline of this microbatch, each stage on one kind.

        A stage processes M microbatches, after the first one has passed the stages before it and before the
        last one has gone back through them: M t_i + sum of t_j before it is at most the step T. So stages,
        most capable kinds first, do at most T / M, (1 - 1/M) T / M, ... of work per microbatch, and together
        no more than this share of what all GPUs do in T.
        """
        if not self._held_by_some:
            return float("inf")
        idle = 1.0 - microbatch / self.batch
        worth = np.sort(self.gpus * self.value)[::-1]
        used = float((worth / worth.sum() * idle ** np.arange(len(worth))).sum())
        return max(self.microbatch_s(microbatch), self.step_s() / used)

    def pipelines_s(self) -> float:
        """Lower bound in seconds on a step of one pipeline with each stage on one kind."""
        return min(self.pipeline_s(size) for size in divisors(self.batch))

    def load(self, start: int, stop: int, kind: int, gpus: int) -> float:
        """Load of atoms [start, stop) on `gpus` GPUs of one kind, over a balanced share: 1 is balanced.

        Ideal time of the slice on these GPUs over the ideal time of the whole model on the whole cluster.
        """
        return float(self._own_s(kind, start, stop) / gpus / self._prefix[-1])

    def slices_s(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64], kind: int, gpus: int
    ) -> NDArray[np.float64]:
        """Lower bounds in seconds on steps in which atoms [start, stop) run on `gpus` GPUs of one kind.

        The larger of the slice's own time (over-subscription) and the time of the rest of the model on the
        rest of the cluster (under-subscription). Shape of `starts` and `stops`.
        """
        own = self.batch * self._own_s(kind, starts, stops) / gpus
        rest = self._prefix[-1] - (self._prefix[stops] - self._prefix[starts])
        left = 1.0 - gpus * self.value[kind]  # share of the cluster's value that the rest may use
        beside = self.batch * rest / left if left > 1e-12 else np.full(len(starts), np.inf)
        return np.asarray(np.where(rest > 1e-15 * self._prefix[-1], np.maximum(own, beside), own))
