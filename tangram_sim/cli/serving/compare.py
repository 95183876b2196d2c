"""`tangram serve compare`: plans of several serving planners, simulated alike."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.option_groups import grouped
from tangram_sim.cli.serving import plan as single
from tangram_sim.cli.serving.goal_options import GoalOptions, PlannedRequests, plan_of_models

OffersFile = Annotated[
    Path,
    typer.Option(
        "--fleet",
        help="YAML with `gpus`: price_per_hour, available, gpus_per_node; or a cluster's name or file.",
    ),
]
Planners = Annotated[
    str | None,
    typer.Option(
        "--planners", help="Of milp, hexgen, melange and names of GPUs (that kind alone).  [default: all]"
    ),
]


@grouped
def command(
    model: single.Models,
    fleet: OffersFile,
    requests: PlannedRequests,
    goal: GoalOptions,
    planners: Planners = None,
    time_limit: single.TimeLimit = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Ask several planners for a service of MODEL, and play all plans with the same simulator."""
    time_limit_s = shared.given_limit_s(time_limit)

    from tangram_sim.cli.console import print_json, print_line, print_table
    from tangram_sim.errors import InfeasibleError, unknown_name
    from tangram_sim.serving_planners.offer_file import load_offers
    from tangram_sim.serving_planners.peers import planner_names
    from tangram_sim.studies.serving_comparison import compare_services

    database = shared.load_hwdb(hwdb)
    known = planner_names(load_offers(fleet, database, priced=False).gpus)
    chosen = tuple(name.strip() for name in planners.split(",")) if planners else known
    for name in chosen:
        if name not in known:
            raise unknown_name("planner", name, known)

    found = compare_services(
        lambda planner: plan_of_models(model, fleet, requests, goal, time_limit_s, database, planner),
        chosen,
        goal.objective,
    )
    if all(one.played is None for one in found.planners.values()):
        reasons = "\n".join(f"{name}: {one.status}: {one.reason}" for name, one in found.planners.items())
        raise InfeasibleError(f"no planner has a service of {model} on {fleet}\n{reasons}")
    if as_json:
        print_json(found.model_dump())
        return
    unit = "s" if goal.objective == "makespan" else "/s"
    rows = [
        (
            name,
            f"{one.played:.5g} {unit}",
            f"{one.promised:.5g} {unit}",
            f"{one.cost_per_hour:.4g}",
            f"{(one.good_share or 0.0) * 100:.1f} %",
            ", ".join(f"{count} {gpu}" for gpu, count in one.gpus_used.items() if count),
            f"{one.planning_cpu_s:.1f} CPU-s",
        )
        for name, one in found.planners.items()
        if one.played is not None
    ]
    print_table(
        ("planner", "played", "promised", "USD/h", "good", "GPUs", "planning"), rows, right=(1, 2, 3, 4, 6)
    )
    for name, one in found.planners.items():
        if one.played is None:
            print_line(f"{name}: {one.status}: {one.reason}")
