"""`tangram purchase` with a goal: one recommendation, its runner-ups, why, and what would change it."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli import buying
from tangram_sim.cli.console import print_columns, print_line, print_notes, print_remark
from tangram_sim.questions.purchase import PurchaseQuestion
from tangram_sim.questions.purchase_answers import RecommendedAnswer
from tangram_sim.questions.shared_fields import job_words
from tangram_sim.reports.columns import ViewColumn, share
from tangram_sim.units import show_amount

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.purchasing.recommend import Recommendation
    from tangram_sim.purchasing.rows import WhatIfRow

_FILE = "recommendation.json"


def headline(study: "Recommendation", database: "Hwdb") -> str:
    """The recommendation in a sentence: what, from whom, how long, for how much."""
    from tangram_sim.purchasing.goal import slow_end_days
    from tangram_sim.purchasing.words import days, dollars, money

    row = study.best
    fast = row.days_to_train * row.throughput.tokens_per_s / row.throughput.high
    span = f"{days(row.days_to_train)} ({days(fast).split()[0]} to {days(slow_end_days(row)).split()[0]})"
    cost = ""
    if row.bill.known and row.usd_per_million_tokens is not None:
        low, high = row.usd_per_million_interval
        cost = (
            f" for {dollars(row.usd_to_train)}: ${money(row.usd_per_million_tokens)} per million tokens "
            f"({money(low)} to {money(high)})"
        )
    elif row.usd_to_train_at_least:
        cost = f" for {dollars(row.usd_to_train_at_least)} or more: not all costs are stated"
    outlay = row.bill.outlay_usd
    bought = f", {dollars(outlay)} of it laid out for machines" if outlay else ""
    lead = "recommended" if study.reached else "nearest to the goal"
    return (
        f"{lead}: {row.name} ({terms_of(row, study, database)}) trains {show_amount(study.goal.tokens)} "
        f"tokens in {span}{cost}{bought}"
    )


def terms_of(row: "WhatIfRow", study: "Recommendation", database: "Hwdb") -> str:
    """Providers of a mix and how its nodes are paid for: `aws, rent`."""
    from tangram_sim.purchasing.billing import way_of
    from tangram_sim.purchasing.clouds import provider_of

    billing, days = study.billing, row.days_to_train
    said = dict.fromkeys(
        f"{provider_of(member.name, database) or 'own offer'}, "
        f"{way_of(member, billing.prices, billing.terms, days)}"
        for member in row.fleet.members
        if member.bought
    )
    return "; ".join(said) or "the fleet as it stands"


def _show(question: PurchaseQuestion, answer: RecommendedAnswer) -> None:
    """Print the recommendation, then runner-ups, reasons, and what would change it."""
    from tangram_sim.purchasing.goal import slow_end_days
    from tangram_sim.purchasing.notes import tokens_per_s_means
    from tangram_sim.purchasing.words import energy, money, per_million, total

    study, found, database = answer.study, answer.sensitivity, question.hardware.load()
    print_line(headline(study, database))
    print_line(f"{study.work.model.name}   {job_words(study.work.job)}")
    columns = (
        ViewColumn("mix", "name"),
        ViewColumn("from", lambda row: terms_of(row, study, database)),
        ViewColumn("days", "days_to_train", "{:,.1f}"),
        ViewColumn("slow end", slow_end_days, "{:,.1f}"),
        ViewColumn("in time", lambda row: "yes" if study.reaches(row) else "no"),
        ViewColumn("total $", total, "{}"),
        ViewColumn("$/M tokens", per_million, "{}"),
        ViewColumn("$/h", "bill.usd_per_hour", money),
        ViewColumn("site kW", "site_kw", "{:.1f}"),
        ViewColumn("MWh", "mwh", money),
        ViewColumn("tokens/s", "throughput.tokens_per_s", "{:,.0f}"),
        ViewColumn("goodput", "goodput.fraction", share(1)),
        ViewColumn("MFU", "document.mfu", share(1)),
    )
    print_columns(columns, [study.best, *study.runner_ups], leaves=(12, 7, 10, 11, 8, 9))
    for heading, lines in (("why", study.why()), ("what would change it", study.changes())):
        if lines:
            print_line(f"{heading}:")
        for line in lines:
            print_line(f"- {line}")
    print_line(tokens_per_s_means(study.billing.failures))
    print_line(energy([study.best, *study.runner_ups], study.billing.prices))
    if found is not None and question.money.sensitivity:
        buying.print_sensitivity(found)
    searched = study.searched
    unseen = f", {searched.waiting} not looked at" if searched.waiting else ""
    print_remark(f"searched: {searched.planned} mixes planned, {searched.left_out} left out{unseen}")
    print_notes((*answer.notes, *study.notes))


def finish(question: PurchaseQuestion, answer: RecommendedAnswer, outputs: buying.BoughtOutputs) -> None:
    """Print a recommendation, as a table or as JSON, and write its report or a folder of plans."""
    from tangram_sim.cli.writing import answer_text
    from tangram_sim.reports.purchases import recommendation_report

    study = answer.study

    def files(folder: Path) -> dict[Path, str]:
        plans = buying.plan_files(folder / "plans", (study.best, *study.runner_ups))
        return plans | {folder / _FILE: answer_text(answer.document)}

    outputs.finish(
        answer,
        partial(_show, question),
        lambda: recommendation_report(study, answer.sensitivity, question.hardware.load()),
        files,
        "recommendation and plans",
    )
