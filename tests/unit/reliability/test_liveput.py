"""Liveput, batch split and templates against enumeration and brute force."""

from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.reliability.spot.liveput import liveput, replicas_left
from tangram_sim.reliability.spot.rerouting import rerouted_step_s


@pytest.mark.parametrize(
    ("nodes", "pipelines", "stages", "lost"),
    [(8, 2, 3, 2), (9, 3, 3, 4), (7, 2, 3, 7), (10, 5, 2, 5), (6, 1, 6, 1), (8, 4, 2, 0)],
)
def test_replicas_left_equal_enumeration(nodes: int, pipelines: int, stages: int, lost: int) -> None:
    counts = [0] * (pipelines + 1)
    for gone in combinations(range(nodes), lost):
        left = [pipelines] * stages
        for node in gone:
            if node < pipelines * stages:
                left[node % stages] -= 1
        counts[min(left)] += 1
    found = replicas_left(nodes, pipelines, stages, lost)
    for chance, count in zip(found, counts, strict=True):
        assert chance == pytest.approx(count / comb(nodes, lost), abs=1e-12)


@given(pipelines=st.integers(1, 6), stages=st.integers(1, 8), idle=st.integers(0, 6), lost=st.integers(0, 20))
def test_chances_sum_to_one(pipelines: int, stages: int, idle: int, lost: int) -> None:
    nodes = pipelines * stages + idle
    found = replicas_left(nodes, pipelines, stages, min(lost, nodes))
    assert sum(found) == pytest.approx(1.0, abs=1e-12)
    assert min(found) >= 0


def test_the_published_example() -> None:
    assert replicas_left(30, 2, 13, 2) == pytest.approx((0.030, 0.956, 0.014), abs=5e-4)
    speed = liveput(30, 2, 13, 2, lambda d, _: {0: 0.0, 1: 25.0, 2: 40.0}[d])
    assert speed == pytest.approx(0.956 * 25 + 0.014 * 40, abs=0.05)


def test_rerouted_steps_by_slots() -> None:
    passes = [1.0] * 4, [2.0] * 4
    assert rerouted_step_s(*passes, 3, 6, [0, 0, 0, 0]) == 27.0
    assert rerouted_step_s(*passes, 3, 6, [0, 1, 0, 0]) == 36.0
    assert rerouted_step_s(*passes, 2, 6, [0, 2, 0, 0]) == 0.0
