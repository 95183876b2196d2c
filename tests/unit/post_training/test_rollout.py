"""Rollouts played by the serving players: closed forms, both players, replicas of unequal speed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram_sim.post_training.plan import RolloutReplicas
from tangram_sim.post_training.rollout import BY_SPEED, fleet_of, play_rollout, requests_of
from tangram_sim.serving.batching import BatchingRules
from tangram_sim.serving.fleet import FAST, REFERENCE, FleetReplica, play
from tangram_sim.serving.plain_tables import linear_table
from tangram_sim.serving.router import RoundRobin
from tests.unit.post_training.setups import HWDB, work

ROOMY = BatchingRules(8192, 64, 16, 100_000, True, "whole_prompt", "recompute", prefix_cache=True)
# 10 ms an iteration and 1 ms a request, prompts free.
PLAIN = linear_table(64, step_s=0.010, decode_s=0.001, context_s=0.0, prompt_s=0.0)


def test_iterations_are_as_many_as_the_longest_response_and_as_long_as_those_that_run() -> None:
    # The first token comes with the prompt's own pass: 2, 4 and 4 decoded tokens behind it.
    found = play_rollout([FleetReplica("a", ROOMY, PLAIN)], 1, np.array([[3, 5, 5]]))
    first_s = float(found.finish_s.min()) - 2 * 0.013
    assert found.seconds - first_s == pytest.approx(2 * 0.013 + 2 * 0.012)


def test_equal_counts_on_two_replicas_end_with_the_longest() -> None:
    fleet = [FleetReplica("a", ROOMY, PLAIN)] * 2
    found = play_rollout(fleet, 1, np.array([[3, 5], [5, 5]]))
    rollout = play_rollout(fleet[:1], 1, np.array([[5, 5]]))
    assert found.seconds == pytest.approx(rollout.seconds)
    assert found.replica.tolist() == [0, 1]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 60), min_size=3, max_size=3), min_size=1, max_size=10),
    blocks=st.integers(12, 60),
    replicas=st.integers(1, 3),
)
def test_fast_and_reference_players_agree(lengths, blocks, replicas) -> None:
    rules = BatchingRules(256, 8, 16, blocks, True, "whole_prompt", "recompute", prefix_cache=True)
    table = linear_table(8, step_s=0.01, decode_s=1e-3, context_s=1e-6, prompt_s=5e-5)
    fleet = [FleetReplica("a", rules, table)] * replicas
    found = [play_rollout(fleet, 40, np.array(lengths), engine=engine) for engine in (FAST, REFERENCE)]
    np.testing.assert_allclose(found[0].finish_s, found[1].finish_s, rtol=1e-9)


def test_a_rollout_is_what_serving_plays_of_the_same_requests() -> None:
    lengths = work().lengths.draw(16, 4, 0)
    fleet = fleet_of(work(), [RolloutReplicas("H20-96GB", 1)], HWDB)
    served = play(fleet, requests_of(100, lengths), RoundRobin())
    assert play_rollout(fleet, 100, lengths).seconds == served.end_s


def test_a_group_prefills_its_prompt_once() -> None:
    shared = play_rollout([FleetReplica("a", ROOMY, slow_prompts())], 512, np.full((1, 64), 4))
    apart = play_rollout([FleetReplica("a", ROOMY, slow_prompts())], 512, np.full((64, 1), 4))
    assert shared.seconds < apart.seconds / 2


def slow_prompts():
    return linear_table(64, step_s=0.001, decode_s=1e-4, context_s=0.0, prompt_s=1e-3)


def test_shares_by_speed_beat_equal_counts_on_unequal_replicas() -> None:
    replicas = [RolloutReplicas("H100-SXM5-80GB", 1), RolloutReplicas("L40S", 1)]
    fleet, lengths = fleet_of(work(), replicas, HWDB), work().lengths.draw(600, 4, 0)
    even, by_speed = (play_rollout(fleet, 100, lengths, dispatch=how) for how in ("even", BY_SPEED))
    assert by_speed.seconds < 0.9 * even.seconds


def test_a_rollout_is_no_shorter_than_its_longest_response_alone() -> None:
    fleet = fleet_of(work(), [RolloutReplicas("H20-96GB", 4)], HWDB)
    lengths = work().lengths.draw(16, 4, 5)
    alone = play_rollout(fleet[:1], 100, lengths.max(keepdims=True).reshape(1, 1))
    assert play_rollout(fleet, 100, lengths).seconds >= alone.seconds
