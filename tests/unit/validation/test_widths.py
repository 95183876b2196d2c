"""How wide intervals are made: residuals, shares of the errors of factors, mixtures."""

from dataclasses import replace

import numpy as np
import pytest
from tangram_validate.calibration import intervals, widths

from tangram_sim.training.step.intervals import Z90


def errors(sources: int, per_source: int, between: float, within: float, seed: int = 1) -> widths.Errors:
    random = np.random.default_rng(seed)
    source = np.repeat([f"s{number:02d}" for number in range(sources)], per_source)
    offset = np.repeat(random.normal(0, between, sources), per_source)
    error = offset + random.normal(0, within, sources * per_source)
    known = np.repeat(np.arange(sources) % 2, per_source)
    return widths.Errors(
        error * np.where(known, 1.0, 2.0),
        np.full(len(source), 0.02),
        source,
        np.where(known, 0, 3),
        np.full(len(source), True),
        np.full(len(source), False),
        np.abs(error),
        source,
        2 * np.abs(error),
    )


def test_conformal_residuals_cover_sources_left_out() -> None:
    """Of synthetic sources with errors of their own, known stacks half as wide as others."""
    drawn = errors(60, 20, 0.1, 0.05)
    found = widths.calibrate(drawn)
    assert found.residual[3] == pytest.approx(2 * found.residual[0], rel=0.3)
    assert list(found.residual) == sorted(found.residual)
    assert 0.05 < found.source[0] < 0.12 and found.source[3] > found.source[0]
    assert found.plan == pytest.approx(0.05 * 1.5, rel=0.25)
    covered = intervals.left_out(drawn)
    assert 0.85 <= np.mean([one.inside for one in covered.values()]) <= 0.95
    inside = (np.abs(drawn.log_error) <= Z90 * found.sigma(drawn)).mean()
    assert inside >= 0.9


@pytest.mark.parametrize("sources", [6, 60])
def test_factors_that_are_too_doubtful_are_taken_at_what_sources_say(sources: int) -> None:
    """Errors of factors twice as wide as those of runs: half, believed by k / (k + 1) of k sources."""
    drawn = errors(sources, 20, 0.1, 0.05)
    wide = replace(drawn, factors_sigma=np.where(drawn.novelty == 0, 0.22, 0.44))
    known = wide.take(wide.novelty == 0, np.zeros(len(wide.source), bool))
    half = widths.conformal_share(known.log_error, known.factors_sigma, 0.0, known.source)
    assert half == pytest.approx(0.5, rel=0.2)
    found, k = widths.calibrate(wide), sources / 2
    assert found.residual == (0.0,) * 4 and max(found.share) <= 1.0
    assert found.share[0] == pytest.approx(1.0 - k / (k + 1) * (1.0 - half))
    assert widths.calibrate(errors(60, 20, 0.1, 0.05)).share[3] == pytest.approx(1.0, abs=2e-3)


def test_mixtures_of_unseen_stacks_keep_the_width_assumed_until_sources_speak() -> None:
    """Each of 0, 4, 40 sources whose mixtures are off as its dense models are takes it down a step."""
    for mixed in (0, 4, 40):
        own = np.repeat(np.arange(60) < mixed, 20) & (np.arange(1200) % 2 == 0)
        found = widths.calibrate(replace(errors(60, 20, 0.1, 0.0), mixture=own)).mixture
        kept = widths.MIXTURE_SOURCES / (widths.MIXTURE_SOURCES + mixed)
        assert found[2] == found[3] == pytest.approx(max(widths.MIXTURE * kept**0.5, found[0]))


def test_what_is_added_for_mixtures_and_unmeasured_kinds_covers_them() -> None:
    drawn = errors(60, 20, 0.1, 0.05)
    odd = np.repeat(np.arange(60) % 3, 20)
    drawn = replace(
        drawn,
        log_error=drawn.log_error * np.where(odd == 1, 3.0, 1.0),
        measured=odd != 1,
        mixture=odd == 2,
    )
    found = widths.calibrate(drawn)
    assert found.unmeasured > 0.1 > found.mixture[0]
    inside = np.abs(drawn.log_error) <= Z90 * found.sigma(drawn)
    assert 0.88 <= inside[odd == 1].mean() <= 0.97 and inside[odd == 2].mean() >= 0.85


def test_a_residual_is_not_needed_where_factors_explain_the_errors() -> None:
    source = np.repeat(["a", "b", "c"], 10)
    error = np.tile(np.linspace(-0.1, 0.1, 10), 3)
    assert widths.conformal_residual(error, np.full(30, 0.2), source) == 0.0
    exact = widths.conformal_residual(error, np.zeros(30), source)
    assert exact == pytest.approx(0.1 / Z90, rel=1e-3)  # 28 of 30 rows: the extremes must be inside
