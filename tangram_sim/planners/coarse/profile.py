"""Profiles that closed-form whole-cluster planners read: seconds and bytes of layers, rates of links.

Metis, Sailor and AMP read such figures from profiles of single layers. Here they come from the simulator's
prices, or from any other `Profile` (tables of measured layers in the benchmarks).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tangram_sim.clusters import Cluster, Island
from tangram_sim.errors import TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.layers.atoms import atom_kinds, atoms_of
from tangram_sim.layouts import Layout
from tangram_sim.models import Block, Model
from tangram_sim.parallelizers.layouts import divisors, head_counts
from tangram_sim.placement.between import group_limits
from tangram_sim.training.job import Job
from tangram_sim.training.stage.prices import StagePrices


@dataclass(frozen=True, slots=True)
class Kind:
    """Whole nodes of one GPU kind; `ranks` are their global ranks, node after node."""

    name: str
    gpu: str
    nodes: int
    gpus_per_node: int
    ranks: tuple[int, ...]

    @property
    def gpus(self) -> int:
        """GPUs of this kind."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class LayerTable:
    """Time and memory of every atom on one GPU kind under one `tp` and number of sequences per replica.

    Seconds per microbatch (forward, backward) or per step (update); bytes per GPU, with the activations of
    one microbatch in flight. `memory_bytes` is what state and activations may fill.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    state_bytes: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    memory_bytes: float

    @cached_property
    def seconds(self) -> list[float]:
        """Forward and backward seconds of all atoms before each boundary, shape (atoms + 1,)."""
        return _before([f + b for f, b in zip(self.forward_s, self.backward_s, strict=True)])

    @cached_property
    def updates(self) -> list[float]:
        """Update seconds of all atoms before each boundary, shape (atoms + 1,)."""
        return _before(self.update_s)

    @cached_property
    def states(self) -> list[float]:
        """State bytes of all atoms before each boundary, shape (atoms + 1,)."""
        return _before(self.state_bytes)

    @cached_property
    def activations(self) -> list[float]:
        """Activation bytes of all atoms before each boundary, one microbatch in flight, (atoms + 1,)."""
        return _before(self.activation_bytes)

    def bytes_with(self, in_flight: int) -> list[float]:
        """Bytes of state plus `in_flight` microbatches of activations of all atoms before each boundary."""
        if in_flight not in self._held:
            pairs = zip(self.states, self.activations, strict=True)
            self._held[in_flight] = [state + in_flight * activation for state, activation in pairs]
        return self._held[in_flight]

    @cached_property
    def _held(self) -> dict[int, list[float]]:
        return {}


def _before(values: Sequence[float]) -> list[float]:
    return [0.0, *accumulate(values)]


class Profile(ABC):
    """Layer times, memory and link rates of one model on one cluster. Implementations are deterministic."""

    kinds: tuple[Kind, ...]
    atoms: int
    boundary_bytes: float  # activations of one sequence between two stages
    gradient_bytes: tuple[float, ...]  # of every atom, all of it

    @abstractmethod
    def tps(self, kind: int) -> tuple[int, ...]:
        """Tensor-parallel degrees that the model and a node of this kind allow, ascending."""

    @abstractmethod
    def layers(self, kind: int, tp: int, sequences: int) -> LayerTable | None:
        """Table of all atoms on one GPU kind; None where the profile has none for these arguments."""

    @abstractmethod
    def rate(self, a: int, b: int, size: float, gpus: int) -> float:
        """Bytes/s at which `gpus` GPUs of a node of kind `a` send `size` bytes to as many of kind `b`."""

    @abstractmethod
    def inside_rate(self, kind: int, size: float) -> float:
        """Bytes/s at which one GPU sends `size` bytes to another GPU of its node."""


@dataclass
class SimulatedProfile(Profile):
    """A profile computed from the simulator's prices of single atoms.

    Atoms are priced under the layout `like`, with its parallel degrees replaced.
    """

    model: Model
    cluster: Cluster
    job: Job
    hwdb: Hwdb
    islands: tuple[Island, ...]
    prices: StagePrices
    like: Layout = field(default_factory=Layout)
    _tables: dict[tuple[int, int, int], LayerTable | None] = field(init=False, default_factory=dict)
    _rates: dict[tuple[int, int], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        first = [0]
        for group in self.cluster.node_group:
            first.append(first[-1] + self.cluster.groups[group].node.gpus)
        self.kinds = tuple(
            Kind(
                island.name,
                island.gpu.name,
                island.nodes,
                island.gpus_per_node,
                tuple(rank for node in island.node_indices for rank in range(first[node], first[node + 1])),
            )
            for island in self.islands
        )
        self.atoms = self.model.layers + 2
        self.boundary_bytes = self.job.boundary_bytes(self.model, 1)
        parameters = [
            atom.parameters(self.model.hidden) if isinstance(atom, Block) else atom.parameters
            for atom in atoms_of(self.model)
        ]
        self.gradient_bytes = tuple(
            float(count) * self.job.trainable * self.job.recipe.gradient_bytes for count in parameters
        )

    def tps(self, kind: int) -> tuple[int, ...]:
        """Tensor-parallel degrees that divide the GPUs of a node and all head counts."""
        heads = np.gcd.reduce(list(head_counts(self.model)))
        return tuple(tp for tp in divisors(self.islands[kind].gpus_per_node) if heads % tp == 0)

    def layers(self, kind: int, tp: int, sequences: int) -> LayerTable | None:
        """Table of atoms priced one by one on `tp` GPUs of a node; atoms of the same kind are priced once."""
        key = (kind, tp, sequences)
        if key not in self._tables:
            self._tables[key] = self._table(*key)
        return self._tables[key]

    def _table(self, kind: int, tp: int, sequences: int) -> LayerTable | None:
        inside = self.islands[kind].gpus_per_node
        place = self.islands[kind].part(max(tp // inside, 1), min(tp, inside))
        layout = replace(self.like, tp=tp, sequence_parallel=self.like.sequence_parallel and tp > 1)
        kinds, known = atom_kinds(self.model), {}
        for atom, what in enumerate(kinds):
            if what not in known:
                try:
                    known[what] = self.prices.price(place, layout, sequences, atom, atom + 1)
                except TangramError:  # no row for this layout: a hole, as in any profile
                    return None
        rows = [known[what] for what in kinds]
        waste = max(1.0 + row.fragmentation for row in rows)
        beside = max(row.transient_bytes for row in rows) * waste
        return LayerTable(
            tuple(row.forward_s for row in rows),
            tuple(row.backward_s for row in rows),
            tuple(row.optimizer_s for row in rows),
            tuple(row.static_bytes for row in rows),
            tuple(row.activation_bytes * waste for row in rows),
            rows[0].capacity_bytes - beside,
        )

    @cached_property
    def _limits(self) -> NDArray[np.float64]:
        return group_limits(self.cluster)[0]

    def rate(self, a: int, b: int, size: float, gpus: int) -> float:
        """Bytes/s of the slower NIC or the limit between groups, all of it for one flow of any size."""
        if (a, b) not in self._rates:
            limit = float(self._limits[np.ix_(self.islands[a].groups, self.islands[b].groups)].min())
            nics = min(self.islands[kind].nic_bytes_per_s for kind in (a, b))
            self._rates[a, b] = min(limit, nics) * self.hwdb.network_efficiency.value
        return self._rates[a, b]

    def inside_rate(self, kind: int, size: float) -> float:
        """Bytes/s of one link inside a node of the kind, times the efficiency that transfers reach."""
        island = self.islands[kind]
        return island.intra.bytes_per_s * self.hwdb.link_efficiency(island.intra).value
