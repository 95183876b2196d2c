"""How hard a search looks: every constant that trades time for quality, with its reason, by effort.

Work is counted, never timed, so that a search with the same budget finds the same plan on every machine.
"""

from dataclasses import dataclass, replace

from tangram_sim.errors import unknown_name


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """What one search may spend. A unit of `work` is a comparison of two labels, some 3 ns."""

    # Composition of one table (one microbatch size): first a look at everything, which ends most small
    # questions; where that is too much a beam finds good pipelines, whose steps then limit the proof.
    first_work: int = 4_000_000
    widths: tuple[int, ...] = (4, 16)  # labels kept of a state by the beams, one after the other
    beam_work: int = (
        60_000_000  # of a beam, by what the one before took: a wider one that needs more is left out
    )
    proof_work: int = 20_000_000  # labels that prove or disprove what is left below the best pipeline's step
    # Labels better by less than this share of the limit may be dropped where the proof takes too much: the
    # bound pays for it, at every stage once.
    tolerances: tuple[float, ...] = (0.005,)
    spanning_widths: tuple[int, ...] = (4,)  # of beams over stages on several islands, where options are many
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
    # For a uniform layout where a search out of time has no plan at all: seconds on the clock, and ops played
    # in any case, all that matter on small clusters.
    grace_s: float = 0.7
    grace_ops: int = 300_000


EFFORTS = {
    "quick": SearchBudget(
        first_work=1_000_000, widths=(4,), proof_work=4_000_000, tolerances=(0.005,), labels=1 << 18
    ),
    "normal": SearchBudget(),
    "exhaustive": replace(
        SearchBudget(),
        first_work=40_000_000,
        beam_work=4_000_000_000,
        tolerances=(0.0005, 0.005),
        widths=(8, 64, 256),
        proof_work=4_000_000_000,
        labels=1 << 22,
    ),
}


def budget(effort: str) -> SearchBudget:
    """The budget of an effort. Raises UnknownNameError."""
    if effort not in EFFORTS:
        raise unknown_name("effort", effort, EFFORTS)
    return EFFORTS[effort]
