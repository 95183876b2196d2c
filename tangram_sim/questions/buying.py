"""Fields that `what-if` and `purchase` share: money, the search over candidates, and fleets that serve."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tangram_sim.errors import BadInputError
from tangram_sim.fields import LIMITS, SEARCH, SOFTWARE, described, leaves, option, part
from tangram_sim.planners.budget import EFFORTS
from tangram_sim.questions.power import PowerOptions
from tangram_sim.questions.requests import CountedRequests, PlannedRequests, slo_option
from tangram_sim.questions.service_goal import GoalOptions, scenario_option
from tangram_sim.questions.shared_fields import OnTrainingCluster, dask_option, limit_option
from tangram_sim.units import amount_of
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.planners.deadline import Deadline
    from tangram_sim.planners.search_options import SearchOptions
    from tangram_sim.purchasing.billing import Terms
    from tangram_sim.purchasing.pricefile import Prices
    from tangram_sim.purchasing.served_day import DayTerms
    from tangram_sim.purchasing.served_fleets import ServiceDemand
    from tangram_sim.studies.sweep import Sweep

FOR_SENSITIVITY = 0.25  # of a time limit
MONEY, SERVING = "Money", "Fleets that serve"
_MONEY: dict[str, Any] = {"group": MONEY}
_SERVED: dict[str, Any] = {"group": SERVING}
FrontEntry = tuple[str, float, float]  # what is bought, its cost, tokens/s


class SearchListener(Protocol):
    """Receives progress reports of a search over candidates."""

    def report(self, done: int, total: int, what: str) -> None:
        """Receive a report: `done` of `total` steps (0: unknown); `what` is the current step, in words."""

    def say(self, line: str, front: Sequence[FrontEntry] = ()) -> None:
        """Receive the best answers so far: in words, and as (purchase, cost, tokens/s)."""


class Unheard:
    """A listener that ignores all reports."""

    def report(self, done: int, total: int, what: str) -> None:
        """Do nothing."""

    def say(self, line: str, front: Sequence[FrontEntry] = ()) -> None:
        """Do nothing."""


@described
@dataclass(frozen=True, slots=True)
class Money:
    """Money: tokens to train on, a price file, bought or rented, and whether to vary assumptions."""

    tokens: float = option(
        1e12,
        "Tokens to train on, e.g. 2T or 2e12.",
        label="Tokens to train on",
        unit="tokens",
        above=0,
        example="1e12",
        reads=amount_of,
        unset="1T",
        basic=True,
    )
    prices: Path | None = option(
        None,
        "Your prices, power, failures: a YAML file, each with day and source.",
        label="Price file",
        **_MONEY,
    )
    acquire: str = option(
        "auto",
        "buy, rent, reserved, spot, or auto: buy what has a capital price, rent the rest.",
        label="New nodes are",
        choices=("auto", "buy", "rent", "reserved", "spot"),
        **_MONEY,
    )
    fleet: str = option(
        "auto",
        "The fleet you have is owned (power alone counts), rented (on demand), or auto.",
        label="The fleet you have is",
        choices=("auto", "owned", "rented"),
        **_MONEY,
    )
    sensitivity: bool = option(
        False,
        "Also say how far each assumption moves the answer, and what flips it.",
        label="How far assumptions move it",
        **_MONEY,
    )

    @property
    def terms(self) -> "Terms":
        """Whether nodes are bought, rented or already owned."""
        from tangram_sim.purchasing.billing import Terms

        return Terms(self.acquire, self.fleet)

    def found_prices(self, hwdb: "Hwdb") -> "Prices":
        """The shipped prices, overridden by those of the price file. Raises BadInputError."""
        from tangram_sim.purchasing.pricefile import load_prices

        return load_prices(self.prices, hwdb)


@described
@dataclass(frozen=True, slots=True)
class CandidateSearch:
    """The search over candidates: effort, time limit, processes, and the cache of answers."""

    sub_islands: bool | None = option(
        None,
        "Plans may split islands: finer, and slower.",
        label="Plans may split islands",
        spelled="--sub-islands/--whole-islands",
        unset="they may; but of fleets that serve",
        group=SEARCH,
    )
    effort: str = option(
        "normal",
        "Search effort: quick, normal or exhaustive. Deterministic: the same effort finds the same plan on "
        "every machine.",
        label="Effort",
        choices=tuple(EFFORTS),
        group=SEARCH,
    )
    time_limit_s: float | None = limit_option("Seconds after which the best answer so far is shown.")
    cache: Path | None = option(
        None,
        "Folder that keeps simulated answers.",
        unset="the user's cache",
        group=SEARCH,
        on_page=False,
    )
    no_cache: bool = option(False, "Keep no answers and use none.", group=SEARCH, on_page=False)
    jobs: int = option(0, "Processes; 0: one per core (with the extra sweep).", group=LIMITS, on_page=False)
    dask: str | None = dask_option()

    @property
    def options(self) -> "SearchOptions":
        """The search options handed to the planner."""
        from tangram_sim.planners.search_options import SearchOptions

        return SearchOptions(sub_islands=self.sub_islands is not False, effort=self.effort)

    @property
    def options_of_many(self) -> "SearchOptions":
        """As `options`, for many plans that are only compared with each other: whole islands by default."""
        return replace(self.options, sub_islands=self.sub_islands is True, beside=False)

    @property
    def limit_s(self) -> float:
        """Time limit of the search in seconds; infinite by default."""
        return inf if self.time_limit_s is None else self.time_limit_s

    def sweep(self, listener: SearchListener) -> "Sweep":
        """The runner that plans all candidates, with its cache and processes.

        Raises BadInputError for fields that contradict each other or name something that does not exist.
        """
        from tangram_sim.studies.sweep import Cache, Sweep, default_folder

        if self.no_cache and self.cache is not None:
            raise BadInputError("`cache=` and `no_cache=True` contradict each other; keep one")
        cache = None if self.no_cache else Cache(self.cache or default_folder())
        return Sweep(cache, self.jobs, listener.report, dask=self.dask)


@described
@dataclass(frozen=True, slots=True)
class Served(CountedRequests):
    """Fleets that serve: the requests, and the hours of serving a day; in the other hours nodes train."""

    serve: str | None = option(
        None,
        "Judge fleets by what they serve: a trace (CSV), or a mix like 2455:510:0.3,496:18:0.7.",
        label="Judge fleets by what they serve",
        **_SERVED,
    )
    share: float | None = option(
        None,
        "Hours a day that serve; MODEL is trained by what is free, and then.",
        label="Hours a day that serve",
        unit="hours",
        least=0,
        most=24,
        example="12",
        **_SERVED,
    )
    serve_model: str | None = option(
        None, "MODEL[,MODEL] that are served.", label="Models served", unset="MODEL itself", **_SERVED
    )
    slo: str | None = slo_option()
    engine: str = option("vllm", "Engine that serves: vllm, sglang or trtllm.", group=SOFTWARE)
    serve_precision: str = option("bf16", "Number format that serves: bf16, fp8, int4, ...", group=SOFTWARE)
    utilisation: float = option(
        0.8, "How busy serving replicas may be.", unit="a share", above=0, most=1, **_SERVED
    )
    serve_scenario: tuple[str, ...] = scenario_option(_SERVED["group"])
    load_s: float = option(
        120.0,
        "Of `share=`: seconds until replicas serve in the morning.",
        unit="seconds",
        least=0,
        example="120",
        **_SERVED,
    )

    @property
    def given(self) -> bool:
        """Whether `serve` is given. Raises BadInputError if it is not, but a field that needs it is."""
        if self.serve is not None:
            return True
        for leaf in leaves(Served):
            if leaf.of(self) != leaf.default:
                raise BadInputError(
                    f"`{leaf.name}=` belongs to fleets that serve; say what with `serve=WORKLOAD`"
                )
        return False

    @property
    def days(self) -> "DayTerms | None":
        """Hours of serving per day and seconds to load a model; None: all day. Raises BadInputError."""
        from tangram_sim.purchasing.served_day import DayTerms

        return None if self.share is None else DayTerms(self.share, self.load_s)

    def demand(self, trained: str, hwdb: "Hwdb") -> "ServiceDemand":
        """Models and requests to serve; without `serve_model` the model `trained`. Raises BadInputError."""
        from tangram_sim.hwdb import load_model
        from tangram_sim.purchasing.served_fleets import ServiceDemand

        names = name_list(self.serve_model or trained)
        requests = PlannedRequests(
            workload=self.serve,
            rate=self.rate,
            requests=self.requests,
            where=self.where,
            seed=self.seed,
        )
        goal = GoalOptions(
            slo=self.slo,
            objective="goodput",
            engine=self.engine,
            precision=self.serve_precision,
            utilisation=self.utilisation,
            scenario=self.serve_scenario,
        ).goal(hwdb)
        return ServiceDemand({name: load_model(name) for name in names}, requests.made("goodput"), goal)


@dataclass(frozen=True, slots=True)
class Buying(OnTrainingCluster):
    """Base of questions about nodes added to a cluster: what they cost, train and serve."""

    money: Money = field(default=Money(), metadata=part())
    look: CandidateSearch = field(default=CandidateSearch(), metadata=part())
    served: Served = field(default=Served(), metadata=part())
    power: PowerOptions = field(default=PowerOptions(), metadata=part())

    def under_power(self, prices: "Prices", terms: "Terms", hwdb: "Hwdb") -> "tuple[Prices, Terms]":
        """(prices, terms) with the options on power applied: PUE and electricity price count in both.

        Raises BadInputError or UnknownNameError.
        """
        from tangram_sim.hwdb.prices import Figure

        limits, economics = self.power.terms(hwdb), prices.economics
        if self.power != PowerOptions() and self.served.given:
            raise BadInputError(
                "limits on power are of training alone: leave them out with `serve=`; `serve plan` and "
                "`serve what-if` take them"
            )
        for name in ("pue", "usd_per_kwh"):
            stated, known = getattr(self.power, name), getattr(economics, name)
            if stated is not None:
                economics = replace(economics, **{name: Figure(stated, f"`{name}=`")})
            elif known is not None and limits is not None:
                limits = replace(limits, **{name: known.value})
        return replace(prices, economics=economics), replace(terms, power=limits)


def before_sensitivity(deadline: "Deadline") -> "Deadline":
    """The part of the `deadline` for planning, with a share kept back for the sensitivity analysis."""
    return deadline.share(deadline.left_s() * (1.0 - FOR_SENSITIVITY))


def unused_prices(prices: "Prices", names: set[str]) -> tuple[str, ...]:
    """A note on nodes of a price file that are not in `names`: perhaps misspelt. () if there are none."""
    unused = [name for name in prices.named if name not in names]
    return (f"the price file also speaks of {', '.join(unused)}: not in this question",) if unused else ()
