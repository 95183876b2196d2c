"""`tangram serve replan`: a service that follows prices and availability over time."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import begun
from tangram_sim.cli import options as shared
from tangram_sim.errors import BadInputError

Problem = Annotated[
    Path,
    typer.Argument(metavar="PROBLEM.json", help="A problem of kind cost, as `serve plan` takes it."),
]
Market = Annotated[
    Path,
    typer.Option(
        "--trace", help="CSV time_s, gpu, price_per_hour, available[, rate_factor]: a row for each change."
    ),
]
Until = Annotated[float, typer.Option("--until", help="Seconds at which the trace ends.")]
Load = Annotated[float, typer.Option("--load", help="Seconds a replica is paid for before it serves.")]
Drain = Annotated[float, typer.Option("--drain", help="Seconds it is paid for after it stopped.")]
Lost = Annotated[float, typer.Option("--lost", help="USD that a request which is not served costs.")]
Identity = Annotated[str | None, typer.Option("--id", help="Of a file with several problems, this one.")]
TimeLimit = Annotated[
    float | None,
    shared.time_limit("Seconds for all policies.  [default: 20]"),
]


def command(
    problem: Problem,
    trace: Market,
    until: Until,
    load: Load = 120.0,
    drain: Drain = 30.0,
    lost: Lost = 1.0,
    identity: Identity = None,
    time_limit: TimeLimit = None,
    as_json: shared.AsJson = False,
) -> None:
    """Plan every period of a trace of prices and availability, switches paid for, against hindsight."""
    limit_s = shared.given_limit_s(time_limit)

    from tangram_sim.cli.console import print_json, print_line, print_table
    from tangram_sim.serving_planners.market_file import read_market
    from tangram_sim.serving_planners.problem import RentalProblem
    from tangram_sim.serving_planners.problem_file import load_problem
    from tangram_sim.serving_planners.replanning import Switching
    from tangram_sim.studies.serving_replan import follow_market

    for option, value in (("--load", load), ("--drain", drain), ("--lost", lost)):
        if not 0 <= value < float("inf"):
            raise BadInputError(f"{option} {value:g}: a number from 0 on is wanted")
    given, _ = load_problem(problem, identity)
    if not isinstance(given, RentalProblem):
        raise BadInputError(
            f"{problem}: a flow over placements is not replanned; give a problem of kind cost"
        )
    market = read_market(trace, given, until)
    found = follow_market(given, market, Switching(load, drain, lost), begun.left_s(limit_s))
    if as_json:
        print_json(found.model_dump())
        return
    print_line(
        f"{found.periods} periods, {found.requests:,.0f} requests; no policy below {found.bound:.6g} USD"
    )
    print_line()
    rows = [
        (
            one.name,
            f"{one.usd:.5g}",
            f"{one.switching_usd:.3g}",
            str(one.starts),
            f"{one.lost_requests:,.0f}",
            f"{one.over_hindsight * 100:+.1f} %",
        )
        for one in found.policies
    ]
    heads = ("policy", "USD", "of it switches", "starts", "requests lost", "over the best")
    print_table(heads, rows, right=range(1, 6))
    shown = found.policies[1]
    print_line(f"{shown.name}:")
    lines = [
        (
            f"{one.begin_s:,.0f} s",
            ", ".join(f"{count} x {name}" for name, count in one.replicas.items()) or "nothing",
            f"{one.served_share * 100:.1f} %",
        )
        for one in shown.periods[:30]
    ]
    print_table(("from", "replicas", "served"), lines, right=(0, 2))
    if len(shown.periods) > len(lines):
        print_line(f"and {len(shown.periods) - len(lines)} more periods; --json has all")
