"""The plots of a report, as plotly draws them: HTML for one place in the page, the library given once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tangram_sim.opgraph import FloatArray
from tangram_sim.studies.figures import memory_figure, plotly, timeline_figure

if TYPE_CHECKING:
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.purchasing.whatif import WhatIfRow
    from tangram_sim.sim.timeline import Timeline
    from tangram_sim.studies.documents import StageForecast


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


def grid(ratios: FloatArray) -> str:
    """A heat map of workers, [dp, stages]: 1 is as everybody, above is slower."""
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
            colorbar={"title": "passes / mean"},
        )
    )
    figure.update_yaxes(autorange="reversed")
    return _drawn(figure, "grid", min(180 + 28 * len(ratios), 900))
