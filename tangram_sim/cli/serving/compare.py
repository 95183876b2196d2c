"""`tangram serve compare`: plans of several serving planners under one judge."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import begun
from tangram_sim.cli import options as shared
from tangram_sim.cli.derived import derived
from tangram_sim.cli.serving import plan as single
from tangram_sim.cli.serving.given_problem import given_problem
from tangram_sim.cli.serving.goal_options import GoalOptions, PlannedRequests, plan_of_models

OffersFile = Annotated[
    Path | None,
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


@derived
def command(
    question: single.Question,
    requests: PlannedRequests,
    goal: GoalOptions,
    fleet: OffersFile = None,
    identity: single.Identity = None,
    planners: Planners = None,
    time_limit: single.TimeLimit = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Ask several planners the same question, and hold all plans to the same judge.

    Plans for models on --fleet are played by the simulator; of PROBLEM.json the throughputs it gives judge.
    """
    time_limit_s = shared.given_limit_s(time_limit)

    from tangram_sim.cli.console import print_json, print_line, print_notes, print_table
    from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
    from tangram_sim.serving_planners.offer_file import load_offers
    from tangram_sim.serving_planners.peers import planner_names
    from tangram_sim.serving_planners.problem import RentalProblem
    from tangram_sim.studies.serving_comparison import compare_problem, compare_services
    from tangram_sim.studies.time_limit import TimeLimit

    chosen = tuple(name.strip() for name in planners.split(",")) if planners else ()
    objective = goal.objective
    if fleet is None:
        given, ignored = given_problem(question, identity, requests, goal)
        if not isinstance(given, RentalProblem):
            raise BadInputError(
                f"{question}: planners of replicas are compared; `serve plan` shows a flow beside its rivals"
            )
        found = compare_problem(given, chosen, begun.left_s(time_limit_s), ignored)
        objective = given.objective
    else:
        offers, database = fleet, shared.load_hwdb(hwdb)
        known = planner_names(load_offers(fleet, database, priced=False).gpus)
        for name in chosen:
            if name not in known:
                raise unknown_name("planner", name, known)
        limit, turns = TimeLimit(begun.left_s(time_limit_s)), iter(range(len(chosen or known), 0, -1))
        found = compare_services(
            lambda planner: plan_of_models(
                question, offers, requests, goal, limit.left_s(next(turns)), database, planner
            ),
            chosen or known,
            objective,
        )
    if all(one.played is None for one in found.planners.values()):
        reasons = "\n".join(f"{name}: {one.status}: {one.reason}" for name, one in found.planners.items())
        where = "" if fleet is None else f" on {fleet}"
        raise InfeasibleError(f"no planner has a service for {question}{where}\n{reasons}")
    if as_json:
        print_json(found.model_dump())
        return
    unit = "s" if objective == "makespan" else "USD/h" if fleet is None else "/s"
    rows = [
        (
            name,
            f"{one.played:.5g} {unit}",
            f"{one.promised:.5g} {unit}",
            "-" if one.cost_per_hour is None else f"{one.cost_per_hour:.4g}",
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
    print_notes(found.notes)
