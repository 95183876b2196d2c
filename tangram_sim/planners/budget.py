"""How hard a search looks: every constant that trades time for quality node by node, with its reason.

Work is counted, never timed, so that a search with the same budget finds the same plan on every machine.
"""

from dataclasses import dataclass, replace

from tangram_sim.errors import unknown_name


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """What one search may spend. A unit of `work` is a comparison of two labels, 3 to 10 ns."""

    # Sweeps over microbatch sizes. Over halves of islands they go outward from some 32 microbatches, until so
    # many in a row, on that side, are no better. Halves say which sizes are likely: so many of these are
    # looked at node by node, and further ones while all of them came to no more options than this (some 2 ms
    # each thousand). Of sizes left out no more is known than their work.
    patience: int = 3
    sizes: int = 4
    options: int = 30_000
    # Layouts priced in all, about a microsecond each, after which no further size is begun; over halves half.
    layouts: int = 8_000_000
    # Composition of one table (one microbatch size): first a look at everything, which ends most small
    # questions; where that is too much a beam finds good pipelines, whose steps then limit the proof.
    first_work: int = 4_000_000
    widths: tuple[int, ...] = (4, 16)  # labels kept of a state by the beams, one after the other
    coarse_widths: tuple[int, ...] = (4,)  # of those over halves of islands, which only set a limit
    spanning_widths: tuple[int, ...] = (4,)  # of those over stages on several islands, where options are many
    beam_work: int = (
        60_000_000  # of a beam, by what the one before took: a wider one that needs more is left out
    )
    proof_work: int = 20_000_000  # labels that prove or disprove what is left below the best pipeline's step
    # Labels better by less than this share of the limit may be dropped where the proof takes too much: the
    # bound pays for it, at every stage once.
    tolerances: tuple[float, ...] = (0.005,)
    labels: int = 1 << 20  # at once: 72 bytes each
    composed: int = 1 << 13  # complete pipelines played, those with the least bound first
    kept: int = 256  # of these, handed over
    # Seconds of a bound or a play hang on microbatches: so many passes through stages are played at most.
    played_passes: int = 1 << 24
    # A second look plays suffixes. After a first one with few labels it drops none and so proves the best
    # pipeline; after one with more than some it is left out, since it would take too long.
    few_labels: int = 1 << 10
    some_labels: int = 1 << 14
    proven: float = 1e-3  # a gap that is not worth a second look
    # Finalists: pipelines this close to the best step are played whole, so many of one microbatch size; more
    # of both where the composition only estimates steps (schedules that put off weight gradients).
    slack: float = 0.003
    rough_slack: float = 0.03
    played: int = 16
    rough_played: int = 48
    shared: int = 32  # kinds of finalists played with shared links
    refined: int = 10  # of these, atoms moved over their boundaries
    ops: int = 400_000  # of all steps played with shared links: an event loop takes microseconds for each
    # Pipelines side by side: questions asked for them (one for every so many of the search, and at least so
    # many), combinations played, and how near to the best step their objective lies.
    beside_share: int = 40
    beside_least: int = 40
    beside_played: int = 4
    beside_near: float = 1.05
    # Stages on several islands: slices asked about (as above), microbatch sizes next to the best one, what is
    # played of each and how near to the best step, and what is refined: links shared, plans change places.
    joint_share: int = 16
    joint_least: int = 60
    joint_most: int = 240  # whatever the search asked: each takes 20 ms and more
    joint_sizes: int = 4
    joint_played: int = 24
    joint_slack: float = 0.03
    joint_refined: int = 4
    joint_worth: float = 0.01  # distance to the least work below which nothing is looked for
    # Layouts estimated for the nearest plan that a framework can launch: beside a plan, and where asked for.
    launchable: int = 6000
    launchable_asked: int = 20_000
    # For a uniform layout where a search out of time has no plan at all: seconds on the clock, and ops played
    # in any case, all that matter on small clusters.
    grace_s: float = 0.7
    grace_ops: int = 300_000
    grace_gpus: int = 128  # clusters up to which ops count: on larger ones it is the clock alone

    @property
    def coarse(self) -> "SearchBudget":
        """The budget of a sweep that looks for a first good plan."""
        return replace(self, widths=self.coarse_widths)


EFFORTS = {
    "quick": SearchBudget(
        patience=2,
        sizes=2,
        options=0,
        layouts=1_000_000,
        first_work=1_000_000,
        widths=(4,),
        coarse_widths=(2,),
        spanning_widths=(2,),
        proof_work=2_000_000,
        labels=1 << 18,
        composed=1 << 11,
        played_passes=1 << 22,
        played=6,
        rough_played=16,
        shared=8,
        refined=3,
        ops=100_000,
        beside_least=10,
        beside_share=160,
        beside_played=2,
        joint_share=64,
        joint_least=24,
        joint_most=48,
        joint_sizes=2,
        joint_played=8,
        joint_refined=1,
        launchable=1000,
        launchable_asked=4000,
    ),
    "normal": SearchBudget(),
    "exhaustive": SearchBudget(
        patience=1 << 30,
        sizes=1 << 30,
        layouts=1 << 62,
        first_work=40_000_000,
        beam_work=4_000_000_000,
        tolerances=(0.0005, 0.005),
        widths=(8, 64, 256),
        coarse_widths=(4, 16),
        proof_work=4_000_000_000,
        labels=1 << 22,
        played=32,
        rough_played=128,
        joint_share=8,
        joint_least=240,
        joint_most=1 << 30,
        joint_sizes=8,
        joint_played=48,
        joint_refined=8,
        launchable=20_000,
        launchable_asked=60_000,
    ),
}


def budget(effort: str) -> SearchBudget:
    """The budget of an effort. Raises UnknownNameError."""
    if effort not in EFFORTS:
        raise unknown_name("effort", effort, EFFORTS)
    return EFFORTS[effort]
