"""The JSON of `what-if --share` and `purchase --share`, for fleets that serve and train each day."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from tangram_sim.errors import InfeasibleError
from tangram_sim.purchasing.days import ChangeOver
from tangram_sim.purchasing.documents import MixesDocument
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.purchasing.served_candidates import Tell, judged_mixes
from tangram_sim.purchasing.served_day import ServedDay
from tangram_sim.purchasing.sharing import DayPlanner, SharedWork, days_of
from tangram_sim.studies.candidate_loop import pareto
from tangram_sim.studies.documents import Document, VersionedAnswer


class TrainedAndServedDocument(Document):
    """Tokens trained in a day, and what serving and training cost together."""

    trained_tokens_per_day: float
    usd_per_month: float | None = Field(None, description="null: a price is not stated")
    usd_per_million_trained: float | None = Field(None, description="less what serving is charged")


class ServedDayDocument(Document):
    """One fleet that serves some hours of a day and trains."""

    name: str
    reason: str = Field("", description="why it has no such day; empty: it has")
    most_rps: float | None = Field(None, description="what all its nodes serve at most, where too little")
    serving_nodes: dict[str, int] = Field({}, description="by member of the fleet")
    serving_gpus: dict[str, int] = Field({}, description="that replicas are on, by kind")
    served_rps: float = Field(0.0, description="requests a second while it serves, as replayed")
    good_share: float = 0.0
    served_tokens_per_day: float = Field(0.0, description="output tokens of good requests")
    usd_per_million_served: float | None = None
    shared: TrainedAndServedDocument | None = Field(
        None, description="nodes that serve by day train by night"
    )
    apart: TrainedAndServedDocument | None = Field(None, description="the same nodes as two separate fleets")
    gain: float | None = Field(None, description="tokens trained shared over apart, less one")
    changes_over: bool = Field(False, description="false: changing over would lose more than it gains")
    lost_tokens_per_day: float = Field(0.0, description="to changing over")
    change: ChangeOver | None = None


class SharedDocument(VersionedAnswer):
    """Training and serving on the same nodes, and the fleet whose trained tokens cost least."""

    trained: str = Field(description="the model that is trained")
    served: list[str] = Field(description="models that are served")
    hours: float = Field(description="of serving a day")
    cheapest_trained: str | None = Field(None, description="the fleet whose trained tokens cost least")


class SharedPurchaseDocument(MixesDocument, SharedDocument):
    """`purchase --share --json`: Pareto front of the days, by rising USD per month."""

    front: list[ServedDayDocument]
    days: list[ServedDayDocument] = Field(description="all mixes looked at")


class SharedWhatIfDocument(SharedDocument):
    """`what-if --share --json`; the fleet as it stands comes first."""

    candidates: list[ServedDayDocument]
    notes: list[str] = Field([])


def day_document(day: ServedDay) -> ServedDayDocument:
    """One day as a document."""
    if day.reason:
        return ServedDayDocument(name=day.name, reason=day.reason, most_rps=day.most_rps)
    trained, replay = day.trained, day.service.replay if day.service else None
    return ServedDayDocument(
        name=day.name,
        serving_nodes=dict(day.serving_nodes),
        serving_gpus={gpu: n for gpu, n in day.service.gpus_used.items() if n} if day.service else {},
        served_rps=replay.played if replay else 0.0,
        good_share=replay.good_share if replay else 0.0,
        served_tokens_per_day=day.served_tokens,
        usd_per_million_served=day.usd_per_million_served,
        shared=TrainedAndServedDocument(
            trained_tokens_per_day=trained.shared,
            usd_per_month=day.usd_per_month,
            usd_per_million_trained=day.usd_per_million_trained,
        ),
        apart=TrainedAndServedDocument(
            trained_tokens_per_day=trained.apart,
            usd_per_month=day.apart_usd_per_month,
            usd_per_million_trained=day.apart_usd_per_million_trained,
        ),
        gain=trained.shared / trained.apart - 1.0 if trained.apart else None,
        changes_over=trained.changes,
        lost_tokens_per_day=trained.lost,
        change=day.change,
    )


def cheapest_trained(days: Sequence[ServedDay]) -> str | None:
    """The name of the fleet that trains a token for the least; None if no cost is known."""
    priced = [(day.usd_per_million_trained, day.name) for day in days]
    return min(((usd, name) for usd, name in priced if usd is not None), default=(0.0, None))[1]


def front_of_days(days: Sequence[ServedDay]) -> list[ServedDay]:
    """Pareto front of the days (tokens trained against USD per month), by rising USD."""
    billed = [day for day in days if not day.reason and day.usd_per_month is not None]
    billed.sort(key=lambda day: day.name)
    return pareto(billed, lambda day: day.trained.shared, lambda day: day.usd_per_month)


def purchase_shared(
    shared: SharedWork, mixes: Sequence[tuple[str, Fleet]], tell: Tell
) -> SharedPurchaseDocument:
    """Plan the days of all mixes that may be worth their price.

    A mix is skipped if the upper bound on its training for a whole day does not exceed what a cheaper mix
    trains. Raises InfeasibleError if no mix can serve the given rate.
    """
    planner = DayPlanner(shared, [fleet for _, fleet in mixes])
    planned, counts = judged_mixes(mixes, planner, shared.deadline, tell)
    days = [replace(item.found, name=item.name) for item in planned if item.found is not None]
    front = front_of_days(days)
    if not front:
        reasons = [day.reason for day in reversed(days) if day.reason] or [shared.deadline.why()]
        raise InfeasibleError(f"no mix serves the requests: {reasons[0]}")
    return SharedPurchaseDocument(
        **_shared_fields(shared, front),
        front=[day_document(day) for day in front],
        days=[day_document(day) for day in days],
        **counts,
    )


def what_if_shared(shared: SharedWork, fleets: Sequence[tuple[str, Fleet]]) -> SharedWhatIfDocument:
    """The days of the candidates of a what-if."""
    days = days_of(shared, fleets)
    return SharedWhatIfDocument(
        **_shared_fields(shared, days), candidates=[day_document(day) for day in days]
    )


def _shared_fields(shared: SharedWork, days: Sequence[ServedDay]) -> dict[str, Any]:
    """The fields of a SharedDocument."""
    return {
        "trained": shared.work.model.name,
        "served": list(shared.demand.models),
        "hours": shared.terms.hours,
        "cheapest_trained": cheapest_trained(days),
    }
