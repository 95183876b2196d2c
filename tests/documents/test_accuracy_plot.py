"""The picture of predicted over measured: each source on its line, each run where its ratio is."""

import re

from docs.site.accuracy_plot import LEAST, LEFT, MOST, RIGHT, WIDTH, drawing, ordered, place
from tests.places import ROOT


def test_runs_stand_where_their_ratios_are() -> None:
    found = ordered({"wide": [1.5], "near": [1.0, 9.0, 1.0]})
    assert list(found) == ["near", "wide"]
    picture = drawing(found)
    lines = re.findall(r'translate\(0 ([\d.]+)\)" class="run">(.*?)</g>', picture)
    dots = [[float(x) for x in re.findall(r'cx="(\d+)"', line)] for _, line in lines]
    assert dots == [[round(place(ratio)) for ratio in those] for those in found.values()]
    assert float(lines[0][0]) < float(lines[1][0])
    assert "near (3)" in picture


def test_the_axis_is_logarithmic_and_ends_at_its_edges() -> None:
    assert place(LEAST) == place(LEAST / 3) == LEFT
    assert place(MOST) == place(MOST * 3) == WIDTH - RIGHT
    assert abs(place(1.0) - (LEFT + WIDTH - RIGHT) / 2) < 1e-9


def test_the_accuracy_page_shows_it() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert "pictures/accuracy.svg" in page
    assert (ROOT / "docs" / "pictures" / "accuracy.svg").read_text(encoding="utf-8").startswith("<svg")
