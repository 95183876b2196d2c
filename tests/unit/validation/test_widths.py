"""How wide intervals are made: residuals, shares of the errors of factors, mixtures."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tangram_validate.calibration import intervals, nested, widths
from tangram_validate.published.reading import HARD

from tangram_sim.errors import BadInputError
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


def test_widths_cover_sources_left_out() -> None:
    """Of synthetic sources with errors of their own, known stacks half as wide as others."""
    drawn = errors(24, 8, 0.1, 0.05)
    found = widths.calibrate(drawn)
    assert found.residual[3] == pytest.approx(2 * found.residual[0], rel=0.3)
    assert list(found.residual) == sorted(found.residual)
    assert found.plan == pytest.approx(0.05 * 1.5, rel=0.25)
    covered = intervals.left_out(drawn)
    assert 0.85 <= np.mean([coverage.inside for coverage in covered.values()]) <= 0.95


def test_widths_found_on_some_sources_hold_on_sources_that_had_no_part() -> None:
    """Nested: two thirds of the sources set widths, the third judges."""
    drawn = errors(30, 10, 0.1, 0.05)
    inside = [np.abs(drawn.log_error) <= half for half in nested.nested_widths(drawn, repeats=2)]
    assert 0.82 <= np.mean(inside) <= 0.97
    share, low, high = nested.share_interval(np.mean(inside, axis=0), drawn.source)
    assert low < share < high


def test_a_record_of_runs_that_no_table_has_names_one(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(",".join(HARD) + "\nother" + "," * (len(HARD) - 1) + "\n")
    with pytest.raises(BadInputError, match=r"e\.g\. lost-1, are in none of .*runs\.csv"):
        nested.others_errors(errors(1, 1, 0.1, 0.1), ["lost-1"], table, [table])


def test_the_interval_score_is_least_at_the_true_width() -> None:
    """Of normal errors; wider is no merit, and a miss costs 20 times what it misses by."""
    error = np.random.default_rng(3).normal(0.0, 0.1, 4000)
    scores = [widths.interval_score(error, np.full(4000, z * 0.1)).mean() for z in (1.0, Z90, 2.5)]
    assert min(scores) == scores[1]
    assert widths.interval_score(np.array([0.3]), np.array([0.2])) == pytest.approx([0.4 + 20 * 0.1])


def test_errors_of_factors_that_are_too_doubtful_are_taken_at_what_sources_say() -> None:
    """Errors of factors twice as wide as those of runs: about half of them, and next to nothing beside."""
    drawn = errors(40, 20, 0.1, 0.0)
    wide = replace(drawn, factors_sigma=np.where(drawn.novelty == 0, 0.2, 0.4))
    found = widths.calibrate(wide)
    assert 0.25 <= found.share[0] <= 0.75 and found.residual[0] < 0.09
    assert max(widths.calibrate(errors(10, 20, 0.3, 0.1)).share) <= 1.0


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
