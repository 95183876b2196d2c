"""The report: markdown tables of ours beside the paper's."""

from collections.abc import Sequence
from typing import Any

from benchmarks.tangram_paper.ablation import CASES
from benchmarks.tangram_paper.compare import (
    METIS,
    PUBLISHED,
    TOLD_APART,
    WITHIN,
    Ratio,
    orders,
    speed_ups,
    within,
)
from benchmarks.tangram_paper.figures import Figures
from benchmarks.tangram_paper.setups import ISLAND_CLUSTERS, SETUPS, Setup
from tangram_sim.planners.peers.metis_published import DEFECTS

Steps = dict[str, float | None]  # by system
Runs = dict[str, dict[str, dict[str, Any]]]  # by setup and system
MOST_CPU_S = {"Tangram-grid": 10.0, "Tangram-galvatron": 60.0, "Tangram-Alpa": 60.0, "Tangram-Aceso": 60.0}


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def seconds(value: float | None) -> str:
    """Seconds, or nothing."""
    return "" if value is None else f"{value:.{1 if value >= 10 else 2}f}"


def first_reason(reason: str) -> str:
    """Why there is no plan, without the planner's name and limits."""
    return reason.split(";", maxsplit=1)[0].rsplit(":", maxsplit=1)[-1].strip()


def times(setup: Setup, runs: Runs, figures: Figures) -> tuple[Steps, Steps]:
    """(The paper's, ours) by system, of those that the paper shows."""
    paper = {name: figures.step_s(setup, name) for name in setup.systems}
    paper = {name: value for name, value in paper.items() if value is not None}
    return paper, {name: runs[setup.key][name]["step_s"] for name in setup.systems}


def figure_table(runs: Runs, figures: Figures) -> str:
    """Steps and planning seconds of every system on every setup."""
    rows = []
    for setup in SETUPS:
        if setup.key not in runs:
            continue
        for system in setup.systems:
            run, paper = runs[setup.key][system], figures.step_s(setup, system)
            ours = run["step_s"]
            rows.append(
                (
                    setup.figure,
                    setup.key,
                    system,
                    seconds(paper),
                    seconds(ours) if ours else "no plan",
                    f"{ours / paper:.2f}" if ours and paper else "",
                    f"{run['cpu_s']:.1f}",
                    run["reason"].split(";")[0] if ours else first_reason(run["reason"]),
                )
            )
    titles = ("figure", "setup", "system", "paper s", "ours s", "ours / paper", "planning CPU-s", "note")
    return table(titles, rows)


def ratios(runs: Runs, figures: Figures) -> tuple[list[tuple[Setup, Ratio]], list[tuple[Setup, Ratio]]]:
    """(Orders, speed-ups) over all setups."""
    order, faster = [], []
    for setup in SETUPS:
        if setup.key in runs:
            paper, ours = times(setup, runs, figures)
            order += [(setup, ratio) for ratio in orders(paper, ours)]
            faster += [(setup, ratio) for ratio in speed_ups(paper, ours)]
    return order, faster


def ratio_table(found: Sequence[tuple[Setup, Ratio]], met: Sequence[bool]) -> str:
    """A ratio a row."""
    rows = [
        (
            setup.key,
            f"{ratio.slower} / {ratio.faster}",
            f"{ratio.paper:.2f}",
            "no plan" if ratio.ours is None else f"{ratio.ours:.2f}",
            "" if ratio.repaired is None else f"{ratio.repaired:.2f}",
            "yes" if good else "NO",
        )
        for (setup, ratio), good in zip(found, met, strict=True)
    ]
    return table(("setup", "ratio of steps", "paper", "ours", "with Metis repaired", "agrees"), rows)


def headline(found: Sequence[tuple[Setup, Ratio]]) -> str:
    """Tangram's largest speed-up over Metis on mixed clusters, which the paper's title claim is about."""
    over = [ratio for setup, ratio in found if ratio.slower == PUBLISHED and "+" in setup.paper_cluster]
    ours, repaired = (
        max((value for value in values if value), default=0.0)
        for values in ([item.ours for item in over], [item.repaired for item in over])
    )
    return (
        f"Headline, up to, over Metis on mixed clusters: paper 2.3, with Metis as published {ours:.2f}, "
        f"with Metis repaired {repaired:.2f}.\n"
    )


def defects_table(runs: Runs, figures: Figures) -> str:
    """Steps of Metis as published, and with each of its six points mended alone."""
    systems = [PUBLISHED, *(f"{PUBLISHED}, {defect} mended" for defect in DEFECTS), METIS]
    rows = []
    for setup in SETUPS:
        known = runs.get(setup.key, {})
        if figures.step_s(setup, METIS) and all(name in known for name in systems):
            steps = [known[name]["step_s"] for name in systems]
            cells = [seconds(step) + (" *" if step != steps[0] else "") for step in steps[1:-1]]
            paper = seconds(figures.step_s(setup, METIS))
            rows.append((setup.key, paper, seconds(steps[0]), *cells, seconds(steps[-1])))
    return table(("setup", "paper s", "as published", *DEFECTS, "repaired"), rows)


def planning_table(runs: Runs) -> str:
    """CPU seconds of a cold process, beside the target."""
    rows = []
    for setup in SETUPS:
        if setup.key in runs:
            cells = [setup.key]
            for system, most in MOST_CPU_S.items():
                run = runs[setup.key].get(system)
                missed = run is not None and run["cpu_s"] > most
                cells.append("" if run is None else f"{run['cpu_s']:.1f}" + (" MISSED" if missed else ""))
            rows.append(cells)
    return table(("setup", *(f"{name} (<= {most:.0f})" for name, most in MOST_CPU_S.items())), rows)


def ablation_table(cases: dict[str, dict[str, Any]], figures: Figures) -> str:
    """Fig. 12."""
    rows = []
    for name, bar, _, _ in CASES:
        if name in cases:
            case = cases[name]
            theirs = figures.ablation_s(bar) if bar else None
            rows.append(
                (
                    name,
                    "" if theirs is None else f"{theirs:,.0f}",
                    f"{case['cpu_s']:.1f}",
                    f"{case['asked']:,}",
                    f"{case['step_s']:.4f}",
                )
            )
    return table(("policies", "paper s", "ours CPU-s", "questions", "step s"), rows)


def islands_table(runs: Runs, figures: Figures) -> str:
    """Fig. 13: planning seconds of Tangram-Aceso against islands."""
    rows = []
    for count, (cluster, begins) in enumerate(ISLAND_CLUSTERS.items(), 1):
        run = runs.get(f"gpt3-13b on {cluster}", {}).get("Tangram-Aceso")
        if run:
            theirs = figures.islands_s(begins)
            rows.append(
                (str(count), cluster, seconds(theirs), f"{run['cpu_s']:.1f}", f"{run['questions']:,}")
            )
    return table(("islands", "cluster", "paper s", "ours CPU-s", "questions"), rows)


def published_table(found: Sequence[dict[str, Any]], figures: Figures) -> str:
    """Layouts that the authors published."""
    shown = [setup for setup in SETUPS if setup.figure == "Fig. 8"]
    bars = {setup.paper_cluster: figures.step_s(setup, "Sailor") for setup in shown}
    rows = []
    for row in found:
        theirs = row["measured_s"] or bars[row["bar"]]
        said = "measured" if row["measured_s"] else "Sailor's bar"
        ours = row["ours_s"]
        rows.append((row["what"], f"{theirs:.1f} ({said})", f"{ours:.1f}", f"{ours / theirs:.2f}"))
    return table(("layout", "theirs s", "ours s", "ours / theirs"), rows)


def report(
    runs: Runs, cases: dict[str, dict[str, Any]], published: Sequence[dict[str, Any]], figures: Figures
) -> str:
    """All tables, and how many targets were met."""
    order, faster = ratios(runs, figures)
    agreed = [ratio.ours is not None and ratio.ours > 1 for _, ratio in order]
    close = [within(ratio) for _, ratio in faster]
    text = "# Figures 8 to 13 of the Tangram paper, ours beside theirs\n\n"
    text += "".join(f"SHA-256 of {name}: `{digest}`\n\n" for name, digest in figures.hashes)
    text += "## Steps\n\n" + figure_table(runs, figures)
    text += (
        f"\n## Order of systems: {sum(agreed)} of {len(agreed)} pairs whose times differ by more than "
        f"{TOLD_APART - 1:.0%} in the paper\n\n" + ratio_table(order, agreed)
    )
    text += (
        f"\n## Speed-up of Tangram: {sum(close)} of {len(close)} within {WITHIN:.0%} of the paper's\n\n"
        + ratio_table(faster, close)
        + "\n"
        + headline(faster)
    )
    text += (
        "\n## Metis as published, each of its six points mended alone (* another plan)\n\n"
        + defects_table(runs, figures)
    )
    text += "\n## Layouts published by the paper's authors\n\n" + published_table(published, figures)
    text += "\n## Planning, CPU seconds of a cold process\n\n" + planning_table(runs)
    if cases:
        text += "\n## Pruning (Fig. 12)\n\n" + ablation_table(cases, figures)
    return text + "\n## Planning against islands (Fig. 13)\n\n" + islands_table(runs, figures)
