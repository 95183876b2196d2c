"""The layout of one slice over the GPUs of one stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from tangram_sim.fields import described, fact

RECOMPUTE = ("none", "selective", "full")


@described
@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """Degrees of one stage (or of a run of its layers). GPUs used = pp * tp * cp * dp; ep divides dp * cp.

    `pp` counts inner pipeline stages on the same scale-up domain. Ranks are numbered tp fastest, then cp, dp,
    pp. Experts are sharded over `ep` ranks of the dp x cp group.

    `fsep` (fully sharded experts, arXiv:2602.11686): expert weights, gradients and optimizer states are
    sharded over all dp x cp ranks, and the share that `ep` gives a rank is gathered before each use.
    `slices`: number of pieces in which ZeRO-3 gathers a weight, one at a time (operator splitting of OSDP).
    """

    tp: int = fact(1, "Tensor-parallel degree.", "GPUs")
    dp: int = fact(1, "Data-parallel degree.", "replicas")
    cp: int = fact(1, "Context-parallel degree.", "GPUs")
    ep: int = fact(1, "Ranks of the dp x cp group over which experts are spread.", "GPUs")
    pp: int = fact(1, "Inner pipeline stages on one scale-up domain.", "stages")
    zero_stage: int = fact(0, "ZeRO stage, 0 to 3: replicas also cut optimizer states, gradients, weights.")
    recompute: str = fact("none", "Activations that are computed again: none, selective or full.")
    sequence_parallel: bool = fact(False, "Whether norms and dropout are cut over tp ranks, too.")
    fsep: bool = fact(False, "Whether experts are cut over all dp x cp ranks and gathered for each use.")
    slices: int = fact(1, "Pieces in which ZeRO-3 gathers the weights of a layer.", "pieces")

    @property
    def gpus(self) -> int:
        """GPUs this layout occupies."""
        return self.pp * self.tp * self.cp * self.dp

    @property
    def gradient_copies(self) -> int:
        """Replicas of a stage that hold whole gradients; from ZeRO-2 on they hold shards of one copy."""
        return self.dp * self.cp if self.zero_stage < 2 else 1

    def sequences_per_rank(self, microbatch: int) -> int:
        """The largest data-parallel share of a microbatch; it sets the time."""
        return -(-microbatch // self.dp)

    def __str__(self) -> str:
        degrees = [
            f"{name}{value}"
            for name, value in (
                ("tp", self.tp),
                ("dp", self.dp),
                ("cp", self.cp),
                ("ep", self.ep),
                ("pp", self.pp),
            )
            if value > 1
        ]
        text = "-".join(degrees) or "1 GPU"
        if self.zero_stage:
            text += f" zero{self.zero_stage}"
        if self.recompute != "none":
            text += f" recompute={self.recompute}"
        text += " fsep" if self.fsep else ""
        text += f" slices{self.slices}" if self.slices > 1 else ""
        return text + (" sp" if self.sequence_parallel else "")


def gradient_copies(layouts: Sequence[Layout]) -> int:
    """Copies of whole gradients on ranks of these layouts, which hold the same weights.

    Layouts that all shard their gradients (ZeRO-2, or ZeRO-3) do so over one another: one copy of all.
    """
    if len({layout.zero_stage for layout in layouts}) == 1 and layouts[0].zero_stage >= 2:
        return 1
    return sum(layout.gradient_copies for layout in layouts)
