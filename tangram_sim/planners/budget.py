"""How hard a search looks: every constant that trades time for quality, with its reason.

Work is counted, never timed, so that a search with the same budget finds the same plan on every machine.
What changes no answer stays where it is used: how long a compiled call runs before it looks at the clock,
how many answers and prices stay in memory, how fine a bisection ends.
"""

from dataclasses import dataclass, replace

from tangram_sim.errors import unknown_name


@dataclass(frozen=True, slots=True)
class FleetBudget:
    """Large clusters: which patterns are looked for, and how many mixes of their copies are tried."""

    # From so many combinations of node counts, or nodes, on: below, single nodes are told apart and the plan
    # is as good in as much time. Where patterns are not allowed nodes are taken in groups instead.
    states: int = 1500
    nodes: int = 24
    patience: int = 3  # shapes in a row, from the likeliest on, that are no better: the rest is left out
    # The best shapes once more with stages on parts of nodes, where that leaves most of the copies: it gained
    # 0.2 to 1.4 %. Above `few` nodes for three to five times the questions, so there none.
    finer: int = 3
    few: int = 64
    # Composition of one shape: counts of nodes in a copy that are all kept apart, with more kinds are used up
    # one by one; and counts so used up, which double with every island: tables of a dozen take a second each.
    apart: int = 300
    most_told_apart: int = 1 << 14
    # Of the limit: what a stage may add to the best pattern, for many fewer labels. What the first finds
    # limits the next; where it finds nothing, something little better than the limit may be lost. Every
    # stage may lose as much: where the last was too much work a mixture of 47 layers was 1.9 % slower
    # without the one in between, which took no more in all.
    tolerances: tuple[float, ...] = (0.01, 0.005, 0.002)
    # Comparisons: of a first look at everything, which ends for most shapes on one kind of GPU; and of one
    # below what beams found, a fifth of a second, after which that is taken.
    first_work: int = 4_000_000
    work: int = 25_000_000
    beams: tuple[int, ...] = (2,)  # labels kept of a state: wider ones found under 0.5 % better pipelines
    labels: int = 1 << 20
    composed: int = 64  # complete patterns played, those with the least bound first
    played_passes: int = 1 << 20  # microbatches through stages in these plays
    kept: int = 2  # patterns of one shape and microbatch
    slack: float = 0.02  # of the best pattern of a kind: these, too, are kept
    # How often the master program of mixes is solved, corrected by what was played; equal copies played.
    rounds: int = 4
    alike: int = 12
    # Some islands once more, nodes told apart (`apart`): not where the bound on their pipelines is so near.
    apart_worth: float = 0.05


@dataclass(frozen=True, slots=True)
class BoundBudget:
    """The bound on fleets: how near it is looked for."""

    # Atoms x kinds of nodes x degrees of experts, beyond which none is looked for: 0.2 ms each.
    most: int = 2000
    # Rows of stages looked at in all, some 50 ns each: one to two seconds at most.
    work: int = 25_000_000

    @property
    def asked(self) -> "BoundBudget":
        """The budget where the bound is asked for."""
        return replace(self, work=10 * self.work, most=1 << 62)


@dataclass(frozen=True, slots=True)
class LaunchBudget:
    """The nearest plan that a framework can launch: which uniform layouts are estimated."""

    chains: int = 8000  # layouts over any sequence of groups that are estimated
    wave: int = 48  # of these at a time
    stages: int = 64  # the deepest pipeline
    microbatch: int = 16  # sequences per rank of the largest
    chunks: tuple[int, ...] = (2, 4)  # per stage that holds several
    refined: int = 12  # best layouts on a set of node groups whose layers are moved over boundaries
    near: float = 1.05  # of these, how much slower than the best one they are estimated to be, at most
    alike: int = 6  # of these, of the same degrees on the same groups
    rounds: int = 3  # passes over these
    ops: int = 150_000  # of steps with shared links that are played while layers of one layout move


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """What one search may spend. A unit of `work` is a comparison of two labels, 3 to 10 ns."""

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
    # Composition of one table (one microbatch size): first a look at everything, which ends most small
    # questions; where that is too much a beam finds good pipelines, whose steps then limit the proof.
    first_work: int = 4_000_000
    # Labels kept of a state by the beams, one after the other. The first takes little, and what it finds
    # limits the next: far from any limit a beam of 4 took four seconds where both take two. Over halves of
    # islands they only set a limit.
    widths: tuple[int, ...] = (1, 4, 16, 64)
    coarse_widths: tuple[int, ...] = (1, 4)
    spanning_widths: tuple[int, ...] = (4,)  # of those over stages on several islands, where options are many
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
    played: int = 16
    rough_played: int = 48
    shared: int = 32  # kinds of finalists played with shared links
    refined: int = 10  # of these, atoms moved over their boundaries
    rough_refined: int = 32  # and where composition only estimates: the best was seen behind ten others
    ops: int = 400_000  # of all steps played with shared links: an event loop takes microseconds for each
    # Those of the islands that the best pipeline uses once more: not where the bound on pipelines is so much
    # of its step.
    fewer_near: float = 0.95
    # Pipelines side by side: questions asked for them (one for every so many of the search, and at least so
    # many), and combinations played.
    beside_share: int = 40
    beside_least: int = 40
    beside_played: int = 4
    # Pipelines over sets of islands: all sets of so many islands, with the usual microbatches; those of the
    # likeliest choices with so many sizes.
    beside_islands: int = 5
    beside_sizes: int = 4
    # Stages on several islands: slices asked about (as above), microbatch sizes next to the best one, what is
    # played of each, and what is refined: links shared, plans change places.
    joint_share: int = 16
    joint_least: int = 60
    joint_most: int = 240  # whatever the search asked: each takes 20 ms and more
    joint_sizes: int = 4
    joint_played: int = 24
    joint_refined: int = 4
    # Times the best step: what a plan that loses less with a node may take.
    lasting: float = 2.0
    joint_passes: int = 16  # per step, for lack of a plan that says how many are usual
    fleets: FleetBudget = FleetBudget()
    launchable: LaunchBudget = LaunchBudget()
    bound: BoundBudget = BoundBudget()
    # For a uniform layout where a search out of time has no plan at all: seconds on the clock. Beside copies
    # of patterns: ops of uniform layouts played.
    grace_s: float = 0.6
    beside_ops: int = 300_000

    @property
    def coarse(self) -> "SearchBudget":
        """The budget of a sweep that looks for a first good plan."""
        return replace(self, widths=self.coarse_widths)

    @property
    def apart(self) -> "SearchBudget":
        """The budget of a look at some islands beside copies of patterns: few sizes, beams as wide.

        It found what all sizes did in a quarter of the time; of narrower beams it came 3 % behind. Its sizes
        are those of `quick`, but of layouts as many: what is known ends it as well as what it finds. Looks at
        everything are as little work as those of `quick`, and only find plans: nobody asks for its bounds.
        """
        wide = {
            name: getattr(self, name)
            for name in (
                *("layouts", "first_work", "widths", "beam_work", "labels", "fleets"),
                *("narrow", "narrow_work", "near", "widest_work", "far_work", "last_work"),
            )
        }
        return replace(EFFORTS["quick"], bounding=False, **wide)


EFFORTS = {
    "quick": SearchBudget(
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
        spanning_widths=(2,),
        proof_work=(2_000_000, 2_000_000),
        labels=1 << 18,
        composed=1 << 11,
        played_passes=1 << 22,
        played=6,
        rough_played=16,
        shared=8,
        refined=3,
        rough_refined=3,
        fewer_near=0.9,
        ops=100_000,
        beside_least=10,
        beside_share=160,
        beside_played=2,
        beside_sizes=2,
        joint_share=64,
        joint_least=24,
        joint_most=48,
        joint_sizes=2,
        joint_played=8,
        joint_refined=1,
        fleets=FleetBudget(patience=2, finer=1, tolerances=(0.01,), work=10_000_000, rounds=2, alike=6),
        launchable=LaunchBudget(4000),
    ),
    "normal": SearchBudget(),
    "exhaustive": SearchBudget(
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
        fewer_near=1.0,
        rough_played=128,
        joint_share=8,
        joint_least=240,
        joint_most=1 << 30,
        joint_sizes=8,
        joint_played=48,
        joint_refined=8,
        fleets=FleetBudget(
            patience=6,
            finer=6,
            few=1 << 30,
            tolerances=(0.005, 0.0005),
            work=4_000_000_000,
            beams=(2, 16),
            rounds=8,
            alike=24,
        ),
        launchable=LaunchBudget(60_000),
        bound=BoundBudget().asked,
    ),
}


def budget(effort: str) -> SearchBudget:
    """The budget of an effort. Raises UnknownNameError."""
    if effort not in EFFORTS:
        raise unknown_name("effort", effort, EFFORTS)
    return EFFORTS[effort]
