"""`tangram purchase`: which numbers of which nodes in a catalogue to buy."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli import buying, command_clock
from tangram_sim.cli.console import print_columns, print_line, print_remark
from tangram_sim.cli.derived import derived
from tangram_sim.questions.purchase import PurchaseQuestion
from tangram_sim.questions.purchase_answers import PurchaseAnswer, RecommendedAnswer
from tangram_sim.questions.served_fleets import ServedAnswer
from tangram_sim.questions.shared_fields import job_words
from tangram_sim.reports.columns import ViewColumn, share

if TYPE_CHECKING:
    from tangram_sim.purchasing.purchase import PurchaseStudy

_FRONT = "front.json"  # in the folder of an answer: the best trade-offs


@derived
def command(question: PurchaseQuestion, outputs: buying.BoughtOutputs) -> None:
    """Print what to buy, and write the requested files."""
    from tangram_sim.cli import recommended, writing
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.datafiles import write_whole
    from tangram_sim.purchasing.recommend import Recommendation

    served, output = question.served.given, outputs.output
    outputs.require(served=served)
    deadline = command_clock.deadline(question.look.limit_s)
    with SlowProgress("purchase") as progress, deadline.hearing_interrupts():

        def tell(study: "PurchaseStudy | Recommendation") -> None:
            """Print the best answers so far and, with a folder as output, save the front there."""
            if isinstance(study, Recommendation):
                row = study.best
                entry = (row.name, row.usd_to_train or 0.0, row.throughput.tokens_per_s)
                progress.say(recommended.headline(study, question.hardware.load()), [entry])
                return
            front = [
                (point.simulated.name, point.simulated.cost, point.simulated.tokens_per_s)
                for point in study.points
            ]
            progress.say("; ".join(f"{name} {rate:,.0f} tokens/s" for name, _, rate in front), front)
            if output is not None and not outputs.reports:
                write_whole(output / _FRONT, writing.answer_text(question.document_of(study)))

        found = question.answer(
            listener=progress,
            deadline=deadline,
            sensitive=not served and outputs.reports,
            tell=tell,
        )
    if isinstance(found, ServedAnswer):
        outputs.fleets.show_fleets(found, "What to buy", "buy")
        return
    if isinstance(found, RecommendedAnswer):
        recommended.finish(question, found, outputs)
        return
    outputs.finish(
        found,
        partial(_show, question),
        partial(_page, question, found),
        partial(_files, found),
        "front and plans",
    )


def _show(question: PurchaseQuestion, found: PurchaseAnswer) -> None:
    """Print one row per mix of the front, the effect of assumptions, and notes."""
    from tangram_sim.purchasing.notes import tokens_per_s_means
    from tangram_sim.purchasing.words import days, energy, money, more_per_usd, per_million, uses

    study, front, hangs_on = found.study, found.study.front, found.sensitivity
    print_line(
        f"{', '.join(work.model.name for work in study.works)} on {found.fleet} and what to add to it   "
        f"{job_words(study.works[0].job)}"
    )
    unit = "$/h of it" if question.cost == "hourly" else "capital $"
    columns = (
        ViewColumn("buy", "simulated.name"),
        ViewColumn(unit, "simulated.cost", money),
        ViewColumn("tokens/s", "simulated.tokens_per_s", "{:,.0f}"),
        ViewColumn("gap", "simulated.gap", share()),
        ViewColumn(
            "to next",
            lambda point: "proven" if front.is_proven(study.points.index(point)) else "open",
        ),
        ViewColumn("time", lambda point: ", ".join(days(row.days_to_train) for row in point.rows), "{}"),
        ViewColumn("GPUs used, and busy", lambda point: "; ".join(map(uses, point.rows))),
        ViewColumn("site kW", lambda point: max(row.site_kw for row in point.rows), "{:.1f}"),
        ViewColumn("$/M tokens", lambda point: ", ".join(map(per_million, point.rows)), "{}"),
        ViewColumn("more tokens per $", lambda point: ", ".join(map(more_per_usd, point.rows)), "{}"),
    )
    print_columns(columns, study.points, leaves=(6, 3, 7, 9, 5))
    print_line(
        f"the front of {front.mixes:,} mixes within the limits: the fastest for the cost. `gap`: "
        "its best plan is at most so much faster than the one found"
    )
    print_line("`to next`: proven where no mix that costs less than the next row can be faster than this one")
    buying.print_power([row for point in study.points for row in point.rows])
    print_line(tokens_per_s_means(study.billing.failures))
    print_line(energy([row for point in study.points for row in point.rows], study.billing.prices))
    if hangs_on is not None and question.money.sensitivity:
        buying.print_sensitivity(hangs_on)
    unseen = f", {front.waiting} not looked at" if front.waiting else ""
    print_remark(f"searched: {len(front.simulated)} mixes simulated, {front.left_out} bounded away{unseen}")
    buying.print_search((*found.notes, *study.notes), found.sweep)


def _page(question: PurchaseQuestion, found: PurchaseAnswer) -> str:
    """The HTML report of a front."""
    from tangram_sim.reports.purchases import purchase_report

    axis = "USD per hour of what is bought" if question.cost == "hourly" else "USD of capital"
    return purchase_report(found.study, found.sensitivity, question.hardware.load(), axis)


def _files(found: PurchaseAnswer, folder: Path) -> dict[Path, str]:
    """The files of a front, text by path: the Pareto front, and its plans."""
    from tangram_sim.cli import writing

    plans = [pair for point in found.study.points for pair in point.plan_files(folder / "plans")]
    files = {path: writing.plan_text(planned) for path, planned in plans}
    return files | {folder / _FRONT: writing.answer_text(found.document)}
