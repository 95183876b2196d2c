"""Constraints that a user sets on layouts."""

from dataclasses import dataclass

from tangram_sim.errors import unknown_name
from tangram_sim.fields import SEARCH, described, fact, option
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.written import name_list, positive


def _recompute(text: str) -> tuple[str, ...]:
    """Parse comma-separated kinds of recomputation. Raises UnknownNameError for others."""
    kinds = name_list(text)
    for kind in kinds:
        if kind not in RECOMPUTE:
            raise unknown_name("recompute kind", kind, RECOMPUTE)
    return tuple(kind for kind in RECOMPUTE if kind in kinds)


@described
@dataclass(frozen=True, slots=True)
class Constraints:
    """What the user has fixed; a parallelizer proposes nothing else."""

    fixed: tuple[tuple[str, int], ...] = fact((), "Degrees by name: tp, dp, cp, ep, pp, zero_stage.")
    recompute: tuple[str, ...] = option(
        RECOMPUTE,
        "Allow only these: none, selective, full.",
        label="Recompute",
        reads=_recompute,
        unset="all",
        group=SEARCH,
    )
    microbatch_per_rank: int = option(
        0,
        "Sequences of a microbatch per data-parallel rank.",
        label="Sequences per rank",
        reads=positive,
        unit="sequences",
        least=0,
        unset="free",
        group=SEARCH,
    )
    sequence_parallel: bool | None = fact(None, "Whether layouts are sequence-parallel; None: free.")
    zero_stages: tuple[int, ...] = fact((0, 1, 2, 3), "ZeRO stages that are allowed.")
    copies: int = fact(1, "Equal pipelines side by side: dp is a multiple of this.", "pipelines")
    microbatch: int = fact(0, "Sequences of a microbatch, whole stage; 0: free.", "sequences")

    def allows(self, layout: Layout, microbatch: int) -> bool:
        """Whether a layout satisfies all constraints."""
        return (
            all(getattr(layout, name) == value for name, value in self.fixed)
            and layout.recompute in self.recompute
            and (
                not self.microbatch_per_rank
                or layout.sequences_per_rank(microbatch) == self.microbatch_per_rank
            )
            and (self.sequence_parallel is None or layout.sequence_parallel == self.sequence_parallel)
            and layout.zero_stage in self.zero_stages
            and layout.dp % self.copies == 0
            and self.microbatch in (0, microbatch)
        )
