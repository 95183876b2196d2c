"""Inputs of all ops of a stage, for K layouts of one slice on one island at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Island
from tangram_sim.cost.collectives import Group, group
from tangram_sim.cost.device import Rates, device_rates
from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.program import COMPUTE, HOST
from tangram_sim.layers.sharding import Sharding
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.models import Model
from tangram_sim.training.job import Job
from tangram_sim.training.stage.sharing import Sharing


@dataclass(frozen=True)
class Setting:
    """K layouts of stages of `model` on `island` under `job`, with `microbatch` sequences per stage.

    `microbatch` may be K numbers, one for each layout. All layouts have `pp == 1`: an inner pipeline is
    several stages, each with its own setting. `sharing` is set where other parts or pipelines hold the same
    weights (with one layout, K = 1).
    """

    model: Model
    island: Island
    job: Job
    microbatch: int | tuple[int, ...]
    layouts: tuple[Layout, ...]
    hwdb: Hwdb
    sharing: Sharing | None = None
    shares: tuple[float, ...] = ()  # K: a rank's columns over those of an even cut; empty: all 1

    def _column(self, values: Sequence[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    @cached_property
    def tp(self) -> NDArray[np.int64]:
        """Tensor-parallel degrees, K."""
        return self._column([layout.tp for layout in self.layouts])

    @cached_property
    def sharding(self) -> Sharding:
        """How columns are cut over tensor-parallel ranks: evenly, unless the setting has `shares`."""
        return Sharding(self.tp, np.array(self.shares) if self.shares else 1.0)

    @cached_property
    def cp(self) -> NDArray[np.int64]:
        """Context-parallel degrees, K."""
        return self._column([layout.cp for layout in self.layouts])

    @cached_property
    def dp(self) -> NDArray[np.int64]:
        """Data-parallel degrees, K."""
        return self._column([layout.dp for layout in self.layouts])

    @cached_property
    def ep(self) -> NDArray[np.int64]:
        """Expert-parallel degrees, K."""
        return self._column([layout.ep for layout in self.layouts])

    @cached_property
    def zero(self) -> NDArray[np.int64]:
        """ZeRO stages, K."""
        return self._column([layout.zero_stage for layout in self.layouts])

    @cached_property
    def fsep(self) -> NDArray[np.bool_]:
        """Whether experts are fully sharded over all replicas, [K]."""
        return np.array([layout.fsep for layout in self.layouts], dtype=bool)

    @cached_property
    def slices(self) -> NDArray[np.int64]:
        """Number of pieces in which ZeRO-3 gathers a weight, [K]."""
        return self._column([layout.slices for layout in self.layouts])

    @cached_property
    def recompute(self) -> NDArray[np.int64]:
        """0 none, 1 selective, 2 full; K."""
        return self._column([RECOMPUTE.index(layout.recompute) for layout in self.layouts])

    @cached_property
    def sequence_shards(self) -> NDArray[np.int64]:
        """Ranks that norms and residuals are sharded over: tp with sequence parallelism, else 1."""
        return self._column([layout.tp if layout.sequence_parallel else 1 for layout in self.layouts])

    @cached_property
    def sequences(self) -> NDArray[np.int64]:
        """Sequences per microbatch of the largest data-parallel share, [K]."""
        return -(
            -self._column(self.microbatch if isinstance(self.microbatch, tuple) else [self.microbatch])
            // self.dp
        )

    @cached_property
    def tokens(self) -> Floats:
        """Tokens per rank and microbatch for the largest share, [K]."""
        return self.sequences * (self.job.seq / self.cp)

    @cached_property
    def replicas(self) -> NDArray[np.int64]:
        """Ranks that hold the same dense weights, [K]: dp x cp, and ranks of other parts that share them."""
        if self.sharing is not None:
            return self._column([self.sharing.replicas] * len(self.layouts))
        return self.dp * self.cp

    @cached_property
    def expert_replicas(self) -> NDArray[np.int64]:
        """Ranks that hold the same experts, [K]."""
        if self.sharing is not None:
            return self._column([self.sharing.expert_replicas] * len(self.layouts))
        owned: NDArray[np.int64] = np.maximum(self.replicas // self.ep, 1)
        return owned

    @property
    def hybrid(self) -> bool:
        """Whether ZeRO shards over groups of replicas, each of which holds a full copy (hybrid sharding)."""
        return self.job.shard_ranks > 0 and self.sharing is None

    @cached_property
    def shards(self) -> NDArray[np.int64]:
        """Ranks over which ZeRO shards dense weights and state, [K]: all replicas, or a hybrid group."""
        return np.gcd(self.replicas, self.job.shard_ranks) if self.hybrid else self.replicas

    @cached_property
    def rates(self) -> Rates:
        """Rates of the island's (worst) GPU."""
        rates = device_rates(self.island.gpu, self.job.precision.types, self.hwdb, self.job.stack)
        return rates if self.job.flash_attention else replace(rates, fused_attention=False)

    @property
    def launch_stream(self) -> int:
        """The stream of the host's launches: concurrent with the device, or on it where it waits for them."""
        return COMPUTE if self.job.launch_blocking else HOST

    @cached_property
    def tp_group(self) -> Group:
        """Tensor-parallel groups."""
        return group(self.island, self.tp, np.ones_like(self.tp), self.hwdb)

    @cached_property
    def cp_group(self) -> Group:
        """Context-parallel groups."""
        return group(self.island, self.cp, self.tp, self.hwdb)

    @cached_property
    def dp_group(self) -> Group:
        """Gradient groups of dense weights."""
        return self._gradient_group(self.replicas, self.tp, self.sharing.dense if self.sharing else None)

    @cached_property
    def shard_group(self) -> Group:
        """Groups over which ZeRO shards dense weights: neighbours among the replicas."""
        return group(self.island, self.shards, self.tp, self.hwdb) if self.hybrid else self.dp_group

    @cached_property
    def copy_group(self) -> Group:
        """Ranks with the same shard of dense weights: one from each group of a hybrid sharding."""
        return group(self.island, self.replicas // self.shards, self.tp * self.shards, self.hwdb)

    @cached_property
    def ep_group(self) -> Group:
        """Expert-parallel groups: neighbouring ranks of the dp x cp group."""
        return group(self.island, self.ep, self.tp, self.hwdb)

    @cached_property
    def expert_dp_group(self) -> Group:
        """Gradient groups of expert weights."""
        return self._gradient_group(
            self.expert_replicas, self.tp * self.ep, self.sharing.experts if self.sharing else None
        )

    def _gradient_group(
        self, ranks: NDArray[np.int64], stride: NDArray[np.int64], pace: float | None
    ) -> Group:
        """Groups of `ranks` over the stage, or over all parts that share its weights; `pace`: their
        bytes/s.
        """
        island = self.sharing.island if self.sharing is not None else self.island
        found = group(island, ranks, stride, self.hwdb)
        if pace is None:
            return found
        rate = pace * np.ones(len(ranks))
        return replace(
            found,
            ring=found.ring._replace(bytes_per_s=rate),
            network=found.network._replace(bytes_per_s=rate),
            switch=None,
        )
