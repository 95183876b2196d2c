"""Figures of a plan: memory of its stages, and its step over time. Drawn in notebooks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tangram_sim.errors import BadInputError
from tangram_sim.training.schedules.step import OP_WORDS
from tangram_sim.units import GIB

if TYPE_CHECKING:
    from tangram_sim.sim.timeline import Timeline
    from tangram_sim.studies.documents import StageForecast

MOST_OPS = 3000  # of a timeline: more is slow to draw and too fine to see
_MOST_TRACKS = 24
_HOLDERS = ("tensors", "cached by the allocator", "driver and libraries")


def plotly() -> Any:
    """The module plotly.graph_objects. If missing, raises BadInputError with the package to install."""
    try:
        from plotly import graph_objects
    except ImportError:
        raise BadInputError('plots need plotly: pip install "tangram-sim[notebook]"') from None
    return graph_objects


def held_gib(stage: "StageForecast") -> dict[str, float]:
    """Peak memory of a GPU of a stage in GiB, by what holds it."""
    allocated, reserved = stage.peak_memory_allocated_bytes, stage.peak_memory_reserved_bytes
    held = (allocated, reserved - allocated, stage.peak_memory_bytes - reserved)
    return {what: size / GIB for what, size in zip(_HOLDERS, held, strict=True)}


def memory_figure(stages: Sequence["StageForecast"], names: Sequence[str]) -> Any:
    """plotly Figure: peak memory of a GPU of every stage, GiB, by who holds it, under its capacity."""
    go = plotly()
    held = [held_gib(stage) for stage in stages]
    figure = go.Figure(
        [
            *(go.Bar(name=what, x=list(names), y=[each[what] for each in held]) for what in _HOLDERS),
            go.Scatter(
                name="capacity",
                x=list(names),
                y=[stage.memory_capacity_bytes / GIB for stage in stages],
                mode="markers",
                marker={"symbol": "line-ew-open", "size": 26, "color": "#cf222e", "line": {"width": 3}},
            ),
        ]
    )
    figure.update_layout(height=420, barmode="stack", yaxis_title="GiB of one GPU")
    return figure


def shown_ops(played: "Timeline", most: int) -> tuple[NDArray[np.intp], set[str], float]:
    """(the earliest `most` ops to draw, by start; their resources; seconds shown)."""
    graph = played.graph
    shown = np.flatnonzero(played.end_s - played.start_s > 0)
    tracks = {graph.resources[graph.resource[op]] for op in shown.tolist()}
    if len(tracks) > _MOST_TRACKS:  # many stages: what they compute, without what they send
        computing = np.array([graph.kinds[kind] in ("F", "B", "W", "OPTIMIZER") for kind in graph.kind])
        shown = shown[computing[shown]]
        tracks = {graph.resources[graph.resource[op]] for op in shown.tolist()}
    shown = shown[np.argsort(played.start_s[shown], kind="stable")]
    if len(shown) <= most:
        return shown, tracks, played.makespan_s
    return shown[:most], tracks, float(played.end_s[shown[:most]].max())


def timeline_figure(played: "Timeline") -> tuple[Any, float]:
    """(plotly Figure of the ops of every stage over time, seconds shown); only the first MOST_OPS ops."""
    go = plotly()
    graph, spent = played.graph, played.end_s - played.start_s
    shown, _, until = shown_ops(played, MOST_OPS)
    figure = go.Figure()
    for number, kind in enumerate(graph.kinds):
        mine = shown[graph.kind[shown] == number]
        if len(mine):
            figure.add_bar(
                name=OP_WORDS.get(kind, kind),
                orientation="h",
                y=[graph.resources[graph.resource[op]] for op in mine.tolist()],
                base=played.start_s[mine].tolist(),
                x=spent[mine].tolist(),
                marker={"line": {"width": 0.3, "color": "white"}},
                hovertemplate="%{base:.4f} s, %{x:.4f} s<extra>" + OP_WORDS.get(kind, kind) + "</extra>",
            )
    lines = dict.fromkeys(graph.resources[graph.resource[op]] for op in shown.tolist())
    figure.update_layout(
        height=150 + 30 * len(lines),
        barmode="overlay",
        xaxis_title="seconds of one step",
        yaxis={"autorange": "reversed", "categoryorder": "array", "categoryarray": sorted(lines)},
    )
    return figure, until
