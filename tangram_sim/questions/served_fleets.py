"""`what-if` and `purchase` with fleets ranked by what they serve, all day or beside training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tangram_sim.fields import HasDocument
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

    ServedDocument: TypeAlias = (
        ServeWhatIfDocument | ServedPurchaseDocument | SharedWhatIfDocument | SharedPurchaseDocument
    )


def millions(tokens: float) -> str:
    """Tokens in millions."""
    return f"{tokens / 1e6:,.4g} M" if tokens < 1e9 else f"{tokens / 1e6:,.0f} M"


@dataclass(frozen=True, slots=True)
class ServedAnswer(HasDocument):
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
    """A question about fleets that serve, with its prices, terms and deadline."""

    question: Buying
    prices: "Prices"
    paid: "Terms"
    hwdb: "Hwdb"
    deadline: "Deadline"
    notes: tuple[str, ...]

    def what_if(self, fleets: "Sequence[tuple[str, Fleet]]", listener: SearchListener) -> ServedAnswer:
        """Every candidate planned for serving, all day or some hours a day."""
        from tangram_sim.purchasing.day_documents import what_if_shared
        from tangram_sim.purchasing.served_candidates import what_if_served

        notes = self._lacks([fleet for _, fleet in fleets])
        demand, days = self._demand, self.question.served.days
        if days is None:
            served = what_if_served(fleets, demand, self.prices, self.paid, self.hwdb, self.deadline)
            return self._answer(served, notes, fleets=served.candidates)
        told = what_if_shared(self._shared(demand, days, listener), fleets)
        return self._answer(told, notes, days=told.candidates, cheapest=told.cheapest_trained)

    def purchase(
        self,
        fleet: "Fleet",
        catalogue: "Sequence[tuple[Purchase, int]]",
        limits: "Limits",
        ordered: "date",
        listener: SearchListener,
    ) -> ServedAnswer:
        """What to buy for a service that runs all day, or some hours a day."""
        from tangram_sim.purchasing.day_documents import purchase_shared
        from tangram_sim.purchasing.served_candidates import catalogue_mixes, purchase_served

        mixes, left_out = catalogue_mixes(fleet, catalogue, limits, self.prices, self.paid, ordered)
        notes = (*self._lacks([fleet]), *left_out)
        demand, days = self._demand, self.question.served.days
        if days is None:
            served = purchase_served(
                mixes,
                demand,
                self.prices,
                self.paid,
                self.hwdb,
                deadline=self.deadline,
                tell=lambda name, _, done, of: listener.report(done, of, name),
            )
            return self._answer(served, notes, fleets=served.front, cheapest=served.cheapest_tokens)
        told = purchase_shared(
            self._shared(demand, days, listener),
            mixes,
            lambda name, day, *_: listener.say(f"{name}: {day.reason or millions(day.trained.shared)}"),
        )
        return self._answer(told, notes, days=told.front, cheapest=told.cheapest_trained)

    @property
    def _demand(self) -> "ServiceDemand":
        """Models and requests to serve."""
        return self.question.served.demand(self.question.model, self.hwdb)

    @property
    def work(self) -> "ModelToTrain":
        """The model to train, with its job."""
        from tangram_sim.hwdb import load_model
        from tangram_sim.purchasing.search import ModelToTrain

        name = name_list(self.question.model)[0]
        return ModelToTrain(load_model(name), self.question.trained_on(name))

    def _shared(self, demand: "ServiceDemand", days: "DayTerms", listener: SearchListener) -> "SharedWork":
        """The work to train and to serve on the same nodes."""
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

    def _answer(self, found: "ServedDocument", notes: tuple[str, ...], **shown: Any) -> ServedAnswer:
        """The answer with its title and notes; `shown` are the other fields."""
        names = ", ".join(name_list(self.question.served.serve_model or self.question.model))
        days = self.question.served.days
        title = names if days is None else f"{self.work.model.name} trained, {names} served"
        document = self.question.with_answer(found.with_fields(notes=list(notes)))
        return ServedAnswer(document, title, notes, None if days is None else days.hours, **shown)

    def _lacks(self, fleets: "Sequence[Fleet]") -> tuple[str, ...]:
        """Notes on prices missing for these fleets, followed by the setting's own notes."""
        from tangram_sim.purchasing.served_fleets import price_lacks

        return (*price_lacks(fleets, self.prices, self.paid), *self.notes)
