"""The page on slow ranks stands alone and shows who is slow, what helps, and a step before and after."""

from pathlib import Path

from tangram_sim.reports.stragglers import stragglers_report
from tangram_sim.studies.stragglers import diagnose
from tests.unit.reliability.traces import rows_of, written


def test_the_page_shows_the_grid_the_remedies_and_two_timelines(tmp_path: Path) -> None:
    found = diagnose([written(rows_of(dp=2, slow={(1, 1): 2.0}), tmp_path / "t.csv")])
    text = stragglers_report(found, "t.csv")
    for key in (
        'id="grid"',
        'id="grid-slowdown"',
        'id="alone"',
        'id="remedies"',
        'id="before"',
        'id="after"',
    ):
        assert key in text
    assert f"{found.document.slowdown:.3f} times" in text
    assert "re-split microbatches" in text
    assert "default-src 'none'" in text
