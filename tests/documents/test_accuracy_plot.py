"""The picture of predicted over measured: each source on its line, each run where its ratio is."""

import re

from docs.site.accuracy_plot import LEAST, LEFT, MOST, RIGHT, WIDTH, drawing, place, ratios
from tests.places import ROOT


def test_runs_stand_where_their_ratios_are() -> None:
    rows = [
        {"source_id": "wide", "predicted_s": "1.5", "measured_s": "1.0"},
        {"source_id": "near", "predicted_s": "1.0", "measured_s": "1.0"},
        {"source_id": "near", "predicted_s": "9.0", "measured_s": "1.0"},
        {"source_id": "near", "predicted_s": "2.0", "measured_s": "2.0"},
        {"source_id": "unmeasured", "predicted_s": "2.0", "measured_s": ""},
    ]
    found = ratios(rows)
    assert found == {"near": [1.0, 9.0, 1.0], "wide": [1.5]}
    picture = drawing(found)
    dots = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', picture)]
    assert [x for x, _ in dots] == [round(place(ratio), 1) for ratio in (1.0, 9.0, 1.0, 1.5)]
    assert dots[0][1] == dots[1][1] < dots[3][1]
    assert "near (3)" in picture and "unmeasured" not in picture


def test_the_axis_is_logarithmic_and_ends_at_its_edges() -> None:
    assert place(LEAST) == place(LEAST / 3) == LEFT
    assert place(MOST) == place(MOST * 3) == WIDTH - RIGHT
    assert abs(place(1.0) - (LEFT + WIDTH - RIGHT) / 2) < 1e-9


def test_the_accuracy_page_shows_it() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert "pictures/accuracy.svg" in page
    assert (ROOT / "docs" / "pictures" / "accuracy.svg").read_text(encoding="utf-8").startswith("<svg")
