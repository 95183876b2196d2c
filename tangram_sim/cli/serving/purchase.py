"""`tangram serve purchase`: the best service that each of several budgets can rent."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import begun
from tangram_sim.cli import options as shared
from tangram_sim.cli.derived import derived
from tangram_sim.cli.serving import plan as single
from tangram_sim.cli.serving.goal_options import GoalOptions, PlannedRequests
from tangram_sim.errors import BadInputError

Catalogue = Annotated[
    Path,
    typer.Option(
        "--fleet", help="YAML with `gpus` on offer: price_per_hour, available, gpus_per_node; or a cluster."
    ),
]
Budgets = Annotated[str, typer.Option("--budgets", help="USD an hour, like 10,20,40: a plan for each.")]


@derived
def command(
    model: single.Models,
    fleet: Catalogue,
    budgets: Budgets,
    requests: PlannedRequests,
    goal: GoalOptions,
    time_limit: single.TimeLimit = None,
    output: single.Output = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """What each of --budgets rents: requests/s that keep --slo, tokens/s, dollars a million, replayed."""
    limit_s = shared.given_limit_s(time_limit)

    from tangram_sim.cli.console import print_line, print_notes
    from tangram_sim.cli.serving.candidates import (
        print_candidates,
        require_page_or_json,
        tell_candidates,
    )
    from tangram_sim.hwdb import load_model
    from tangram_sim.serving_planners.offer_file import load_offers
    from tangram_sim.studies.serving_purchase import purchase_serving

    require_page_or_json(output)
    if goal.budget is not None:
        raise BadInputError("--budget: give the budgets to compare with --budgets 10,20,40")
    asked, database = _budgets(budgets), shared.load_hwdb(hwdb)
    found = purchase_serving(
        {name: load_model(name) for name in shared.names("MODEL", model)},
        load_offers(fleet, database),
        asked,
        requests.made("goodput"),
        database,
        goal.goal(database),
        begun.left_s(limit_s),
    )

    def page() -> str:
        from tangram_sim.reports.served_candidates import candidates_report

        return candidates_report(f"What budgets buy: {model}", found.front, "budget", found.notes)

    def tables() -> None:
        print_candidates(found.front, "budget", "GPUs rented")
        if found.cheapest_tokens is not None and len(found.front) > 1:
            print_line(f"tokens are cheapest at {found.cheapest_tokens:g} USD/h")
        print_notes(found.notes)

    tell_candidates(found, output, as_json, page, tables)


def _budgets(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < one < float("inf") for one in found):
        raise BadInputError(f"--budgets {text}: USD an hour, each above 0, are wanted, like 10,20,40")
    return found
