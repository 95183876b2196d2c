"""Replay a history of availability under several policies, with an upper bound on all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from tangram_sim.availability import Availability
from tangram_sim.errors import BadInputError, InfeasibleError, unknown_name
from tangram_sim.reliability.spot.engine import Outcome, Policy, replay
from tangram_sim.reliability.spot.lookahead import Hold, PerfectForecast, RecentForecast
from tangram_sim.reliability.spot.policies import (
    Free,
    Redundancy,
    Replan,
    Reroute,
    Restart,
    Shrink,
    Templates,
    Wait,
)
from tangram_sim.reliability.spot.policy_common import expected_gap, perfect_gap
from tangram_sim.reliability.spot.speeds import LayoutTable, Speeds
from tangram_sim.reliability.spot.transitions import Transitions, free_transitions
from tangram_sim.studies.documents import AnswerDocument, Document


class SpotPolicyDocument(Document):
    """Result of one policy on the history of availability."""

    samples: float = Field(description="sequences trained and kept")
    tokens: float | None = None
    useful_share: float = Field(description="of wall time, at the speed of the best layout of each fleet")
    of_upper_bound: float
    accounts: dict[str, float] = Field(description="seconds; they sum to duration_s")
    changes: int = Field(description="times it went over to another layout")
    plans: list[str] = Field(description="layouts it ran, in order of first use")
    usd: float | None = None
    usd_per_million: float | None = Field(None, description="tokens, or samples where tokens are not known")
    interval: list[float] = Field(description="90 %, of tokens, or samples; errors are shared by policies")


class ReplayDocument(AnswerDocument):
    """`train replay --json`."""

    trace: str
    duration_s: float
    events: int
    losses: int
    mean_nodes: float
    policies: dict[str, SpotPolicyDocument] = Field(description="best first")
    left_out: dict[str, str] = Field(description="policies that the speeds given say nothing about, and why")
    upper_bound: float = Field(description="tokens, or samples: changes cost nothing and lose nothing")
    upper_bound_short: float | None = Field(
        None,
        description="where a plan that runs short of nodes did better than every whole layout: what such "
        "plans cannot beat, either",
    )
    best: str
    notes: list[str] = Field([])


@dataclass(frozen=True)
class ReplayQuestion:
    """Inputs of a replay: history of nodes, speeds of layouts, costs of transitions, policy settings."""

    availability: Availability
    speeds: Speeds
    transitions: Transitions
    join: str | float = "at-once"
    forecast: str = "recent"
    intervals: int = 12
    prices: Mapping[str, float] | None = None
    tokens_per_sample: float = 0.0
    spread: tuple[float, float] = (1.0, 1.0)  # of speeds: 90 % of the truth over the prediction


def _reroute_reason(question: ReplayQuestion) -> str:
    fleet = _first_fleet(question)
    plan = question.speeds.best(fleet)
    if plan is not None and question.speeds.rerouted(plan, [0] * plan.stages) <= 0:
        return "the speeds given do not say what a stage is"
    return ""


def _shrink_reason(question: ReplayQuestion) -> str:
    fleet = _first_fleet(question)
    plan = question.speeds.best(fleet)
    if plan is not None and question.speeds.resized(plan, fleet) is None:
        return "the speeds given do not say what a replica is"
    return ""


def _redundancy_reason(question: ReplayQuestion) -> str:
    counts = max((count for _, count in question.availability.counts()), default=0)
    kinds = question.availability.kinds
    if len(kinds) > 1 or question.speeds.redundant(((kinds[0], counts),)) is None:
        return "the speeds given have no layout that holds every stage twice"
    return ""


def _hold_reason(question: ReplayQuestion) -> str:
    if len(question.availability.kinds) > 1:
        return "its forecast is of one kind of node; this history has several"
    return ""


def _no_reason(question: ReplayQuestion) -> str:
    del question
    return ""


def _hold(question: ReplayQuestion) -> Policy:
    forecast = PerfectForecast(question.availability) if question.forecast == "perfect" else RecentForecast()
    return Hold(question.speeds, question.transitions, forecast, question.intervals)


def _replan(question: ReplayQuestion) -> Policy:
    horizon = perfect_gap if question.forecast == "perfect" else expected_gap
    return Replan(question.speeds, question.transitions, horizon)


POLICIES: dict[str, tuple[Callable[[ReplayQuestion], Policy], Callable[[ReplayQuestion], str]]] = {
    "wait": (lambda q: Wait(q.speeds, q.transitions), _no_reason),
    "restart": (lambda q: Restart(q.speeds, q.transitions), _no_reason),
    "shrink": (lambda q: Shrink(q.speeds, q.transitions), _shrink_reason),
    "reroute": (lambda q: Reroute(q.speeds, q.transitions), _reroute_reason),
    "templates": (lambda q: Templates(q.speeds, q.transitions), _no_reason),
    "redundancy": (lambda q: Redundancy(q.speeds, q.transitions), _redundancy_reason),
    "replan": (_replan, _no_reason),
    "hold": (_hold, _hold_reason),
}


def _first_fleet(question: ReplayQuestion) -> tuple[tuple[str, int], ...]:
    """A fleet of as many nodes as the largest of the history, all of its first kind."""
    most = max((count for _, count in question.availability.counts()), default=0)
    return ((question.availability.kinds[0], most),)


def policy_names(given: Sequence[str]) -> tuple[str, ...]:
    """Policies by name, without repetition; `all` stands for every one. Raises UnknownNameError."""
    for name in given:
        if name not in (*POLICIES, "all"):
            raise unknown_name("policy", name, ["all", *POLICIES])
    return tuple(POLICIES) if "all" in given else tuple(dict.fromkeys(given))


def outcomes(question: ReplayQuestion, names: Sequence[str]) -> tuple[dict[str, Outcome], dict[str, str]]:
    """(result of each policy on the history, reasons why the others cannot run)."""
    found, left_out = {}, {}
    for name in names:
        make, reason_of = POLICIES[name]
        reason = reason_of(question)
        if reason:
            left_out[name] = reason
            continue
        found[name] = replay(question.availability, make(question), question.transitions, join=question.join)
    return found, left_out


def bound(question: ReplayQuestion, short: bool = False) -> Outcome:
    """Upper bound on every policy: transitions are free and nodes work as soon as they arrive.

    `short`: also bounds policies that go on with fewer nodes than a plan needs.
    """
    return replay(question.availability, Free(question.speeds, short), free_transitions())


def replay_document(
    question: ReplayQuestion, names: Sequence[str], others: Mapping[str, ReplayQuestion] | None = None
) -> tuple[ReplayDocument, dict[str, Outcome]]:
    """(the answer of `train replay`, outcomes by policy, best first).

    `others`: the same question with less knowledge of node kinds, by name; for these the policies restart and
    replan are added if requested. Raises InfeasibleError where nothing runs on any fleet of the history.
    """
    ideal = bound(question)
    history = question.availability
    most = max((count for _, count in history.counts()), default=0)
    if ideal.samples <= 0:
        raise InfeasibleError(
            f"nothing runs on any fleet of {history.name}: the largest has {most} nodes"
            f"{' of ' + ', '.join(kind for kind in history.kinds if kind) if any(history.kinds) else ''}"
        )
    found, left_out = outcomes(question, names)
    for words, other in (others or {}).items():
        for name, outcome in outcomes(other, [n for n in names if n in ("restart", "replan")])[0].items():
            found[f"{name}, {words}"] = outcome
    passed = any(outcome.samples > ideal.samples for outcome in found.values())
    short = bound(question, short=True).samples if passed else 0.0
    usd = history.usd(question.prices or {}) if question.prices is not None or _priced(history) else None
    ordered = dict(sorted(found.items(), key=lambda item: -item[1].samples))
    scale = question.tokens_per_sample or 1.0
    documents = {name: _document(outcome, ideal, usd, scale, question) for name, outcome in ordered.items()}
    notes = []
    if question.forecast == "perfect":
        notes.append("forecasts are the history itself: what a policy could do at most")
    document = ReplayDocument(
        trace=history.name,
        duration_s=history.until_s,
        events=len(history.events),
        losses=history.losses,
        mean_nodes=history.node_seconds() / history.until_s,
        policies=documents,
        left_out=left_out,
        upper_bound=ideal.samples * scale,
        upper_bound_short=short * scale if passed else None,
        best=next(iter(documents), ""),
        notes=notes,
    )
    return document, ordered


def _priced(history: Availability) -> bool:
    return any(event.event == "price" for event in history.events)


def _document(
    outcome: Outcome, ideal: Outcome, usd: float | None, scale: float, question: ReplayQuestion
) -> SpotPolicyDocument:
    amount = outcome.samples * scale
    return SpotPolicyDocument.from_objects(
        outcome,
        tokens=amount if question.tokens_per_sample else None,
        of_upper_bound=outcome.samples / ideal.samples,
        plans=list(outcome.options),
        usd=usd,
        usd_per_million=usd / amount * 1e6 if usd is not None and amount > 0 else None,
        interval=[amount * question.spread[0], amount * question.spread[1]],
    )


def with_notice(transitions: Transitions, notice_s: float) -> Transitions:
    """Transitions under losses announced `notice_s` ahead: if a checkpoint fits, no work is lost."""
    if notice_s <= 0 or notice_s < transitions.block_s:
        return transitions
    return replace(transitions, keeps_all=True)


def with_scaled_batch(speeds: Speeds, history: Availability) -> Speeds:
    """Speeds with the batch per pipeline fixed to that of the best layout of the largest fleet.

    Raises BadInputError for tables by number of nodes, which do not define pipelines.
    """
    if not isinstance(speeds, LayoutTable):
        raise BadInputError(
            "a batch that goes with the fleet needs speeds by pipelines and stages; this table has them by "
            "nodes: keep the batch, or give a table by layout"
        )
    first = speeds.best(((history.kinds[0], max(count for _, count in history.counts())),))
    return speeds.with_batch_per_pipeline(first.samples_per_step / first.pipelines) if first else speeds
