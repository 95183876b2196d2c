"""Ways to save memory that all pipelines share, and the profiles of layers under each."""

from dataclasses import dataclass, field, replace

from tangram_sim.layouts import Layout
from tangram_sim.planners.coarse.profile import LayerTable, Profile, SimulatedProfile
from tangram_sim.training.job import Job


@dataclass(frozen=True, eq=False)
class Saving:
    """A way to save memory: layout `like` (degrees unset), the layer profile, and the share of state that
    ZeRO shards."""

    like: Layout
    profile: Profile
    sharded: float = 0.0

    def among(self, copies: int) -> Profile:
        """The profile with `copies` of every layer, over which ZeRO shards its share of the state."""
        left = 1.0 - self.sharded * (1.0 - 1.0 / copies)
        return self.profile if left == 1.0 else ShardedProfile(self.profile, left)


def savings(profile: SimulatedProfile) -> tuple[Saving, ...]:
    """FlashFlex's ways to save memory: none, ZeRO-1, ZeRO-1 and ZeRO-3 each with full recomputation."""
    job = profile.job
    found = []
    for zero, recompute in ((0, "none"), (1, "none"), (1, "full"), (3, "full")):
        like = Layout(zero_stage=zero, recompute=recompute, sequence_parallel=True)
        found.append(Saving(like, replace(profile, like=replace(like, zero_stage=0)), _sharded(job, zero)))
    return tuple(found)


def _sharded(job: Job, zero: int) -> float:
    """Share of a layer's state bytes that ZeRO shards over the layer's copies."""
    if zero == 3:
        return 1.0
    return job.trainable * job.optimizer_bytes / job.bytes_per_parameter if zero else 0.0


@dataclass
class ShardedProfile(Profile):
    """A profile with only the share `left` of the state bytes on each GPU."""

    base: Profile
    left: float
    _tables: dict[tuple[int, int, int], LayerTable | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds, self.atoms = self.base.kinds, self.base.atoms
        self.boundary_bytes, self.gradient_bytes = self.base.boundary_bytes, self.base.gradient_bytes

    def tps(self, kind: int) -> tuple[int, ...]:
        """Tensor-parallel degrees, as the base has them."""
        return self.base.tps(kind)

    def layers(self, kind: int, tp: int, sequences: int) -> LayerTable | None:
        """The base profile's table with state bytes multiplied by `left`."""
        key = (kind, tp, sequences)
        if key not in self._tables:
            row = self.base.layers(*key)
            self._tables[key] = row and replace(
                row, state_bytes=tuple(size * self.left for size in row.state_bytes)
            )
        return self._tables[key]

    def rate(self, a: int, b: int, size: float, gpus: int) -> float:
        """Bytes/s between two kinds, as the base has them."""
        return self.base.rate(a, b, size, gpus)

    def inside_rate(self, kind: int, size: float) -> float:
        """Bytes/s inside a node, as the base has them."""
        return self.base.inside_rate(kind, size)
