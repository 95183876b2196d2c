"""`tangram serve what-if`: what more GPUs would do for a service."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import begun
from tangram_sim.cli import options as shared
from tangram_sim.cli.derived import derived
from tangram_sim.cli.serving import plan as single
from tangram_sim.cli.serving.goal_options import GoalOptions, PlannedRequests
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.studies.serving_whatif import GpuPurchase

Fleet = Annotated[
    Path,
    typer.Option(
        "--fleet", help="YAML with `gpus`, price_per_hour and available of each, or a cluster: what is there."
    ),
]
Add = Annotated[
    list[str] | None,
    typer.Option("--add", help="A candidate: GPU:COUNT[@USD_PER_HOUR], or nodes: H100x8:2; A:2+B:4: both."),
]


@derived
def command(
    model: single.Models,
    fleet: Fleet,
    requests: PlannedRequests,
    goal: GoalOptions,
    add: Add = None,
    time_limit: single.TimeLimit = None,
    output: single.Output = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """The fleet with each --add: requests/s that keep --slo, tokens/s, dollars a million tokens, replayed."""
    limit_s = shared.given_limit_s(time_limit)

    from tangram_sim.cli.console import print_notes
    from tangram_sim.cli.serving.candidates import (
        print_candidates,
        require_page_or_json,
        tell_candidates,
    )
    from tangram_sim.hwdb import load_model
    from tangram_sim.serving_planners.offer_file import load_offers
    from tangram_sim.studies.serving_whatif import what_if_serving

    require_page_or_json(output)
    if goal.budget is not None:
        raise BadInputError("--budget: all GPUs of a candidate are there to be used; leave it out")
    database = shared.load_hwdb(hwdb)
    found = what_if_serving(
        {name: load_model(name) for name in shared.names("MODEL", model)},
        load_offers(fleet, database),
        {text: purchases(text, database) for text in add or ()},
        requests.made("goodput"),
        database,
        goal.goal(database),
        begun.left_s(limit_s),
    )

    def page() -> str:
        from tangram_sim.reports.served_candidates import candidates_report

        return candidates_report(f"What if: {model}", found.candidates, "candidate", found.notes)

    def tables() -> None:
        print_candidates(found.candidates, "candidate", "GPUs used")
        print_notes(found.notes)

    tell_candidates(found, output, as_json, page, tables)


def purchases(text: str, hwdb: "Hwdb") -> "tuple[GpuPurchase, ...]":
    """`GPU:COUNT[@USD]+...` as purchases, or nodes as everywhere, `H100x8:2`. Raises BadInputError,
    UnknownNameError.
    """
    from tangram_sim.studies.serving_whatif import GpuPurchase

    found = []
    for part in text.split("+"):
        name, sign, rest = part.partition(":")
        count, priced, usd = rest.partition("@")
        try:
            value = float(usd) if priced else 0.0
        except ValueError:
            value = -1.0
        if not sign or not count.isdecimal() or not 1 <= int(count) <= 10**6 or not 0 <= value < math.inf:
            raise BadInputError(f"--add {text}: give it like L40S:4, or L40S:4@0.9 with USD an hour for each")
        gpu, per_node = _gpus(name.strip(), hwdb)
        found.append(GpuPurchase(gpu, int(count) * per_node, value))
    return tuple(found)


def _gpus(name: str, hwdb: "Hwdb") -> tuple[str, int]:
    """(GPU kind, how many of it) that a name stands for: one of a GPU kind, all of a node."""
    from tangram_sim.errors import UnknownNameError
    from tangram_sim.hwdb.inline_cluster import node_keys

    try:
        return hwdb.gpu(name).name, 1
    except UnknownNameError as error:
        try:
            keys = node_keys(name, hwdb)
        except UnknownNameError:
            raise error from None
    if "node" in keys:
        node = hwdb.node(keys["node"])
        return node.gpu.name, node.gpus
    return str(keys["gpu"]), int(keys["gpus"])
