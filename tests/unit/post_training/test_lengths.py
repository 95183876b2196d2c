"""Drawn lengths: the numbers of published runs, and what holds of any of them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.errors import BadInputError
from tangram_sim.post_training.lengths import (
    LognormalLengths,
    ObservedLengths,
    lognormal,
    lognormal_capped,
    read_lengths,
)


@pytest.mark.parametrize(
    ("mean", "share", "mu", "sigma"), [(220, 0.019, 5.0042, 0.9289), (174.2, 0.001, 4.9574, 0.6388)]
)
def test_mean_and_share_at_the_cap_give_both_parameters(mean, share, mu, sigma) -> None:
    found = lognormal_capped(mean, 1024, share)
    assert (round(found.mu, 4), round(found.sigma, 4)) == (mu, sigma)
    assert found.mean == pytest.approx(mean) and found.capped_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("mean", "cap", "mu", "share"),
    [
        (795, 3968, 6.4390, 0.0042),
        (704, 1429, 6.4147, 0.112),
        (3200, 3995, 8.2668, 0.485),
        (12720, 32768, 9.2573, 0.052),
    ],
)
def test_the_mean_is_that_after_the_cut(mean, cap, mu, share) -> None:
    found = lognormal(mean, cap)
    assert found.mu == pytest.approx(mu, abs=5e-5)
    assert found.capped_share == pytest.approx(share, abs=6e-4)


@given(
    share=st.floats(0.02, 0.97),
    cap=st.integers(64, 40_000),
    sigma=st.floats(0.1, 1.5),
    seed=st.integers(0, 9),
)
def test_draws_stay_within_the_cap_and_have_the_stated_moments(share, cap, sigma, seed) -> None:
    lengths = lognormal(max(share * cap, 2.0), cap, sigma)
    drawn = lengths.draw(400, 50, seed)
    assert drawn.min() >= 1 and drawn.max() <= cap
    assert lengths.mean == pytest.approx(max(share * cap, 2.0), rel=1e-6)
    assert lengths.mean_square >= lengths.mean**2 * (1 - 1e-12)
    independent = LognormalLengths(lengths.mu, sigma, cap, 0.0).draw(400, 50, seed)
    assert independent.mean() == pytest.approx(lengths.mean, rel=0.06 * (1 + sigma), abs=1.0)


def test_samples_of_one_prompt_are_alike_as_far_as_they_are_correlated() -> None:
    between = [
        np.log(lognormal(500, 100_000, 0.7, rho).draw(2000, 16, 1)).mean(axis=1).var()
        for rho in (0.0, 0.5, 1.0)
    ]
    assert between[0] < between[1] < between[2]
    assert between[1] == pytest.approx(0.49 * (0.5 + 0.5 / 16), rel=0.1)


def test_observed_lengths_are_drawn_as_often_as_they_were_seen() -> None:
    drawn = ObservedLengths((10, 10, 20, 400), 400).draw(5000, 4, 3)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [10, 20, 400]
    assert counts[0] / drawn.size == pytest.approx(0.5, abs=0.03)


def test_headings_blank_lines_and_other_columns_of_observed_lengths_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("10\n400\n20.4\n")
    plain = read_lengths(path)
    assert plain == ObservedLengths((10, 400, 20), 400)
    path.write_text("tokens,prompt\n\n10,1\n400,1\n \n20.4,2\n\n")
    assert read_lengths(path) == plain
    assert read_lengths(path, cap=100).cap == 100


@pytest.mark.parametrize(("mean", "cap"), [(0.5, 100), (200, 100)])
def test_a_mean_beyond_the_cap_is_refused(mean, cap) -> None:
    with pytest.raises(BadInputError, match="cap"):
        lognormal(mean, cap)
