"""Search effort: constants that trade time for plan quality and that several strategies share.

A strategy's own constants stand next to its code, by effort where they depend on it.

Work is counted, not timed, so that a search with the same budget finds the same plan on every machine.
Constants that change no result stay where they are used: how long a compiled call runs before it checks the
clock, how many partial plans and prices stay in memory, at which width a bisection ends.
"""

from dataclasses import dataclass, replace

from tangram_sim.errors import unknown_name


@dataclass(frozen=True, slots=True)
class CompositionBudget:
    """Limits on composing one table of partial plans, for one microbatch size."""

    # First a look at everything, which ends most small questions; where that is too much a beam finds good
    # pipelines, whose steps then limit the proof.
    first_work: int = 4_000_000
    labels: int = 1 << 20  # at once: 72 bytes each
    composed: int = 1 << 13  # complete pipelines played, those with the least bound first
    # Seconds of a bound or a play hang on microbatches: so many passes through stages are played at most.
    played_passes: int = 1 << 24
    kept: int = 256  # of the pipelines played, handed over


@dataclass(frozen=True, slots=True)
class SearchBudget(CompositionBudget):
    """Limits of one search. One unit of `work` is a comparison of two labels, 3 to 10 ns."""

    # Limits over the lower bound, while there is nothing to beat, of sweeps over whole islands and halves.
    coarse_limits: tuple[float, ...] = (2.0, 10.0)
    # Sweeps over microbatch sizes. Over halves of islands they go outward from some 32 microbatches, until so
    # many in a row, on that side, are no better. Halves say which sizes are likely: so many of these are
    # looked at node by node, and further ones while all of them came to no more options than this (some 2 ms
    # each thousand). Of sizes left out no more is known than their work.
    patience: int = 3
    sizes: int = 4
    options: int = 30_000
    # Layouts priced node by node, a quarter of a microsecond each with all that composing them takes, after
    # which no further size is begun; over halves half. What halves priced does not count: where deep models
    # fit no half of an island, all sizes are priced there in vain.
    layouts: int = 8_000_000
    bounding: bool = True  # say what pipelines take at least, also of sizes that are not looked at
    # Labels kept of a state by the beams, one after the other. The first takes little, and what it finds
    # limits the next: far from any limit a beam of 4 took four seconds where both take two. Over halves of
    # islands they only set a limit.
    widths: tuple[int, ...] = (1, 4, 16, 64)
    coarse_widths: tuple[int, ...] = (1, 4)
    # Of a beam from the third on, by what the one before took: a wider one that needs more is left out. A
    # second: four nodes of H100, six of A100 and four of L40S gain 4 % from half of it.
    beam_work: int = 450_000_000
    # Node by node all sizes are looked at with narrow beams first, up to this width and work. Wider ones are
    # for sizes that are so near to the best step by then, the widest where it is less work; of those farther
    # off both where they are a quarter of a second: narrow beams tell little (a fifth was gained so). Of the
    # best size the widest may be more work in the end, if the one before gained something (1.7 % for the four
    # nodes of H100 above, in a second).
    narrow: int = 4
    narrow_work: int = 150_000_000
    near: float = 1.1
    widest_work: int = 150_000_000
    far_work: int = 100_000_000
    last_work: int = 1_500_000_000
    # Proof of what is left below the best pipeline's step, with ever larger tolerances: labels better by less
    # than such a share of the limit may be dropped, and the bound pays for it, at every stage once. What has
    # no end at 0.3 s has had none at 5.
    tolerances: tuple[float, ...] = (0.0, 0.005)
    proof_work: tuple[int, ...] = (20_000_000, 150_000_000)
    # Finalists: pipelines this close to the best step are played whole, so many of one microbatch size; more
    # of both where the composition only estimates steps (schedules that put off weight gradients).
    played: int = 16
    rough_played: int = 48
    effort: str = "normal"  # by which strategies look up their own constants

    @property
    def coarse(self) -> "SearchBudget":
        """This budget with the narrow beams of a sweep that looks for a first good plan."""
        return replace(self, widths=self.coarse_widths)

    @property
    def apart(self) -> "SearchBudget":
        """Budget for searching some islands next to replicated patterns: few sizes, beams of full width.

        The numbers of sizes are those of `quick`: this found the same plans as all sizes in a quarter of the
        time, while narrower beams were 3 % behind. Layout and beam limits are those of this budget. No lower
        bounds are computed, since no caller reads them.
        """
        wide = {
            name: getattr(self, name)
            for name in (
                *("layouts", "first_work", "widths", "beam_work", "labels"),
                *("narrow", "narrow_work", "near", "widest_work", "far_work", "last_work"),
            )
        }
        return replace(EFFORTS["quick"], bounding=False, **wide)


EFFORTS = {
    "quick": SearchBudget(
        effort="quick",
        patience=2,
        sizes=2,
        options=0,
        layouts=1_000_000,
        first_work=1_000_000,
        widths=(1, 4),
        narrow_work=50_000_000,
        near=1.0,
        widest_work=50_000_000,
        far_work=25_000_000,
        last_work=0,
        coarse_widths=(2,),
        proof_work=(2_000_000, 2_000_000),
        labels=1 << 18,
        composed=1 << 11,
        played_passes=1 << 22,
        played=6,
        rough_played=16,
    ),
    "normal": SearchBudget(),
    "exhaustive": SearchBudget(
        effort="exhaustive",
        patience=1 << 30,
        sizes=1 << 30,
        layouts=1 << 62,
        first_work=40_000_000,
        beam_work=4_000_000_000,
        tolerances=(0.0, 0.0005, 0.005),
        widths=(1, 8, 64, 256),
        narrow=256,
        narrow_work=1 << 60,
        near=float("inf"),
        widest_work=4_000_000_000,
        far_work=4_000_000_000,
        last_work=4_000_000_000,
        coarse_widths=(4, 16),
        proof_work=(4_000_000_000,) * 3,
        labels=1 << 22,
        played=32,
        rough_played=128,
    ),
}


def budget(effort: str) -> SearchBudget:
    """The budget of an effort: quick, normal or exhaustive. Raises UnknownNameError."""
    if effort not in EFFORTS:
        raise unknown_name("effort", effort, EFFORTS)
    return EFFORTS[effort]
