"""`what-if` and `purchase` with --serve: compares fleets by what they serve, all day or beside training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli.console import print_line, print_notes, print_remark
from tangram_sim.cli.serve_options import ServedOptions
from tangram_sim.cli.served_days import millions, print_days
from tangram_sim.cli.serving.candidates import print_candidates, require_page_or_json, tell_candidates
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from datetime import date

    from tangram_sim.cli.buying import LookOptions, MoneyOptions
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.planners.api import SearchOptions
    from tangram_sim.planners.deadline import Deadline
    from tangram_sim.purchasing.billing import Terms
    from tangram_sim.purchasing.catalogue import Limits
    from tangram_sim.purchasing.day_documents import ServedDayDocument
    from tangram_sim.purchasing.fleets import Fleet, Purchase
    from tangram_sim.purchasing.pricefile import Prices
    from tangram_sim.purchasing.search import ModelToTrain
    from tangram_sim.purchasing.served_day import DayTerms
    from tangram_sim.purchasing.served_fleets import ServiceDemand
    from tangram_sim.studies.documents import Document
    from tangram_sim.studies.sweep import Sweep
    from tangram_sim.training.job import Job


@dataclass(frozen=True)
class ServedQuestion:
    """Everything `what-if --serve` and `purchase --serve` need: work, requests, prices, limits, output."""

    work: "ModelToTrain"
    demand: "ServiceDemand"
    days: "DayTerms | None"  # None: fleets serve all day
    prices: "Prices"
    paid: "Terms"
    wishes: "SearchOptions"
    deadline: "Deadline"
    hwdb: "Hwdb"
    notes: tuple[str, ...]
    output: Path | None
    as_json: bool

    @property
    def title(self) -> str:
        """The models served (and trained), as a short title."""
        served = ", ".join(self.demand.models)
        return served if self.days is None else f"{self.work.model.name} trained, {served} served"

    def answer(self, found: "Document", report: Callable[[], str], tables: Callable[[], None]) -> None:
        """Print `found` as JSON or with `tables`; write it to -o as JSON or as the HTML of `report`."""
        tell_candidates(found, self.output, self.as_json, report, tables)


def served_question(
    model: str,
    job: "Job",
    served: ServedOptions,
    money: "MoneyOptions",
    look: "LookOptions",
    prices: "Prices",
    notes: tuple[str, ...],
    deadline: "Deadline",
    hwdb: "Hwdb",
    output: Path | None,
    as_json: bool,
) -> ServedQuestion:
    """The question set by the options, checked before anything is planned. Raises BadInputError."""
    from tangram_sim.hwdb import load_model
    from tangram_sim.purchasing.search import ModelToTrain

    if money.sensitivity:
        raise BadInputError("--sensitivity is of training alone; leave it out with --serve")
    require_page_or_json(output)
    return ServedQuestion(
        ModelToTrain(load_model(model), job),
        served.demand(model, hwdb),
        served.days(),
        prices,
        money.terms,
        look.wishes_of_many,
        deadline,
        hwdb,
        notes,
        output,
        as_json,
    )


def what_if_serving_fleets(
    question: ServedQuestion,
    fleets: "Sequence[tuple[str, Fleet]]",
    sweep: "Callable[[SlowProgress], Sweep]",
) -> None:
    """Plan, print and write every candidate of a what-if as a service, all day or some hours a day."""
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.purchasing.served_candidates import what_if_served
    from tangram_sim.purchasing.served_fleets import price_lacks

    lacks = price_lacks([fleet for _, fleet in fleets], question.prices, question.paid)
    question = replace(question, notes=(*lacks, *question.notes))

    if question.days is None:
        found = what_if_served(fleets, question.demand, question.prices, question.paid, question.hwdb)

        def page() -> str:
            from tangram_sim.reports.served_candidates import candidates_report

            return candidates_report(
                f"What if: {question.title}", found.candidates, "candidate", question.notes
            )

        def tables() -> None:
            print_candidates(found.candidates, "candidate", "GPUs used")
            print_notes(question.notes)

        question.answer(found, page, tables)
        return
    from tangram_sim.purchasing.day_documents import shared_what_if_document
    from tangram_sim.purchasing.sharing import days_of

    with SlowProgress("what-if") as progress, question.deadline.hearing_interrupts():
        days = days_of(
            fleets,
            question.work,
            question.demand,
            question.days,
            question.prices,
            question.paid,
            wishes=question.wishes,
            hwdb=question.hwdb,
            sweep=sweep(progress),
            deadline=question.deadline,
        )
    told = shared_what_if_document(
        days, question.work.model.name, list(question.demand.models), question.days, question.notes
    )
    _answer_days(question, told, told.candidates, "candidate", told.notes, told.cheapest_trained)


def purchase_serving_fleets(
    question: ServedQuestion,
    fleet: "Fleet",
    catalogue: "Sequence[tuple[Purchase, int]]",
    limits: "Limits",
    ordered: "date",
    sweep: "Callable[[SlowProgress], Sweep]",
) -> None:
    """Search, print and write what to buy for a service that runs all day or some hours a day."""
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.purchasing.served_fleets import price_lacks

    lacks = price_lacks([fleet], question.prices, question.paid)
    question = replace(question, notes=(*lacks, *question.notes))

    if question.days is None:
        _purchase_all_day(question, fleet, catalogue, limits, ordered)
        return
    from tangram_sim.purchasing.day_documents import shared_purchase_document
    from tangram_sim.purchasing.shared_purchase import purchase_shared

    with SlowProgress("purchase") as progress, question.deadline.hearing_interrupts():
        bought = purchase_shared(
            question.work,
            fleet,
            catalogue,
            limits,
            question.prices,
            question.demand,
            question.days,
            ordered=ordered,
            paid=question.paid,
            wishes=question.wishes,
            hwdb=question.hwdb,
            sweep=sweep(progress),
            deadline=question.deadline,
            tell=lambda day: progress.say(f"{day.name}: {day.reason or millions(day.trained.shared)}"),
        )
    told = shared_purchase_document(
        bought, question.work.model.name, list(question.demand.models), question.days, question.notes
    )
    _answer_days(question, told, told.front, "buy", told.notes, told.cheapest_trained)
    if not question.as_json:
        _print_looked(len(told.days), told.bounded_away, told.not_looked_at)


def _purchase_all_day(
    question: ServedQuestion,
    fleet: "Fleet",
    catalogue: "Sequence[tuple[Purchase, int]]",
    limits: "Limits",
    ordered: "date",
) -> None:
    from tangram_sim.cli.progress import SlowProgress
    from tangram_sim.purchasing.served_candidates import purchase_served

    with SlowProgress("purchase") as progress, question.deadline.hearing_interrupts():
        found = purchase_served(
            fleet,
            catalogue,
            limits,
            question.prices,
            question.demand,
            ordered=ordered,
            paid=question.paid,
            hwdb=question.hwdb,
            deadline=question.deadline,
            tell=lambda one, done, of: progress.report(done, of, one.name),
        )

    def page() -> str:
        from tangram_sim.reports.served_candidates import candidates_report

        return candidates_report(f"What to buy: {question.title}", found.front, "buy", found.notes)

    def tables() -> None:
        from tangram_sim.purchasing.catalogue import in_a_sentence

        print_candidates(found.front, "buy", "GPUs used")
        if found.cheapest_tokens is not None and len(found.front) > 1:
            print_line(f"tokens are cheapest with {in_a_sentence(found.cheapest_tokens)}")
        _print_looked(len(found.looked_at), found.bounded_away, found.not_looked_at)
        print_notes((*question.notes, *found.notes))

    question.answer(found, page, tables)


def _print_looked(looked: int, bounded: int, waiting: int) -> None:
    left = f", {waiting} not looked at" if waiting else ""
    print_remark(f"searched: {looked} mixes planned, {bounded} bounded away{left}")


def _answer_days(
    question: ServedQuestion,
    found: "Document",
    days: "Sequence[ServedDayDocument]",
    head: str,
    notes: Sequence[str],
    cheapest: str | None,
) -> None:
    def page() -> str:
        from tangram_sim.reports.served_days import days_report

        assert question.days is not None
        return days_report(question.title, days, question.days.hours, head, notes)

    def tables() -> None:
        from tangram_sim.purchasing.catalogue import in_a_sentence

        assert question.days is not None
        print_days(days, question.days.hours, head)
        if cheapest is not None and len(days) > 1:
            print_line(f"trained tokens are cheapest with {in_a_sentence(cheapest)}")
        print_notes(notes)

    question.answer(found, page, tables)


def one_model(models: Sequence[str]) -> str:
    """The only model of a verb that may have several. Raises BadInputError for more."""
    if len(models) != 1:
        raise BadInputError("--serve takes one MODEL beside what is served; ask for each by itself")
    return models[0]
