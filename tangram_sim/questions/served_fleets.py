"""`what-if` and `purchase` of fleets by what they serve, all day or beside training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tangram_sim.questions.buying import Buying, SearchListener
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from datetime import date

    from tangram_sim.hwdb import Hwdb
    from tangram_sim.planners.deadline import Deadline
    from tangram_sim.purchasing.billing import Terms
    from tangram_sim.purchasing.catalogue import Limits
    from tangram_sim.purchasing.day_documents import (
        ServedDayDocument,
        SharedPurchaseDocument,
        SharedWhatIfDocument,
    )
    from tangram_sim.purchasing.fleets import Fleet, Purchase
    from tangram_sim.purchasing.pricefile import Prices
    from tangram_sim.purchasing.search import ModelToTrain
    from tangram_sim.purchasing.served_candidates import ServedPurchaseDocument
    from tangram_sim.purchasing.served_day import DayTerms
    from tangram_sim.purchasing.served_fleets import ServiceDemand
    from tangram_sim.purchasing.sharing import SharedWork
    from tangram_sim.studies.serving_whatif import ServeWhatIfDocument, ServiceCandidateDocument

    ServedDocument = (
        ServeWhatIfDocument | ServedPurchaseDocument | SharedWhatIfDocument | SharedPurchaseDocument
    )


def millions(tokens: float) -> str:
    """Tokens in millions."""
    return f"{tokens / 1e6:,.4g} M" if tokens < 1e9 else f"{tokens / 1e6:,.0f} M"


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """Fleets by what they serve: the document, what was asked in words, and notes beside it."""

    document: "ServedDocument"
    title: str
    notes: tuple[str, ...]
    hours: float | None = None  # of serving a day; None: all day

    fleets: "Sequence[ServiceCandidateDocument]" = ()  # that serve all day
    days: "Sequence[ServedDayDocument]" = ()
    cheapest: str | None = None  # whose tokens, trained ones of days, cost least


@dataclass(frozen=True)
class ServedSetting:
    """A question about fleets that serve, with what both verbs need beside it."""

    question: Buying
    prices: "Prices"
    paid: "Terms"
    hwdb: "Hwdb"
    deadline: "Deadline"
    notes: tuple[str, ...]

    def what_if(self, fleets: "Sequence[tuple[str, Fleet]]", listener: SearchListener) -> ServedAnswer:
        """Every candidate as a service, all day or some hours a day."""
        from tangram_sim.purchasing.day_documents import shared_what_if_document
        from tangram_sim.purchasing.served_candidates import what_if_served
        from tangram_sim.purchasing.sharing import days_of

        setting, question = self._with_lacks([fleet for _, fleet in fleets]), self.question
        demand, days = question.served.demand(question.model, self.hwdb), question.served.days
        title = self._title(list(demand.models))
        if days is None:
            found = what_if_served(fleets, demand, self.prices, self.paid, self.hwdb)
            return ServedAnswer(question.with_answer(found), title, setting.notes, fleets=found.candidates)
        played = days_of(self._shared(demand, days, listener), fleets)
        told = shared_what_if_document(played, self.work.model.name, list(demand.models), days, setting.notes)
        return self._of_days(question.with_answer(told), title, days.hours, told.candidates)

    def purchase(
        self,
        fleet: "Fleet",
        catalogue: "Sequence[tuple[Purchase, int]]",
        limits: "Limits",
        ordered: "date",
        listener: SearchListener,
    ) -> ServedAnswer:
        """What to buy for a service that runs all day, or some hours a day."""
        from tangram_sim.purchasing.day_documents import shared_purchase_document
        from tangram_sim.purchasing.served_candidates import purchase_served
        from tangram_sim.purchasing.shared_purchase import purchase_shared

        setting, question = self._with_lacks([fleet]), self.question
        demand, days = question.served.demand(question.model, self.hwdb), question.served.days
        title = self._title(list(demand.models))
        if days is None:
            found = purchase_served(
                fleet,
                catalogue,
                limits,
                self.prices,
                demand,
                ordered=ordered,
                paid=self.paid,
                hwdb=self.hwdb,
                deadline=self.deadline,
                tell=lambda each, done, of: listener.report(done, of, each.name),
            )
            return ServedAnswer(
                question.with_answer(found),
                title,
                (*setting.notes, *found.notes),
                fleets=found.front,
                cheapest=found.cheapest_tokens,
            )
        bought = purchase_shared(
            self._shared(demand, days, listener),
            fleet,
            catalogue,
            limits,
            ordered,
            tell=lambda day: listener.say(f"{day.name}: {day.reason or millions(day.trained.shared)}"),
        )
        told = shared_purchase_document(
            bought, self.work.model.name, list(demand.models), days, setting.notes
        )
        return self._of_days(question.with_answer(told), title, days.hours, told.front)

    @property
    def work(self) -> "ModelToTrain":
        """The model that is trained, with its job."""
        from tangram_sim.hwdb import load_model
        from tangram_sim.purchasing.search import ModelToTrain

        name = name_list(self.question.model)[0]
        return ModelToTrain(load_model(name), self.question.trained_on(name))

    def _shared(self, demand: "ServiceDemand", days: "DayTerms", listener: SearchListener) -> "SharedWork":
        """What is trained and served on the same nodes."""
        from tangram_sim.purchasing.sharing import SharedWork

        return SharedWork(
            work=self.work,
            demand=demand,
            terms=days,
            prices=self.prices,
            paid=self.paid,
            wishes=self.question.look.options_of_many,
            hwdb=self.hwdb,
            sweep=self.question.look.sweep(listener),
            deadline=self.deadline,
        )

    @staticmethod
    def _of_days(
        told: "SharedWhatIfDocument | SharedPurchaseDocument",
        title: str,
        hours: float,
        days: "Sequence[ServedDayDocument]",
    ) -> ServedAnswer:
        """The answer of fleets that serve `hours` a day."""
        return ServedAnswer(told, title, tuple(told.notes), hours, days=days, cheapest=told.cheapest_trained)

    def _with_lacks(self, fleets: "Sequence[Fleet]") -> "ServedSetting":
        """The same with notes on prices that these fleets lack."""
        from tangram_sim.purchasing.served_fleets import price_lacks

        return replace(self, notes=(*price_lacks(fleets, self.prices, self.paid), *self.notes))

    def _title(self, models: Sequence[str]) -> str:
        """The models served (and trained), as a short title."""
        served = ", ".join(models)
        return (
            served
            if self.question.served.share is None
            else f"{self.work.model.name} trained, {served} served"
        )
