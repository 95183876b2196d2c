"""Goal of a service: objective, latency, budget, engine, and scenarios that it must tolerate."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.fields import SOFTWARE, about, described, option, part
from tangram_sim.questions.power import carbon_option, pue_option
from tangram_sim.questions.question import Question
from tangram_sim.questions.requests import PlannedRequests, slo_of, slo_option
from tangram_sim.questions.shared_fields import Hardware, limit_option, models
from tangram_sim.units import read_watts

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.serving.deployment import Speculation
    from tangram_sim.studies.serving_question import PlanScenario, ServiceGoal

_ABOUT: dict[str, Any] = {"group": "Goal"}
_BASIC: dict[str, Any] = {**_ABOUT, "basic": True}


def scenario_option(group: str) -> Any:
    """The option for scenarios that a service must tolerate."""
    return option(
        (),
        "Of a model, what the plan must also bear: lost=node (any one node fails: N+1), lost=L40S (+ between "
        "several), coverage=0.8 of the requests then, rate=1.5 times the requests, price=H100:2 times the "
        "price; commas between. May be given several times.",
        group=group,
    )


def _draft_counts(text: str) -> tuple[int, ...]:
    """Numbers of tokens, 0 to 64, with commas between. Raises ValueError."""
    found = tuple(int(word) for word in text.split(",") if word)
    if not all(0 <= count <= 64 for count in found):
        raise ValueError("give numbers of tokens up to 64, like 2,4")
    return found


@described
@dataclass(frozen=True, slots=True)
class DraftOptions:
    """Speculative tokens that replicas may check, and the chance that one is accepted."""

    drafts: tuple[int, ...] = option(
        (),
        "Speculative tokens checked in one iteration, like 2,4: each number is tried beside none.",
        label="Speculative tokens to try",
        reads=_draft_counts,
        unset="none",
        group=SOFTWARE,
    )
    acceptance: float | None = option(
        None,
        "Chance that a draft is accepted, as you measured it.",
        label="Chance that one is accepted",
        unit="a share",
        least=0,
        most=1,
        group=SOFTWARE,
    )

    def tried(self) -> "tuple[Speculation, ...]":
        """What is tried beside no drafts. Raises BadInputError where one of the two is missing."""
        from tangram_sim.serving.deployment import Speculation

        if (self.acceptance is None) == bool(self.drafts):
            given, lacking = ("drafts", "acceptance=0.7") if self.drafts else ("acceptance", "drafts=2,4")
            raise BadInputError(f"`{given}=` of speculative tokens: give `{lacking}`, too")
        return tuple(Speculation(count, self.acceptance or 0.0) for count in self.drafts if count)


@described
@dataclass(frozen=True, slots=True)
class GoalOptions:
    """Objective, latency limits, budget, engine and number format to plan a service for."""

    budget: float | None = option(
        None,
        "Of a model: USD an hour at most.",
        label="USD an hour at most",
        unit="USD/h",
        above=0,
        example="40",
        **_BASIC,
    )
    slo: str | None = slo_option()
    objective: str = option(
        "auto",
        "Of a model: makespan (of a batch), cost (of the rate) or goodput; auto: cost where a rate is given.",
        label="Objective",
        choices=("auto", "makespan", "cost", "goodput"),
        **_BASIC,
    )
    engine: str = option("vllm", "Of a model: vllm, sglang or trtllm.", group=SOFTWARE)
    precision: str = option("bf16", "Of a model: bf16, fp8, int4, ...", label="Number format", group=SOFTWARE)
    utilisation: float = option(
        0.8,
        "Of a model at least cost: how busy replicas may be.",
        label="How busy replicas may be",
        unit="a share",
        above=0,
        most=1,
        **_ABOUT,
    )
    scenario: tuple[str, ...] = scenario_option(_ABOUT["group"])
    link_gb_per_s: float | None = option(
        None,
        "Of a model at a rate: replicas may also prefill or decode alone, with KV caches sent between them "
        "at so many GB/s in all.",
        unit="GB/s",
        above=0,
        example="25",
        **_ABOUT,
    )

    speculation: DraftOptions = field(default=DraftOptions(), metadata=part())
    power_cap_w: float = option(
        0.0,
        "Of a model: most watts of each GPU, like 400W; lowers its clock.",
        label="Power cap of each GPU",
        spelled="--power-cap",
        reads=read_watts,
        unit="watts",
        least=0,
        unset="the board's own limit",
        group="Energy",
    )
    pue: float = pue_option("Of a model: power usage effectiveness of the site.")
    carbon: float = carbon_option("Of a model: carbon intensity of the power, grams of CO2 equivalent a kWh.")

    def settled(self, rate: float | None) -> str:
        """The objective; `auto` is `cost` if a rate of requests is given, else `makespan`."""
        return self.objective if self.objective != "auto" else "makespan" if rate is None else "cost"

    def goal(self, hwdb: "Hwdb", rate: float | None = None) -> "ServiceGoal":
        """The goal on a hardware database. Raises BadInputError or UnknownNameError for bad values."""
        from tangram_sim.studies.serving_question import EnergyTerms, ServiceGoal

        return ServiceGoal(
            objective=self.settled(rate),
            budget_usd_per_hour=self.budget,
            slo=slo_of(self.slo),
            engine=self.engine,
            precision=self.precision,
            utilisation=self.utilisation,
            scenarios=tuple(each.on(hwdb) for each in scenarios_of(self.scenario)),
            link_gb_per_s=self.link_gb_per_s,
            speculations=self.speculation.tried(),
            energy=EnergyTerms(self.power_cap_w, self.pue, self.carbon),
        )


@dataclass(frozen=True, slots=True)
class OfService(Question):
    """Base of questions about a service of models for given requests."""

    model: str = field(
        metadata=about(
            "Shipped names (`tangram models list`) or files.", positional="MODEL[,MODEL]", suggested=models
        )
    )
    requests: PlannedRequests = field(default=PlannedRequests(), metadata=part())
    time_limit_s: float | None = limit_option(
        "Seconds to prove the plan best; then the best so far.", "3.5 CPU-s, large: 18"
    )
    hardware: Hardware = field(default=Hardware(), metadata=part())


_KEYS = ("lost", "coverage", "rate", "price")
_EXAMPLE = "give it like lost=node or lost=L40S,coverage=0.8 or rate=1.5 or price=H100:2"


def scenarios_of(texts: Sequence[str]) -> "tuple[PlanScenario, ...]":
    """Scenarios, read from texts such as `lost=L40S,coverage=0.8`. Raises BadInputError, UnknownNameError."""
    return tuple(_scenario(text) for text in texts)


def _scenario(text: str) -> "PlanScenario":
    from tangram_sim.studies.serving_question import PlanScenario

    lost: list[str] = []
    numbers = {"coverage": 1.0, "rate": 1.0}
    prices: list[tuple[str, float]] = []
    for piece in text.split(","):
        key, sign, value = (word.strip() for word in piece.partition("="))
        if key not in _KEYS:
            raise unknown_name(f"part of `scenario={text}`", key, _KEYS, f"G{_EXAMPLE[1:]}.")
        if not sign or not value:
            raise BadInputError(f"`scenario={text}`: {key} has no value; {_EXAMPLE}")
        if key == "lost":
            lost += [name.strip() for name in value.split("+")]
        elif key == "price":
            kind, _, factor = value.rpartition(":")
            if not kind:
                raise BadInputError(f"`scenario={text}`: whose price, and times what? {_EXAMPLE}")
            prices.append((kind, _above_zero(text, key, factor)))
        else:
            numbers[key] = _above_zero(text, key, value)
    if numbers["coverage"] > 1:
        raise BadInputError(f"`scenario={text}`: coverage is a share of the requests, at most 1")
    if not lost and not prices and numbers == {"coverage": 1.0, "rate": 1.0}:
        raise BadInputError(f"`scenario={text}`: nothing happens in it; {_EXAMPLE}")
    return PlanScenario(text, tuple(lost), numbers["coverage"], numbers["rate"], tuple(prices))


def _above_zero(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number <= 1000:
        raise BadInputError(
            f"`scenario={text}`: {key} {value!r} given; a number above 0, 1000 at most, is wanted"
        )
    return number
