"""Noun of a layout: how one slice is spread over the GPUs of one stage."""

from collections.abc import Sequence
from dataclasses import dataclass

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """Degrees of one stage (or of a run of its layers). GPUs used = pp * tp * cp * dp; ep divides dp * cp.

    `pp` counts inner pipeline stages on the same scale-up domain. Ranks are numbered tp fastest,
    then cp, dp, pp. Experts are sharded over `ep` ranks of the dp x cp group.

    `fsep` (fully sharded experts, arXiv:2602.11686): expert weights, gradients and optimizer states are cut
    over all dp x cp ranks and the share that `ep` gives a rank is put together before each use. `slices`:
    weights that ZeRO-3 gathers come in so many pieces, one at a time (operator splitting of OSDP).
    """

    tp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    zero_stage: int = 0
    recompute: str = "none"
    sequence_parallel: bool = False
    fsep: bool = False
    slices: int = 1

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
