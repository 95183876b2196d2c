"""Answers of `purchase` with the studies behind them, and the market they are based on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tangram_sim.fields import HasDocument

if TYPE_CHECKING:
    from tangram_sim.purchasing.billing import Terms
    from tangram_sim.purchasing.documents import PurchaseDocument
    from tangram_sim.purchasing.fleets import Fleet, Purchase
    from tangram_sim.purchasing.pricefile import Prices
    from tangram_sim.purchasing.purchase import PurchaseStudy
    from tangram_sim.purchasing.recommend import Recommendation
    from tangram_sim.purchasing.recommendation_document import RecommendationDocument
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.studies.sweep import Sweep


@dataclass(frozen=True)
class PurchaseAnswer(HasDocument):
    """The front of throughput against cost: the document, the study behind it, and its runner."""

    document: "PurchaseDocument"
    fleet: str  # name of what stands
    study: "PurchaseStudy"
    sensitivity: "Sensitivity | None"
    notes: tuple[str, ...]
    sweep: "Sweep"


@dataclass(frozen=True)
class RecommendedAnswer(HasDocument):
    """One recommendation for a goal: the document, the study behind it, and notes beside it."""

    document: "RecommendationDocument"
    study: "Recommendation"
    sensitivity: "Sensitivity | None"
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Market:
    """Nodes owned, nodes on offer with prices, and notes on them."""

    standing: "Fleet"
    offers: "Sequence[tuple[Purchase, int]]"
    prices: "Prices"
    terms: "Terms"
    notes: tuple[str, ...]
    unused: tuple[str, ...]
