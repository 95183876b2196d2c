"""The data of each chart in a report, as one mapping each; `assets/charts.js` draws them."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tangram_sim.opgraph import FloatArray
from tangram_sim.purchasing.words import hourly
from tangram_sim.reports.assumptions import in_words
from tangram_sim.studies.figures import held_gib, shown_ops
from tangram_sim.training.schedules.step import OP_WORDS
from tangram_sim.units import GIB, HOUR_S, percent

if TYPE_CHECKING:
    from tangram_sim.purchasing.rows import WhatIfRow
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.reliability.spot.engine import Outcome
    from tangram_sim.sim.timeline import Timeline
    from tangram_sim.studies.documents import StageForecast
    from tangram_sim.studies.power_documents import PowerDocument

Chart = dict[str, Any]

MOST_OPS = 20_000  # of a timeline: about a megabyte
MATTERS = 0.005  # of the figure: assumptions that move it less are counted, not drawn
MOST_SWINGS = 12
_COLOURS = {
    "F": "fill0",
    "B": "fill1",
    "W": "fill7",
    "SEND_F": "fill6",
    "SEND_B": "fill3",
    "SYNC": "fill4",
    "TIED": "fill5",
    "OPTIMIZER": "fill2",
}
_DIGITS = re.compile(r"(\d+)")
_MOST_POINTS = 400  # of a distribution's line


def front(
    rows: Sequence["WhatIfRow"], costs: Sequence[float | None], cost: str, *, line: bool, chosen: str
) -> Chart:
    """Throughput against cost with intervals; bars of throughput alone if any cost is unknown."""
    if any(item is None for item in costs):
        return {
            "kind": "bars",
            "unit": "tokens a second",
            "bars": [
                {
                    "name": row.name,
                    "parts": [{"name": "tokens a second", "value": row.throughput.tokens_per_s}],
                }
                for row in rows
            ],
        }
    drawn = [
        _point(row.name, spent, row.throughput.tokens_per_s, (row.throughput.low, row.throughput.high))
        | {"chosen": row.name == chosen}
        for row, spent in zip(rows, costs, strict=True)
        if spent is not None
    ]
    return _points_of(drawn, cost, "tokens a second", line=line)


def _point(name: str, x: float, y: float, interval: tuple[float, float] | None = None) -> Chart:
    low, high = interval or (y, y)
    return {"name": name, "x": x, "y": y, "low": low, "high": high, "chosen": False}


def _points_of(drawn: Sequence[Chart], across: str, up: str, *, line: bool) -> Chart:
    """A chart of points, joined by a line or not; `across` and `up` are the titles of the axes."""
    return {"kind": "points", "line": line, "points": drawn, "x": {"title": across}, "y": {"title": up}}


def points(values: Sequence[tuple[float, float, str]], across: str, up: str) -> Chart:
    """Named points: (x, y, name)."""
    return _points_of([_point(name, x, y) for x, y, name in values], across, up, line=False)


def power_curve(power: "PowerDocument") -> Chart:
    """Throughput against the site's kilowatts: the Pareto front of clocks, and the chosen clocks."""
    shown = sorted(
        [power.chosen, *(at for at in power.curve if at != power.chosen)], key=lambda at: at.site_kw
    )
    drawn = [
        _point(at.clock_words, at.site_kw, at.tokens_per_s) | {"chosen": at is power.chosen} for at in shown
    ]
    return _points_of(drawn, "kW of the site", "tokens a second", line=True)


def cost_bars(rows: Sequence["WhatIfRow"]) -> Chart:
    """USD per hour of every candidate, by charge."""
    bars = [
        {
            "name": row.name,
            "parts": [{"name": f"{c.member} {c.kind}", "value": c.usd_per_hour} for c in row.bill.charges],
            "said": "not stated" if hourly(row) == "-" else hourly(row),
        }
        for row in rows
    ]
    return {"kind": "bars", "unit": "USD per hour of training", "bars": bars}


def tornado(found: "Sensitivity") -> Chart:
    """Effect of each assumption alone on the best candidate's score, the largest on top."""
    what = "USD per million tokens" if found.score == "usd_per_million_tokens" else "tokens a second"
    rows = [
        {
            "name": in_words(swing.input.name),
            "low": f"{swing.input.low:,.4g}",
            "high": f"{swing.input.high:,.4g}",
            "at_low": swing.at_low,
            "at_high": swing.at_high,
        }
        for swing in mattering(found)
    ]
    return {"kind": "swings", "base": found.value, "unit": what, "rows": rows}


def mattering(found: "Sensitivity") -> list[Any]:
    """Up to twelve assumptions that change the score by 0.5 % or more, the largest effect first."""
    return [swing for swing in found.tornado if swing.width >= MATTERS * found.value][:MOST_SWINGS]


def memory(stages: Sequence["StageForecast"], names: Sequence[str]) -> Chart:
    """Peak memory of one GPU of every stage in GiB, by what uses it, with the capacity marked."""
    bars = []
    for stage, name in zip(stages, names, strict=True):
        parts = [{"name": what, "value": gib} for what, gib in held_gib(stage).items()]
        capacity = stage.memory_capacity_bytes / GIB
        said = f"{stage.peak_memory_bytes / GIB:.1f} of {capacity:.1f}"
        bars.append({"name": name, "parts": parts, "mark": capacity, "said": said})
    return {"kind": "bars", "unit": "GiB of one GPU", "mark": "capacity", "bars": bars}


def timeline(played: "Timeline") -> tuple[Chart, float]:
    """(chart, seconds shown): operations of every stage over time; only the first if there are too many."""
    graph = played.graph
    shown, busy, until = shown_ops(played, MOST_OPS)
    tracks = _by_stage(busy)
    kinds = [number for number in range(len(graph.kinds)) if (graph.kind[shown] == number).any()]
    place, row = {kind: at for at, kind in enumerate(kinds)}, {track: at for at, track in enumerate(tracks)}
    # A thousandth of a pixel of a wide screen is as fine as anybody looks.
    digits = max(6 - int(np.floor(np.log10(until))), 0) if until else 6
    ops = [
        [
            row[graph.resources[graph.resource[op]]],
            place[int(graph.kind[op])],
            round(float(played.start_s[op]), digits),
            round(float(played.end_s[op]), digits),
        ]
        for op in shown.tolist()
    ]
    names = [graph.kinds[kind] for kind in kinds]
    drawn = {
        "kind": "timeline",
        "tracks": tracks,
        "kinds": [OP_WORDS.get(kind, kind) for kind in names],
        "colours": [_COLOURS.get(kind, "fill5") for kind in names],
        "ops": ops,
        "until": until,
    }
    return drawn, until


def _by_stage(tracks: set[str]) -> list[str]:
    """Names of tracks by the numbers in them: stage 2 before stage 10."""
    return sorted(
        tracks, key=lambda name: [int(part) if part.isdigit() else part for part in _DIGITS.split(name)]
    )


def account_bars(accounts: Mapping[str, Mapping[str, float]]) -> Chart:
    """How each policy's time was spent: one bar each; `accounts` are seconds by policy and purpose."""
    bars = []
    for name, spent in accounts.items():
        total = sum(spent.values())
        parts = [{"name": _account(item), "value": s / total} for item, s in spent.items() if s > 0]
        bars.append(
            {"name": name, "parts": parts, "said": f"{percent(spent.get('useful', 0.0) / total)} running"}
        )
    return {"kind": "bars", "unit": "share of the time", "bars": bars}


def node_counts(counts: Sequence[tuple[float, int]], until_s: float) -> Chart:
    """Number of available nodes over time in hours; `counts` are (seconds, nodes)."""
    points = [[at / HOUR_S, count] for at, count in counts]
    series = [{"name": "nodes", "points": points}]
    axes = {"x": {"title": "hours"}, "y": {"title": "nodes"}}
    return {"kind": "steps", "series": series, "until": until_s / HOUR_S, **axes}


def policy_timeline(found: Mapping[str, "Outcome"], until_s: float) -> Chart:
    """What every policy did when (ran, stalled, ...); if there are too many intervals, the longest only."""
    stretches = [(row, segment) for row, outcome in enumerate(found.values()) for segment in outcome.segments]
    stretches = sorted(stretches, key=lambda pair: pair[1].start_s - pair[1].stop_s)[:MOST_OPS]
    accounts = list(dict.fromkeys(["useful", *(segment.account for _, segment in stretches)]))
    place = {account: at for at, account in enumerate(accounts)}
    return {
        "kind": "timeline",
        "tracks": list(found),
        "kinds": [_account(item) for item in accounts],
        "colours": [f"fill{(2, 4, 1, 3, 5, 6, 7, 0)[at % 8]}" for at in range(len(accounts))],
        "ops": [
            [row, place[segment.account], segment.start_s, segment.stop_s, segment.label]
            for row, segment in stretches
        ],
        "until": until_s,
    }


def distributions(columns: Mapping[str, FloatArray]) -> Chart:
    """The share of requests that took at most so many seconds, one line per column; logarithmic time axis."""
    series = []
    for words, seconds in columns.items():
        ordered = np.sort(seconds[seconds > 0])
        kept = np.unique(np.linspace(0, max(len(ordered) - 1, 0), _MOST_POINTS).astype(np.int64))
        if len(ordered):
            share = 100.0 * (kept + 1 + len(seconds) - len(ordered)) / len(seconds)
            series.append({"name": words, "points": _points(ordered[kept], share)})
    axes = {"x": {"title": "seconds", "log": True}, "y": {"title": "% of requests"}}
    return {"kind": "steps", "series": series, **axes}


def lines(times: FloatArray, columns: Mapping[str, FloatArray], what: str, along: str) -> Chart:
    """Each column over `times`, as a line; `what` and `along` are the titles of the y and x axes."""
    series = [{"name": name, "points": _points(times, column)} for name, column in columns.items()]
    return {"kind": "steps", "series": series, "x": {"title": along}, "y": {"title": what}}


def _points(xs: FloatArray, ys: FloatArray) -> list[list[float]]:
    return [[float(f"{x:.6g}"), float(f"{y:.6g}")] for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]


def share_bars(values: Mapping[str, float], what: str) -> Chart:
    """One bar per name, of a percentage."""
    bars = [
        {"name": name, "parts": [{"name": what, "value": value}], "mark": 100.0, "said": f"{value:.0f} %"}
        for name, value in values.items()
    ]
    return {"kind": "bars", "unit": "%", "mark": "all of it", "bars": bars}


def _account(name: str) -> str:
    return "running" if name == "useful" else name.replace("_", " ")


def grid(ratios: FloatArray) -> Chart:
    """A heat map of slowness ratios by worker, of shape [dp, stages]: 1 is normal, above 1 is slower."""
    return {"kind": "grid", "row": "dp", "column": "stage", "values": ratios.tolist()}
