"""Bars of ours beside the paper's, as one page that needs no network."""

from typing import Any

from benchmarks.tangram_paper.ablation import CASES
from benchmarks.tangram_paper.figures import Figures
from benchmarks.tangram_paper.setups import ISLAND_CLUSTERS, SETUPS
from benchmarks.tangram_paper.tables import Runs


def page(runs: Runs, cases: dict[str, dict[str, Any]], figures: Figures) -> str:
    """A figure per setup, then Figs. 12 and 13. Raises ImportError without plotly (extra `report`)."""
    import plotly.graph_objects as drawing
    from plotly.offline import get_plotlyjs

    def bars(title: str, names: list[str], paper: list[Any], ours: list[Any], log: bool = False) -> str:
        figure = drawing.Figure(
            [
                drawing.Bar(name="paper", x=names, y=paper, marker_color="#9aa5b1"),
                drawing.Bar(name="simulator", x=names, y=ours, marker_color="#2563a8"),
            ]
        )
        figure.update_layout(title=title, template="plotly_white", barmode="group", height=380)
        figure.update_yaxes(title="s", type="log" if log else "linear")
        return str(figure.to_html(include_plotlyjs=False, full_html=False, div_id=title.replace(" ", "-")))

    parts = []
    for setup in SETUPS:
        if setup.key in runs:
            names = list(setup.systems)
            paper = [figures.step_s(setup, name) for name in names]
            ours = [runs[setup.key][name]["step_s"] for name in names]
            parts.append(bars(f"{setup.figure}: step, {setup.key}", names, paper, ours))
    shown = [case for case in CASES if case[0] in cases]
    if shown:
        paper = [figures.ablation_s(bar) if bar else None for _, bar, _, _ in shown]
        ours = [cases[name]["cpu_s"] for name, *_ in shown]
        parts.append(bars("Fig. 12: planning", [case[0] for case in shown], paper, ours, log=True))
    planned = {cluster: runs.get(f"gpt3-13b on {cluster}", {}) for cluster in ISLAND_CLUSTERS}
    if any(planned.values()):
        paper = [figures.islands_s(begins) for begins in ISLAND_CLUSTERS.values()]
        ours = [found.get("Tangram-Aceso", {}).get("cpu_s") for found in planned.values()]
        parts.append(bars("Fig. 13: planning", list(planned), paper, ours, log=True))
    script = f"<script>{get_plotlyjs()}</script>"
    return f"<!doctype html><meta charset='utf-8'><title>Tangram</title>{script}{''.join(parts)}\n"
