"""`tangram what-if`: plans and simulates a cluster again with nodes added or removed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import buying
from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_line, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.serve_options import ServedOptions
from tangram_sim.cli.served_fleets import served_question, what_if_serving_fleets
from tangram_sim.errors import BadInputError
from tangram_sim.questions.common import JobOptions
from tangram_sim.units import percent

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.purchasing.whatif import WhatIf

Add = Annotated[
    list[str] | None,
    typer.Option(
        "--add",
        help="A candidate: NODE:COUNT, a hwdb row, GPUxN or a node file; A:2+B:1 for several kinds.",
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


@derived
def command(
    model: shared.ModelArgument,
    cluster: shared.ClusterArgument,
    *,
    add: Add = None,
    remove: Remove = None,
    billing: buying.MoneyOptions,
    trained: JobOptions,
    look: buying.LookOptions,
    served: ServedOptions,
    output: PlansFolder = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """What CLUSTER with each --add would achieve on MODEL: throughput, time, money, GPUs in use.

    With --serve: what each serves, or with --share serves by day and trains by night.
    """
    from tangram_sim.cli import writing
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import load_model
    from tangram_sim.purchasing.documents import what_if_document
    from tangram_sim.purchasing.fleets import parse_purchases, parse_retired, standing_fleet
    from tangram_sim.purchasing.notes import tokens_per_s_means
    from tangram_sim.purchasing.sensitivity import sensitivity as find_sensitivity
    from tangram_sim.purchasing.whatif import what_if
    from tangram_sim.purchasing.words import count_of, days, hourly, outlay, per_million, rate, uses
    from tangram_sim.units import show_amount

    buying.require_tokens(billing.tokens)
    if not (add or remove or served.given):
        raise BadInputError(
            "nothing to compare: give --add NODE:COUNT or --remove GROUP, e.g. --add p5.48xlarge:2"
        )
    if not served.given:
        buying.require_output(output)
    terms, database, wishes, deadline = billing.terms, shared.load_hwdb(hwdb), look.wishes, look.deadline()
    found_prices = billing.found_prices(database)
    standing = standing_fleet(cluster, database)
    bought = [parse_purchases(item, database) for item in add or []]
    named = {member.name for member in standing.members} | {one.name for each in bought for one in each}
    unused = buying.unused_prices(found_prices, named | set(database.node_names()))
    if served.given:
        from tangram_sim.purchasing.whatif import candidates_of

        question = served_question(
            model,
            trained.job,
            served,
            billing,
            look,
            found_prices,
            unused,
            deadline,
            database,
            output,
            as_json,
        )
        fleets = candidates_of(standing, bought, parse_retired(remove or [], standing))
        what_if_serving_fleets(question, fleets, look.sweep)
        return
    asked = billing.sensitivity or writing.is_report(output)
    with SlowProgress("what-if") as progress, deadline.hearing_interrupts():
        sweep = look.sweep(progress)
        study = what_if(
            load_model(model),
            standing,
            bought,
            retired=parse_retired(remove or [], standing),
            job=trained.job,
            tokens=billing.tokens,
            prices=found_prices,
            terms=terms,
            wishes=wishes,
            hwdb=database,
            sweep=sweep,
            deadline=buying.before_sensitivity(deadline) if asked else deadline,
        )
        hangs_on = find_sensitivity(study, database, deadline) if asked else None
    document = what_if_document(study, hangs_on, unused)
    if as_json:  # shown before anything is written: a full disk loses nothing that was simulated
        print_json(document.model_dump(mode="json"))
        _write(study, hangs_on, database, output)
        return
    print_line(
        f"{study.model.name} on {standing.cluster.name}, {show_amount(billing.tokens)} tokens   "
        f"{trained.words}"
    )
    print_table(
        (
            *("candidate", "tokens/s", "MFU", "time", "GPUs used, and busy", "kW", "capital $", "$/h"),
            *("$/M tokens", "more tokens per $"),
        ),
        [
            (
                row.name,
                rate(row),
                percent(row.document.mfu, 1),
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
        leaves=(4, 2, 5, 7, 6, 3),
    )
    print_line(tokens_per_s_means(study.failures))
    if hangs_on is not None and billing.sensitivity:
        buying.print_sensitivity(hangs_on)
    islands = (
        ()
        if look.sub_islands is not False
        else ("islands were planned whole; `--sub-islands` searches finer and takes longer",)
    )
    buying.print_search((*islands, *unused, *study.notes), sweep)
    buying.print_to_complete(document.to_complete)
    for line in _write(study, hangs_on, database, output):
        print_line(line)


def _write(
    study: "WhatIf", hangs_on: "Sensitivity | None", database: "Hwdb", output: Path | None
) -> list[str]:
    """Write the report or the plans. Returns sentences on what was written."""
    from tangram_sim.cli import writing
    from tangram_sim.datafiles import write_all
    from tangram_sim.purchasing.whatif import plan_path

    if output is None:
        return []
    if writing.is_report(output):
        from tangram_sim.reports.purchases import what_if_report

        writing.write_report(output, what_if_report(study, hangs_on, database))
        return [f"report written to {output}"]
    plans = {
        plan_path(output, row.name): writing.plan_text(row.document)
        for row in study.rows
        if row.document is not None
    }
    write_all(plans)
    return [f"plan written to {path}" for path in plans]
