"""Predicted over measured step times of published runs, source by source, as one SVG file.

python -m docs.site.accuracy_plot traces/published/training_runs.csv docs/pictures/accuracy.svg
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path

from tangram_validate.calibration.shipped import sample

from tangram_sim.hwdb import Hwdb

RUNS = 24  # of a source at most
WIDTH, LEFT, RIGHT, TOP, LINE = 860, 190, 20, 34, 17  # pixels; LINE: the height of one source
LEAST, MOST = 0.5, 2.0  # ratios at the edges; what lies beyond is drawn there
TICKS = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
STYLE = (
    "text{font:12px sans-serif;fill:#24292f}.dim{fill:#57606a}.grid{stroke:#d0d7de}"
    ".one{stroke:#24292f}.run{fill:#0969da;fill-opacity:.28}.middle{stroke:#cf222e;stroke-width:2.5}"
)


def ordered(by_source: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Ratios by source; the source whose ratios are nearest to one first."""

    def spread(name: str) -> float:
        return statistics.median(abs(log(ratio)) for ratio in by_source[name])

    return {name: by_source[name] for name in sorted(by_source, key=spread)}


def place(ratio: float) -> float:
    """The pixel of a ratio: a logarithmic axis from LEAST to MOST."""
    share = log(min(max(ratio, LEAST), MOST) / LEAST) / log(MOST / LEAST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def drawing(by_source: Mapping[str, Sequence[float]]) -> str:
    """A line per source: a dot per run, its median upright; the count behind the name."""
    height = TOP + LINE * len(by_source) + 12
    parts = [f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    for tick in TICKS:
        x = place(tick)
        kind = "one" if tick == 1.0 else "grid"
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 8}" class="{kind}"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP - 14}" text-anchor="middle" class="dim">{tick:g}</text>')
    for number, (name, found) in enumerate(by_source.items()):
        y = TOP + LINE * (number + 0.5)
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name} ({len(found)})</text>')
        dots = "".join(f'<circle cx="{place(ratio):.0f}" r="3"/>' for ratio in found)
        parts.append(f'<g transform="translate(0 {y:.1f})" class="run">{dots}</g>')
        x = place(statistics.median(found))
        parts.append(f'<line x1="{x:.1f}" y1="{y - 6:.1f}" x2="{x:.1f}" y2="{y + 6:.1f}" class="middle"/>')
    label = "Predicted over measured step time of published runs by source, logarithmic"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{label}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def main(runs: str, picture: str) -> None:
    """Predict a sample of every source, write the picture."""
    found = sample(Path(runs), Hwdb.load(), RUNS)
    by_source = {name: [our.step_s / our.run.measured.step_s for our in ours] for name, ours in found.items()}
    Path(picture).write_text(drawing(ordered(by_source)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
