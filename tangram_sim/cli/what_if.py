"""`tangram what-if`: the fleet plus a purchase, replanned and simulated."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import buying
from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.purchasing.whatif import WhatIf

Add = Annotated[
    list[str] | None,
    typer.Option(
        "--add", help="A candidate: NODE:COUNT, a hwdb row or a node file; A:2+B:1 for several kinds."
    ),
]
Remove = Annotated[
    list[str] | None, typer.Option("--remove", help="Retire GROUP or GROUP:COUNT nodes in every candidate.")
]
PlansFolder = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="A folder for the plan of every candidate, or report.html: all to look at.",
    ),
]


def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    add: Add = None,
    remove: Remove = None,
    tokens: buying.Tokens = 1e12,
    prices: buying.PriceFile = None,
    acquire: buying.Acquire = "auto",
    fleet: buying.FleetHeld = "auto",
    sensitivity: buying.WithSensitivity = False,
    global_batch: shared.GlobalBatch = 128,
    seq: shared.Seq = 2048,
    dtype: shared.Dtype = "auto",
    optimizer: shared.Optimizer = "adamw",
    schedule: shared.Schedule = "1f1b",
    sub_islands: buying.SubIslands = False,
    effort: shared.Effort = "normal",
    cache: buying.CacheFolder = None,
    no_cache: buying.NoCache = False,
    jobs: buying.Jobs = 0,
    dask: buying.DaskAddress = None,
    output: PlansFolder = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """What CLUSTER with each --add would achieve on MODEL: throughput, time, money, GPUs in use."""
    from tangram_sim.cli import writing
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import load_cluster, load_model
    from tangram_sim.planners.api import SearchOptions
    from tangram_sim.purchasing.billing import Terms
    from tangram_sim.purchasing.documents import what_if_document
    from tangram_sim.purchasing.fleets import Fleet, parse_purchases, parse_retired
    from tangram_sim.purchasing.notes import tokens_per_s_means
    from tangram_sim.purchasing.pricefile import load_prices
    from tangram_sim.purchasing.sensitivity import sensitivity as find_sensitivity
    from tangram_sim.purchasing.whatif import what_if
    from tangram_sim.purchasing.words import count_of, days, hourly, outlay, per_million, rate, uses
    from tangram_sim.training.job import Job

    buying.require_tokens(tokens)
    if not add and not remove:
        raise BadInputError(
            "nothing to compare: give --add NODE:COUNT or --remove GROUP, e.g. --add p5.48xlarge:2"
        )
    buying.require_output(output)
    terms, database = Terms(acquire, fleet), shared.load_hwdb(hwdb)
    found_prices = load_prices(prices, database)
    standing = Fleet.of(load_cluster(cluster, database))
    bought = [parse_purchases(item, database) for item in add or []]
    named = {member.name for member in standing.members} | {one.name for each in bought for one in each}
    unused = buying.unused_prices(found_prices, named | set(database.node_names()))
    with SlowProgress("what-if") as progress:
        sweep = buying.make_sweep(cache, no_cache, jobs, progress, dask)
        study = what_if(
            load_model(model),
            standing,
            bought,
            retired=parse_retired(remove or [], standing),
            job=Job(global_batch, seq, dtype, optimizer, schedule),
            tokens=tokens,
            prices=found_prices,
            terms=terms,
            wishes=SearchOptions(sub_islands=sub_islands, effort=shared.effort(effort)),
            hwdb=database,
            sweep=sweep,
        )
        hangs_on = find_sensitivity(study, database) if sensitivity or writing.is_report(output) else None
    document = what_if_document(study, hangs_on, unused)
    if as_json:  # shown before anything is written: a full disk loses nothing that was simulated
        print_json(document.model_dump(mode="json"))
        _write(study, hangs_on, database, output)
        return
    print_line(f"{study.model.name} on {standing.cluster.name}, {tokens:,.4g} tokens")
    print_table(
        (
            *("candidate", "tokens/s", "MFU", "time", "GPUs used, and busy", "kW", "capital $", "$/h"),
            *("$/M tokens", "more tokens per $"),
        ),
        [
            (
                row.name,
                rate(row),
                f"{row.document.mfu:.1%}",
                days(row.days_to_train),
                uses(row),
                f"{row.power_w / 1000:.1f}",
                outlay(row),
                hourly(row),
                per_million(row),
                count_of(row.marginal_tokens_per_usd),
            )
            if row.document is not None
            else (row.name, *("-",) * 3, row.reason, *("-",) * 5)
            for row in study.rows
        ],
        right=(1, 2, 3, 5, 6, 7, 8, 9),
    )
    print_line(tokens_per_s_means(study.failures))
    if hangs_on is not None and sensitivity:
        buying.print_sensitivity(hangs_on)
    islands = (
        ()
        if sub_islands
        else ("islands were planned whole; `--sub-islands` searches finer and takes longer",)
    )
    buying.print_notes((*islands, *unused, *study.notes), sweep)
    buying.print_to_complete(document.to_complete)
    for line in _write(study, hangs_on, database, output):
        print_line(line)


def _write(
    study: "WhatIf", hangs_on: "Sensitivity | None", database: "Hwdb", output: Path | None
) -> list[str]:
    """Write the report or the plans; what was written, in words."""
    from tangram_sim.cli import writing
    from tangram_sim.datafiles import write_whole
    from tangram_sim.purchasing.whatif import plan_path

    if output is None:
        return []
    if writing.is_report(output):
        from tangram_sim.reports.purchases import what_if_report

        write_whole(output, what_if_report(study, hangs_on, database))
        return [f"report written to {output}"]
    written = []
    for row in study.rows:
        if row.document is not None:
            path = plan_path(output, row.name)
            write_whole(path, writing.plan_text(row.document))
            written.append(f"plan written to {path}")
    return written
