"""What the product is compared with: one MFU for each GPU kind, and a closed form of few parameters."""

import numpy as np
import pytest
from tangram_validate.calibration import baselines
from tangram_validate.published.reading import Run, read_run

from tangram_sim.hwdb import Hwdb
from tests.unit.validation.published_rows import row as published_row

HWDB = Hwdb.load()


def test_baselines_fall_back_and_do_not_see_what_is_left_out() -> None:
    ratio, source = np.array([0.0, 0.2, 5.0, 1.0]), np.array(["a", "b", "c", "c"])
    use = np.array([True, True, False, True])
    kinds = np.array(["H100", "H100", "T4", "A100"])
    found = baselines.null(ratio, kinds, source, use)
    assert found[2] in ratio[use] and found[3] == 1.0
    columns = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [5.0, 1.0]])
    known = baselines.Physics(np.full(4, 0.5), columns)
    line = baselines.closed_form(columns[:, 0] + 0.5, known, source, use)
    assert line[2] == pytest.approx(2.5, abs=0.8)


def test_the_closed_form_counts_recomputation_and_the_bubble_as_they_are() -> None:
    """Full recomputation is a third more; four stages with eight microbatches wait three eighths more."""
    plain, full, piped = (
        read_run(published_row(**cells), HWDB)
        for cells in (
            {"recompute": "none"},
            {"recompute": "full"},
            {"recompute": "none", "tp": "2", "pp": "4", "mbs": "1", "gbs": "8"},
        )
    )
    assert all(isinstance(item, Run) for item in (plain, full, piped))
    found = baselines.physics([plain, full, piped], HWDB)
    assert np.exp(found.log_factor) == pytest.approx([1.0, 4 / 3, 1 + 3 / 8])
    assert np.isfinite(found.columns).all() and found.columns.shape == (3, 10)
