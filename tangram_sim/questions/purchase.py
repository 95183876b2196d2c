"""The question of `tangram purchase`: how many of which nodes on offer to buy or rent."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tangram_sim.errors import BadInputError
from tangram_sim.fields import about, described, option
from tangram_sim.questions.buying import (
    MONEY,
    Buying,
    SearchListener,
    Unheard,
    before_sensitivity,
    unused_prices,
)
from tangram_sim.questions.purchase_answers import Market, PurchaseAnswer, RecommendedAnswer
from tangram_sim.questions.question import Question
from tangram_sim.questions.served_fleets import ServedAnswer, ServedSetting
from tangram_sim.questions.shared_fields import finish_within_option, models
from tangram_sim.units import usd_of
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.planners.deadline import Deadline
    from tangram_sim.purchasing.catalogue import Limits
    from tangram_sim.purchasing.documents import PurchaseDocument
    from tangram_sim.purchasing.pricefile import Preemption
    from tangram_sim.purchasing.purchase import PurchaseStudy
    from tangram_sim.purchasing.recommend import Recommendation
    from tangram_sim.purchasing.search import ModelToTrain
    from tangram_sim.purchasing.sensitivity import Sensitivity
    from tangram_sim.studies.sweep import Sweep

    Tell = Callable[[PurchaseStudy | Recommendation], None]

_OFFERS: dict[str, Any] = {"group": "Offers"}
_LIMITS: dict[str, Any] = {"group": "Limits of the purchase"}
_POSITIVE: dict[str, Any] = {**_LIMITS, "unit": "a finite number", "above": 0, "example": "10"}


def _weights(text: str) -> tuple[float, ...]:
    """Finite numbers above zero. Raises ValueError."""
    try:
        found = tuple(float(word) for word in name_list(text))
    except ValueError:
        found = ()
    if not found or not all(isfinite(each) and each > 0 for each in found):
        raise ValueError("give finite numbers above zero, one per model, e.g. 3,1")
    return found


@described
@dataclass(frozen=True, slots=True)
class PurchaseQuestion(Buying):
    """Search all mixes of a catalogue within the limits for the Pareto front of throughput against cost.

    CLUSTER `none`: you own no nodes. With it, --finish-within or --cloud, one mix is recommended. With
    --serve mixes are ranked by what they serve, with --share by what they train beside serving by day.
    """

    VERB: ClassVar[str] = "purchase"

    model: str = field(
        metadata=about(
            "A model as for `plan`; several, separated by commas, share the fleet.",
            positional="MODEL",
            suggested=models,
        )
    )
    catalogue: Path | None = option(
        None,
        "Nodes on offer and the most of each, like p5.48xlarge:4+L40Sx8:2; or YAML with offers: "
        "[{node: p5.48xlarge, most: 4}, ...].",
        label="Nodes on offer",
        basic=True,
        **_OFFERS,
    )
    finish_within: float | None = finish_within_option(
        "Time in which the tokens are to be trained, e.g. 14d, 36h, 2w: recommend one mix for it."
    )
    cloud: tuple[str, ...] = option(
        (),
        "Rent from these clouds, a kind at a time: aws, gcp, azure, oci, coreweave, lambda; all.",
        label="Clouds to rent from",
        reads=name_list,
        basic=True,
        **_OFFERS,
    )
    budget: float | None = option(
        None,
        "Most money to spend, e.g. 250k: on machines, and with a goal also on rent until it is reached.",
        label="Most USD to spend",
        unit="USD",
        reads=usd_of,
        basic=True,
        **_LIMITS,
    )
    budget_per_hour: float | None = option(
        None, "Most cost of what is new, USD/h of training.", label="Most USD an hour", **_POSITIVE
    )
    power_kw: float | None = option(
        None,
        "Most that old and new nodes may draw, hosts included, kW (times PUE if given).",
        label="Most kW of the site",
        **_POSITIVE,
    )
    max_nodes: int | None = option(None, "Most nodes to add.", label="Most nodes to add", **_POSITIVE)
    rack_units: float | None = option(
        None, "Most rack units for what is new.", label="Most rack units", **_POSITIVE
    )
    deadline: str | None = option(
        None,
        "Day by which nodes must have come, e.g. 2027-03-01.",
        label="Day by which nodes must have come",
        **_LIMITS,
    )
    order_date: str | None = option(
        None, "Day from which delivery counts.", unset="today", on_page=False, **_LIMITS
    )
    weights: tuple[float, ...] = option(
        (),
        "Share of the tokens that each of several models takes, e.g. 3,1.",
        unset="equal shares",
        reads=_weights,
        on_page=False,
        group=MONEY,
    )
    cost: str = option(
        "hourly",
        "What the front trades: hourly (USD/h of training) or outlay (USD).",
        label="Cost of the front",
        choices=("hourly", "outlay"),
        group=MONEY,
    )
    spot: float | None = option(
        None,
        "Rent on spot, where each node goes so often an hour (0.06 to 1.4 seen).",
        label="Spot: losses of a node an hour",
        unit="losses/h",
        above=0,
        example="0.2",
        **_OFFERS,
    )
    spot_return_s: float = option(
        600.0,
        "Seconds until another spot node takes a lost one's place.",
        unit="seconds",
        least=0,
        on_page=False,
        **_OFFERS,
    )
    spot_policy: str = option(
        "restart",
        "restart (wait, load the checkpoint), or shrink (go on without it).",
        choices=("restart", "shrink"),
        on_page=False,
        **_OFFERS,
    )

    def __post_init__(self) -> None:
        """Raise BadInputError for fields that are invalid or contradict each other."""
        Question.__post_init__(self)
        models = name_list(self.model)
        if self.weights and len(self.weights) != len(models):
            given = ",".join(f"{each:g}" for each in self.weights)
            raise BadInputError(
                f"`weights={given}`: give {len(models)} finite numbers above zero, one per model"
            )
        if self.spot is not None and self.money.acquire not in ("auto", "spot"):
            raise BadInputError(
                f"`spot=` rents on spot, `acquire={self.money.acquire}` does not; drop one of the two"
            )
        for name in ("deadline", "order_date"):
            _day(name, getattr(self, name))
        if self.served.given:
            if self.money.sensitivity:
                raise BadInputError("`sensitivity=True` is of training alone; leave it out with `serve=`")
            if self.cost != "hourly" or self.weights:
                raise BadInputError(
                    "`serve=`: fronts are of USD an hour or a month, of one MODEL; leave `cost=` and "
                    "`weights=` out"
                )
            if len(models) != 1:
                raise BadInputError("`serve=` takes one MODEL beside what is served; ask for each by itself")
        elif self.money.sensitivity and len(models) > 1:
            raise BadInputError("`sensitivity=True` takes one model; ask for each model by itself")

    def answer(
        self,
        *,
        listener: SearchListener | None = None,
        deadline: "Deadline | None" = None,
        sensitive: bool = False,
        tell: "Tell | None" = None,
    ) -> PurchaseAnswer | RecommendedAnswer | ServedAnswer:
        """The front of all mixes; with a goal one recommendation; with `serve` fleets that serve.

        `tell` is called with every better study. `sensitive`: vary assumptions in any case, if there is one
        model. Raises BadInputError, UnknownNameError; InfeasibleError where no mix has a plan.
        """
        from tangram_sim.planners.deadline import Deadline

        hears, timed = listener or Unheard(), deadline or Deadline(self.look.limit_s)
        hwdb = self.hardware.load()
        market = self._market(hwdb)
        if self.served.given:
            setting = ServedSetting(self, market.prices, market.terms, hwdb, timed, market.unused)
            return setting.purchase(
                market.standing, market.offers, self._limits, ordered=self._ordered, listener=hears
            )
        asked = self.money.sensitivity or (sensitive and len(self._works) == 1)
        search_until = before_sensitivity(timed) if asked else timed
        sweep = self.look.sweep(hears)
        if self.finish_within is not None or self.cloud or not market.standing.members:
            return self._recommended(market, hwdb, sweep, timed, search_until, tell)
        return self._front(market, hwdb, sweep, timed, search_until, tell)

    def _front(
        self,
        market: Market,
        hwdb: "Hwdb",
        sweep: "Sweep",
        timed: "Deadline",
        search_until: "Deadline",
        tell: "Tell | None",
    ) -> PurchaseAnswer:
        """The front of throughput against cost; from `search_until` to `timed` assumptions are varied."""
        from tangram_sim.purchasing.purchase import purchase
        from tangram_sim.purchasing.sensitivity import sensitivity

        study = purchase(
            self._works,
            market.standing,
            market.offers,
            self._limits,
            market.prices,
            ordered=self._ordered,
            tokens=self.money.tokens,
            terms=market.terms,
            wishes=self.look.options,
            hwdb=hwdb,
            sweep=sweep,
            by_outlay=self.cost == "outlay",
            deadline=search_until,
            tell=tell,
        )
        moved = None
        if search_until is not timed:
            moved = sensitivity(study.as_what_if(), hwdb, timed)
        document = self.document_of(study, moved, market.unused)
        notes = (*market.notes, *market.unused)
        return PurchaseAnswer(document, market.standing.cluster.name, study, moved, notes, sweep)

    def document_of(
        self, study: "PurchaseStudy", moved: "Sensitivity | None" = None, unused: tuple[str, ...] = ()
    ) -> "PurchaseDocument":
        """The document of a front, whole or as far as it is known."""
        from tangram_sim.purchasing.documents import purchase_document

        basis = "usd_per_hour" if self.cost == "hourly" else "outlay_usd"
        return self.with_answer(purchase_document(study, moved, unused, cost=basis))

    def _recommended(
        self,
        market: Market,
        hwdb: "Hwdb",
        sweep: "Sweep",
        timed: "Deadline",
        search_until: "Deadline",
        tell: "Tell | None",
    ) -> RecommendedAnswer:
        """One recommended mix for a goal; from `search_until` to `timed` assumptions are varied."""
        from tangram_sim.purchasing.goal import goal_of
        from tangram_sim.purchasing.recommend import recommend_mix
        from tangram_sim.purchasing.recommendation_document import recommendation_document
        from tangram_sim.purchasing.sensitivity import sensitivity

        if len(self._works) > 1:
            raise BadInputError("a goal is of one model; ask for each model by itself")
        aim, assumed = goal_of(self.money.tokens, self.finish_within, self.budget, market.prices)
        best = recommend_mix(
            self._works[0],
            market.standing,
            market.offers,
            replace(self._limits, budget_usd=inf),
            market.prices,
            aim,
            ordered=self._ordered,
            one_kind=self.catalogue is None,
            terms=market.terms,
            wishes=self.look.options,
            hwdb=hwdb,
            sweep=sweep,
            deadline=search_until,
            tell=tell,
        )
        moved = sensitivity(best.as_what_if(), hwdb, timed) if search_until is not timed else None
        notes = (*assumed, *market.notes, *market.unused)
        document = self.with_answer(recommendation_document(best, moved, notes, hwdb))
        return RecommendedAnswer(document, best, moved, notes)

    def _market(self, hwdb: "Hwdb") -> Market:
        """The owned nodes and the offers. Raises BadInputError, UnknownNameError."""
        from tangram_sim.purchasing.catalogue import load_catalogue
        from tangram_sim.purchasing.clouds import MOST_NODES, cloud_catalogue, clouds_named
        from tangram_sim.purchasing.fleets import standing_fleet

        standing, preemption = standing_fleet(self.cluster, hwdb), self._preemption
        notes: list[str] = []
        if preemption is not None and self.spot is None:
            losses = preemption.losses_per_node_hour
            notes.append(f"spot nodes are assumed to go {losses:g} times an hour each (`spot=`)")
        if (self.catalogue is None) == (not self.cloud) and (self.catalogue is not None or standing.members):
            raise BadInputError(
                "give one of `catalogue=H100x8:4+L40Sx8:2` (or a file) and `cloud=NAMES`: what is on offer"
            )
        if self.catalogue is not None:
            offers = load_catalogue(self.catalogue, hwdb)
        else:
            clouds = clouds_named(self.cloud or ("all",))
            offers, told = cloud_catalogue(clouds, hwdb, self.max_nodes or MOST_NODES)
            notes += told
        known = {member.name for member in standing.members} | {each.name for each, _ in offers}
        prices = replace(self.money.found_prices(hwdb), preemption=preemption)
        terms = self.money.terms if preemption is None else replace(self.money.terms, acquire="spot")
        prices, terms = self.under_power(prices, terms, hwdb)
        unused = unused_prices(prices, known | set(hwdb.node_names()))
        return Market(standing, offers, prices, terms, tuple(notes), unused)

    @property
    def _works(self) -> "list[ModelToTrain]":
        """The models to train, with jobs and shares of the tokens."""
        from tangram_sim.hwdb import load_model
        from tangram_sim.purchasing.search import ModelToTrain

        names = name_list(self.model)
        shares = self.weights or (1.0,) * len(names)
        return [
            ModelToTrain(load_model(name), self.trained_on(name), share)
            for name, share in zip(names, shares, strict=True)
        ]

    @property
    def _limits(self) -> "Limits":
        """Limits on the purchase; inf: no limit."""
        from tangram_sim.purchasing.catalogue import Limits

        def limit(value: float | None) -> float:
            return inf if value is None else float(value)

        return Limits(
            budget_usd=limit(self.budget),
            budget_usd_per_hour=limit(self.budget_per_hour),
            power_w=limit(self.power_kw) * 1000.0,
            nodes=limit(self.max_nodes),
            rack_units=limit(self.rack_units),
            deadline=_day("deadline", self.deadline),
        )

    @property
    def _ordered(self) -> date:
        """The day from which delivery counts."""
        return _day("order_date", self.order_date) or date.today()

    @property
    def _preemption(self) -> "Preemption | None":
        """How rented spot nodes are withdrawn and return; None if none are rented."""
        from tangram_sim.purchasing.pricefile import SPOT_LOSSES, Preemption

        losses = SPOT_LOSSES if self.spot is None and self.money.acquire == "spot" else self.spot
        return None if losses is None else Preemption(losses, self.spot_return_s, self.spot_policy)


def _day(name: str, text: str | None) -> date | None:
    """A date in ISO 8601 format; None if none is given. Raises BadInputError, naming the field."""
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise BadInputError(f"`{name}={text}`: give a day like 2027-03-01") from None
