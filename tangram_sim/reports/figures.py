"""The plots of a report, as plotly draws them: HTML for one place in the page, the library given once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tangram_sim.opgraph import FloatArray
from tangram_sim.studies.figures import MOST_OPS, memory_figure, plotly, timeline_figure

if TYPE_CHECKING:
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.purchasing.whatif import WhatIfRow
    from tangram_sim.reliability.spot.engine import Outcome
    from tangram_sim.sim.timeline import Timeline
    from tangram_sim.studies.documents import StageForecast


# By account: what trains green, what is lost red, what waits grey.
ACCOUNT_COLORS = {
    "useful": "#2da44e",
    "checkpoint": "#0969da",
    "lost_work": "#cf222e",
    "detection": "#8250df",
    "waiting_for_nodes": "#8c959f",
    "restart": "#fb8f44",
    "migration": "#d4a72c",
    "degraded": "#a6e9b8",
    "slow": "#953800",
    "idle_nodes": "#d0d7de",
}
_MOST_POINTS = 400  # of a distribution's line
_MOST_CELLS = 400  # of a heat map that still have room for their numbers


def library() -> str:
    """The script of plotly itself, to stand in the page."""
    plotly()
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _drawn(figure: Any, key: str, height: int, **layout: Any) -> str:
    """HTML of a figure; `key` names its place, so that the same report is the same bytes."""
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 10, "r": 10, "t": 30, "b": 10},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        **layout,
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    config = {"responsive": True, "displaylogo": False, "displayModeBar": False}
    return str(figure.to_html(include_plotlyjs=False, full_html=False, div_id=key, config=config))


def front(rows: Sequence["WhatIfRow"], costs: Sequence[float | None], cost: str, line: bool) -> str:
    """Throughput against cost, intervals as bars; bars of throughput alone where no cost is known."""
    go = plotly()
    rates = [row.throughput.tokens_per_s for row in rows]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [row.throughput.high - row.throughput.tokens_per_s for row in rows],
        "arrayminus": [row.throughput.tokens_per_s - row.throughput.low for row in rows],
    }
    names = [row.name for row in rows]
    if any(one is None for one in costs):
        figure = go.Figure(go.Bar(x=names, y=rates, error_y=error))
        return _drawn(figure, "front", 420, yaxis_title="tokens/s")
    figure = go.Figure(
        go.Scatter(
            x=list(costs),
            y=rates,
            error_y=error,
            text=names,
            mode="lines+markers" if line else "markers",
            line={"shape": "hv"},
            marker={"size": 10},
            hovertemplate="%{text}<br>%{x:,.4g} USD<br>%{y:,.0f} tokens/s<extra></extra>",
        )
    )
    for at, (text, rate, spent) in enumerate(zip(names, rates, costs, strict=True)):
        figure.add_annotation(
            x=spent, y=rate, text=text, showarrow=False, yshift=14 if at % 2 else -16, font={"size": 11}
        )
    return _drawn(figure, "front", 460, xaxis_title=cost, yaxis_title="tokens/s", showlegend=False)


def cost_bars(rows: Sequence["WhatIfRow"]) -> str:
    """USD per hour of every candidate, stacked by what is paid for."""
    go = plotly()
    kinds = dict.fromkeys((c.member, c.kind) for row in rows for c in row.bill.charges)
    figure = go.Figure(
        [
            go.Bar(
                name=f"{member} {kind}",
                x=[row.name for row in rows],
                y=[
                    sum(c.usd_per_hour for c in row.bill.charges if (c.member, c.kind) == (member, kind))
                    for row in rows
                ],
            )
            for member, kind in kinds
        ]
    )
    return _drawn(figure, "costs", 460, barmode="stack", yaxis_title="USD per hour of training")


def tornado(found: "Sensitivity", most: int = 15) -> str:
    """How far each assumption alone moves the score of the best, widest on top."""
    go = plotly()
    swings = found.tornado[:most][::-1]
    names = [swing.input.name for swing in swings]
    figure = go.Figure()
    for word, values, ends in (
        ("low end", [one.at_low for one in swings], [one.input.low for one in swings]),
        ("high end", [one.at_high for one in swings], [one.input.high for one in swings]),
    ):
        figure.add_bar(
            name=f"assumption at its {word}",
            orientation="h",
            y=names,
            x=[value - found.value for value in values],
            base=found.value,
            customdata=[[value, end] for value, end in zip(values, ends, strict=True)],
            hovertemplate="%{y} at %{customdata[1]:.4g}: %{customdata[0]:.4g}<extra></extra>",
        )
    figure.add_vline(x=found.value, line_width=1)
    what = "USD per million tokens" if found.score == "usd_per_million_tokens" else "tokens/s"
    return _drawn(figure, "tornado", 140 + 28 * len(swings), barmode="overlay", xaxis_title=what)


def memory(stages: Sequence["StageForecast"], names: Sequence[str]) -> str:
    """Peak memory of a GPU of every stage, by who holds it, under its capacity."""
    figure = memory_figure(stages, names)
    return _drawn(figure, "memory", figure.layout.height)


def timeline(played: "Timeline", key: str = "timeline") -> tuple[str, float]:
    """(plot, seconds shown): what every stage does when; the first ops only where there are very many."""
    figure, until = timeline_figure(played)
    return _drawn(figure, key, figure.layout.height), until


def grid(ratios: FloatArray, key: str = "grid", title: str = "passes / mean") -> str:
    """A heat map of workers, [dp, stages]: 1 is as everybody, above is slower; `title` says of what."""
    shown = (
        [[f"{value:.2f}" for value in row] for row in ratios.tolist()] if ratios.size <= _MOST_CELLS else None
    )
    figure = plotly().Figure(
        plotly().Heatmap(
            z=ratios.tolist(),
            x=[f"stage {stage}" for stage in range(ratios.shape[1])],
            y=[f"dp {dp}" for dp in range(ratios.shape[0])],
            colorscale="OrRd",
            text=shown,
            texttemplate="%{text}" if shown else None,
            colorbar={"title": title},
        )
    )
    figure.update_yaxes(autorange="reversed")
    return _drawn(figure, key, min(180 + 28 * len(ratios), 900))


def account_bars(accounts: Mapping[str, Mapping[str, float]]) -> str:
    """Shares of time by account, a bar for every policy; `accounts` are seconds by policy and account."""
    go = plotly()
    names = list(accounts)
    bars = []
    for account in dict.fromkeys(name for each in accounts.values() for name in each):
        shares = [accounts[name].get(account, 0.0) / sum(accounts[name].values()) for name in names]
        if any(shares):
            color = ACCOUNT_COLORS.get(account)
            bars.append(
                go.Bar(
                    name=account.replace("_", " "),
                    y=names,
                    x=shares,
                    orientation="h",
                    marker={"color": color},
                )
            )
    figure = go.Figure(bars)
    figure.update_yaxes(autorange="reversed")
    return _drawn(figure, "accounts", 140 + 34 * len(names), barmode="stack", xaxis_tickformat=".0%")


def policy_timeline(
    found: Mapping[str, "Outcome"], counts: Sequence[tuple[float, int]], until_s: float
) -> str:
    """Nodes over time, and for every policy what it ran or stalled for; hours. The longest stretches only
    where there are very many.
    """
    from plotly.subplots import make_subplots

    go = plotly()
    hour = 3600.0
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.25, 0.75], vertical_spacing=0.04)
    steps = [*counts, (until_s, counts[-1][1] if counts else 0)]
    figure.add_trace(
        go.Scatter(
            x=[at / hour for at, _ in steps],
            y=[count for _, count in steps],
            line={"shape": "hv", "color": "#57606a"},
            name="nodes",
        ),
        row=1,
        col=1,
    )
    stretches = [(name, one) for name, outcome in found.items() for one in outcome.segments]
    stretches = sorted(stretches, key=lambda pair: pair[1].start_s - pair[1].stop_s)[:MOST_OPS]
    for account in dict.fromkeys(one.account for _, one in stretches):
        own = [(name, one) for name, one in stretches if one.account == account]
        figure.add_trace(
            go.Bar(
                name="running" if account == "useful" else account.replace("_", " "),
                y=[name for name, _ in own],
                x=[(one.stop_s - one.start_s) / hour for _, one in own],
                base=[one.start_s / hour for _, one in own],
                text=[one.label for _, one in own],
                textposition="none",
                hovertemplate="%{y}: %{text}<br>%{x:.3f} h from %{base:.3f} h<extra></extra>",
                orientation="h",
                marker={"color": ACCOUNT_COLORS.get(account), "line": {"width": 0.5, "color": "white"}},
            ),
            row=2,
            col=1,
        )
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=list(found), row=2, col=1)
    figure.update_xaxes(title_text="h", row=2, col=1)
    return _drawn(figure, "policies-timeline", 260 + 34 * len(found), barmode="overlay")


def distributions(columns: Mapping[str, FloatArray]) -> str:
    """The share of requests that took at most so many seconds, a line for each column."""
    go = plotly()
    figure = go.Figure()
    for words, seconds in columns.items():
        ordered = np.sort(seconds)
        kept = np.unique(np.linspace(0, max(len(ordered) - 1, 0), _MOST_POINTS).astype(np.int64))
        if len(ordered):
            share = 100.0 * (kept + 1) / len(ordered)
            figure.add_scatter(name=words, x=ordered[kept], y=share, mode="lines", line={"shape": "hv"})
    figure.update_xaxes(type="log", title_text="s")
    return _drawn(figure, "distributions", 420, yaxis_title="% of requests")


def lines(times: FloatArray, columns: Mapping[str, FloatArray], key: str, what: str, along: str) -> str:
    """Lines over time."""
    go = plotly()
    figure = go.Figure([go.Scatter(name=name, x=times, y=column) for name, column in columns.items()])
    return _drawn(figure, key, 320, xaxis_title=along, yaxis_title=what)


def bars(values: Mapping[str, float], key: str, what: str) -> str:
    """One bar for each name."""
    go = plotly()
    figure = go.Figure(go.Bar(orientation="h", y=list(values), x=list(values.values())))
    figure.update_yaxes(autorange="reversed")
    return _drawn(figure, key, 120 + 24 * len(values), xaxis_title=what)
