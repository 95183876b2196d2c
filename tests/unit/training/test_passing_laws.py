"""What stages hand on, by brute force: every sequence from who has it to who wants it; passages by stage."""

from collections import Counter
from fractions import Fraction
from itertools import accumulate
from random import Random

import numpy as np
import pytest

from tangram_sim.layouts import Layout
from tangram_sim.training.plan import Pipeline, Share, holds_batch, passage, pipeline_of_shares
from tangram_sim.training.step.boundary import flows


def parts(random: Random, sequences: int, first_rank: int) -> list[Share]:
    """Some parts of one rank each that share the sequences of a microbatch."""
    ends = sorted(random.sample(range(1, sequences), random.randint(0, min(3, sequences - 1))))
    sizes = np.diff([0, *ends, sequences]).tolist()
    return [Share(f"g{k}", (first_rank + k,), size, Layout()) for k, size in enumerate(sizes)]


@pytest.mark.parametrize("seed", range(40))
def test_every_sequence_moves_from_the_part_that_has_it_to_the_one_that_takes_it(seed: int) -> None:
    random = Random(seed)
    sequences = random.randint(1, 9)
    sides = parts(random, sequences, 0), parts(random, sequences, 10)
    made = pipeline_of_shares(2, [0, 1, 2], sides)
    owners = [[share.ranks for share in side for _ in range(share.sequences)] for side in sides]
    wanted = Counter(zip(*owners, strict=True))
    found = flows(*made.stages)
    assert {(flow.source, flow.target): flow.share for flow in found} == {
        ends: Fraction(count, sequences) for ends, count in wanted.items()
    }
    assert len(found) == len(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_a_passage_is_the_sum_of_its_passes_and_the_latest_end_of_a_tail(seed: int) -> None:
    """The last microbatch goes to the end and comes back: each stage's tail begins where it has gone."""
    random = Random(seed)
    depth, hop = random.randint(1, 5), random.choice([0.0, 0.7])
    forward, backward, tail = ([random.uniform(0.0, 3.0) for _ in range(depth)] for _ in range(3))
    latency, ahead, closing = passage(forward, backward, tail, hop)
    assert latency == pytest.approx(sum(forward) + sum(backward) + 2 * hop * (depth - 1))
    assert ahead == pytest.approx(sum(forward) + hop * (depth - 1))
    back = [*accumulate((item + hop for item in reversed(backward)), initial=0.0)][1:]  # of the last stages
    gone = [ahead + back[depth - 1 - stage] - hop for stage in range(depth)]
    assert closing == pytest.approx(max(end + item for end, item in zip(gone, tail, strict=True)))
    several = passage(*(list(np.array([item, item]).T) for item in (forward, backward, tail)), hop)
    assert np.array(several).T.tolist() == [[pytest.approx(x) for x in (latency, ahead, closing)]] * 2


@pytest.mark.parametrize(
    ("pipelines", "batch", "held"),
    [
        ([(4, 2)], 8, True), ([(4, 2)], 7, True), ([(4, 2)], 6, False), ([(4, 2)], 9, False),
        ([(4, 2), (2, 2)], 12, True), ([(4, 2), (2, 2)], 11, False), ([(1, 3)], 1, True),
    ],
)  # fmt: skip
def test_a_batch_is_held_whole_or_with_one_microbatch_short(
    pipelines: list[tuple[int, int]], batch: int, held: bool
) -> None:
    assert holds_batch([Pipeline(*pipeline, ()) for pipeline in pipelines], batch) == held
