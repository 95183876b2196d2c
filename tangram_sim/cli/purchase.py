"""`tangram purchase`: which numbers of which nodes in a catalogue to buy."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangram_sim.cli import buying
from tangram_sim.cli import options as shared
from tangram_sim.cli import purchase_options as own
from tangram_sim.cli.console import print_json, print_line, print_remark, print_table
from tangram_sim.cli.derived import derived
from tangram_sim.cli.goal_options import RunGoalOptions
from tangram_sim.cli.serve_options import ServedOptions
from tangram_sim.cli.served_fleets import one_model, purchase_serving_fleets, served_question
from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.questions.common import JobOptions
from tangram_sim.units import percent

_FRONT = "front.json"  # in the folder of an answer: the best trade-offs

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.purchasing.purchase import PurchaseStudy
    from tangram_sim.purchasing.sensitivity import Sensitivity


@derived
def command(
    model: own.Models,
    cluster: shared.ClusterArgument,
    *,
    catalogue: own.CatalogueFile = None,
    goal: RunGoalOptions,
    budget: own.Budget = None,
    budget_per_hour: own.Hourly = None,
    power_kw: own.PowerKw = None,
    max_nodes: own.MaxNodes = None,
    rack_units: own.RackUnits = None,
    deadline: own.Deadline = None,
    order_date: own.Ordered = None,
    weights: own.Weights = None,
    cost: own.Cost = "hourly",
    spot: own.Spot = None,
    spot_return_s: own.SpotReturn = 600.0,
    spot_policy: own.SpotPolicy = "restart",
    billing: buying.MoneyOptions,
    trained: JobOptions,
    look: buying.LookOptions,
    served: ServedOptions,
    output: own.FrontFolder = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Search all mixes of a catalogue within the limits: the front of throughput against cost.

    CLUSTER `none` owns nothing. With --finish-within or --cloud, or from nothing: one mix is recommended.
    With --serve: of what they serve, or with --share of what they train beside serving by day.
    """
    from tangram_sim.cli import writing
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.datafiles import write_whole
    from tangram_sim.hwdb import load_model
    from tangram_sim.purchasing.catalogue import Limits, load_catalogue
    from tangram_sim.purchasing.clouds import MOST_NODES, cloud_catalogue, clouds_named
    from tangram_sim.purchasing.documents import purchase_document
    from tangram_sim.purchasing.fleets import standing_fleet
    from tangram_sim.purchasing.notes import tokens_per_s_means
    from tangram_sim.purchasing.purchase import as_what_if, purchase
    from tangram_sim.purchasing.search import ModelToTrain
    from tangram_sim.purchasing.sensitivity import sensitivity as find_sensitivity
    from tangram_sim.purchasing.words import count_of, days, money, per_million, uses

    buying.require_tokens(billing.tokens)
    if cost not in ("hourly", "outlay"):
        raise unknown_name("cost", cost, ("hourly", "outlay"))
    limits = Limits(
        own.limit("--budget", budget),
        own.limit("--budget-per-hour", budget_per_hour),
        own.limit("--power-kw", power_kw) * 1000.0,
        own.limit("--max-nodes", max_nodes),
        own.limit("--rack-units", rack_units),
        own.day("--deadline", deadline) if deadline else None,
    )
    if not served.given:
        buying.require_output(output)
    names = shared.names("MODEL", model)
    shares = own.weights(weights, len(names))
    works = [
        ModelToTrain(load_model(name), trained.job, share) for name, share in zip(names, shares, strict=True)
    ]
    preemption = own.preemption(spot, spot_return_s, spot_policy, billing.acquire)
    terms = replace(billing.terms, acquire="spot") if preemption else billing.terms
    database, wishes, time_left = shared.load_hwdb(hwdb), look.wishes, look.deadline()
    standing = standing_fleet(cluster, database)
    told_of_offers: list[str] = []
    if preemption is not None and spot is None:
        told_of_offers.append(
            f"spot nodes are assumed to go {preemption.losses_per_node_hour:g} times an hour each (`spot=`)"
        )
    if (catalogue is None) == (goal.cloud is None) and (catalogue is not None or standing.members):
        raise BadInputError("give one of --catalogue FILE and --cloud NAMES: what is on offer")
    if catalogue is not None:
        offers = load_catalogue(catalogue, database)
    else:
        clouds = clouds_named(shared.names("--cloud", goal.cloud) or ("all",))
        offers, told_of_offers = cloud_catalogue(clouds, database, max_nodes or MOST_NODES)
    known = {member.name for member in standing.members} | {one.name for one, _ in offers}
    found_prices = replace(billing.found_prices(database), preemption=preemption)
    unused = buying.unused_prices(found_prices, known | set(database.node_names()))
    if served.given:
        if cost != "hourly" or weights is not None:
            raise BadInputError("--serve: fronts are of USD an hour or a month, of one MODEL; leave it out")
        question = served_question(
            one_model(names),
            trained.job,
            served,
            replace(billing, acquire=terms.acquire),
            look,
            found_prices,
            unused,
            time_left,
            database,
            output,
            as_json,
        )
        day = own.day("--order-date", order_date) if order_date else date.today()
        purchase_serving_fleets(question, standing, offers, limits, day, look.sweep)
        return
    day = own.day("--order-date", order_date) if order_date else date.today()
    if goal.finish_within is not None or goal.cloud is not None or not standing.members:
        from tangram_sim.cli.recommended import finish, headline
        from tangram_sim.purchasing.recommend import Recommendation, recommend_mix

        if len(works) > 1:
            raise BadInputError("a goal is of one model; ask for each model by itself")
        aim, assumed = goal.goal(billing.tokens, budget, found_prices)
        asked = billing.sensitivity or writing.is_report(output)
        with SlowProgress("purchase") as progress, time_left.hearing_interrupts():

            def better(one: Recommendation) -> None:
                row = one.best
                progress.say(
                    headline(one, database),
                    [(row.name, row.usd_to_train or 0.0, row.throughput.tokens_per_s)],
                )

            best = recommend_mix(
                works[0],
                standing,
                offers,
                replace(limits, budget_usd=math.inf),
                found_prices,
                aim,
                ordered=day,
                one_kind=catalogue is None,
                terms=terms,
                wishes=wishes,
                hwdb=database,
                sweep=look.sweep(progress),
                deadline=buying.before_sensitivity(time_left) if asked else time_left,
                tell=better,
            )
            hangs_on = find_sensitivity(best.as_what_if(), database, time_left) if asked else None
        finish(
            best,
            hangs_on,
            (*assumed, *told_of_offers, *unused),
            database,
            job_words=trained.words,
            full=billing.sensitivity,
            as_json=as_json,
            output=output,
        )
        return
    basis = "usd_per_hour" if cost == "hourly" else "outlay_usd"

    def told(study: "PurchaseStudy", hangs_on: "Sensitivity | None" = None) -> dict[str, Any]:
        found = purchase_document(study, hangs_on, unused, cost=basis)
        return found.model_dump(mode="json")

    asked = billing.sensitivity or (writing.is_report(output) and len(works) == 1)
    if asked and len(works) > 1:
        raise BadInputError("--sensitivity takes one model; ask for each model by itself")
    with SlowProgress("purchase") as progress, time_left.hearing_interrupts():

        def tell(study: "PurchaseStudy") -> None:
            """Print the best trade-offs found so far and, with a folder as output, save them there."""
            done = [point.simulated for point in study.points]
            front = [(one.name, one.cost, one.tokens_per_s) for one in done]
            progress.say("; ".join(f"{name} {rate:,.0f} tokens/s" for name, _, rate in front), front)
            if output is not None and not writing.is_report(output):
                write_whole(output / _FRONT, _front_text(told(study)))

        sweep = look.sweep(progress)
        study = purchase(
            works,
            standing,
            offers,
            limits,
            found_prices,
            ordered=day,
            tokens=billing.tokens,
            terms=terms,
            wishes=wishes,
            hwdb=database,
            sweep=sweep,
            by_outlay=cost == "outlay",
            deadline=buying.before_sensitivity(time_left) if asked else time_left,
            tell=tell,
        )
        hangs_on = None
        if asked:
            hangs_on = find_sensitivity(as_what_if(study, billing.tokens), database, time_left)
    front, found = study.front, told(study, hangs_on)
    axis = "USD per hour of what is bought" if cost == "hourly" else "USD of capital"
    report = partial(_report, study, billing.tokens, hangs_on, database, axis)
    if as_json:  # shown before anything is written: a full disk loses nothing that was simulated
        print_json(found)
        _write(study, found, output, report)
        return
    print_line(
        f"{', '.join(work.model.name for work in works)} on {standing.cluster.name} and what to add to it   "
        f"{trained.words}"
    )
    unit = "$/h of it" if cost == "hourly" else "capital $"
    print_table(
        (
            "buy",
            unit,
            "tokens/s",
            "gap",
            "to next",
            "time",
            "GPUs used, and busy",
            "kW",
            "$/M tokens",
            "more tokens per $",
        ),
        [
            (
                point.simulated.name,
                money(point.simulated.cost),
                f"{point.simulated.tokens_per_s:,.0f}",
                percent(point.simulated.gap),
                "proven" if front.is_proven(at) else "open",
                ", ".join(days(row.days_to_train) for row in point.rows),
                "; ".join(uses(row) for row in point.rows),
                f"{max(row.power_w for row in point.rows) / 1000:.1f}",
                ", ".join(per_million(row) for row in point.rows),
                ", ".join(count_of(row.marginal_tokens_per_usd) for row in point.rows),
            )
            for at, point in enumerate(study.points)
        ],
        right=(1, 2, 3, 5, 7, 8, 9),
        leaves=(6, 3, 7, 9, 5),
    )
    print_line(
        f"the front of {front.mixes:,} mixes within the limits: the fastest for the cost. `gap`: "
        "its best plan is at most so much faster than the one found"
    )
    print_line("`to next`: proven where no mix that costs less than the next row can be faster than this one")
    print_line(tokens_per_s_means(study.failures))
    if hangs_on is not None and billing.sensitivity:
        buying.print_sensitivity(hangs_on)
    unseen = f", {front.waiting} not looked at" if front.waiting else ""
    print_remark(f"searched: {len(front.simulated)} mixes simulated, {front.left_out} bounded away{unseen}")
    buying.print_search((*told_of_offers, *unused, *study.notes), sweep)
    written = _write(study, found, output, report)
    if written:
        print_line(written)


def _report(
    study: "PurchaseStudy", tokens: float, hangs_on: "Sensitivity | None", database: "Hwdb", axis: str
) -> str:
    from tangram_sim.reports.purchases import purchase_report

    return purchase_report(study, tokens, hangs_on, database, axis)


def _write(
    study: "PurchaseStudy", found: dict[str, Any], output: Path | None, report: Callable[[], str]
) -> str:
    """Write the report, or the best trade-offs and their plans. Returns a sentence on what was written."""
    from tangram_sim.cli import writing
    from tangram_sim.datafiles import write_all

    if output is None:
        return ""
    if writing.is_report(output):
        writing.write_report(output, report())
        return f"report written to {output}"
    plans = [pair for point in study.points for pair in point.plan_files(output / "plans")]
    files = {path: writing.plan_text(planned) for path, planned in plans}
    write_all(files | {output / _FRONT: _front_text(found)})
    return f"front and plans written to {output} (`tangram simulate` replays a plan)"


def _front_text(found: dict[str, Any]) -> str:
    """The text of the file of best trade-offs."""
    return json.dumps(found, indent=1, allow_nan=False) + "\n"
