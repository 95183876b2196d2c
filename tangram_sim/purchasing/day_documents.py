"""The JSON of `what-if --share` and `purchase --share`, for fleets that serve and train each day."""

from collections.abc import Sequence

from pydantic import Field

from tangram_sim.purchasing.days import ChangeOver
from tangram_sim.purchasing.served_day import DayTerms, ServedDay
from tangram_sim.purchasing.shared_purchase import SharedPurchase
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


class SharedPurchaseDocument(VersionedAnswer):
    """`purchase --share --json`: days that no other mix beats, by rising USD a month."""

    trained: str = Field(description="the model that is trained")
    served: list[str] = Field(description="models that are served")
    hours: float = Field(description="of serving a day")
    front: list[ServedDayDocument]
    cheapest_trained: str | None = Field(None, description="the mix whose trained tokens cost least")
    days: list[ServedDayDocument] = Field(description="all mixes looked at")
    mixes: int = Field(description="within the limits")
    bounded_away: int
    not_looked_at: int = Field(description="for lack of time")
    notes: list[str]


class SharedWhatIfDocument(VersionedAnswer):
    """`what-if --share --json`; the fleet as it stands comes first."""

    trained: str = Field(description="the model that is trained")
    served: list[str] = Field(description="models that are served")
    hours: float = Field(description="of serving a day")
    candidates: list[ServedDayDocument]
    cheapest_trained: str | None = Field(None, description="the candidate whose trained tokens cost least")
    notes: list[str]


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


def shared_purchase_document(
    found: SharedPurchase, trained: str, served: Sequence[str], terms: DayTerms, notes: Sequence[str]
) -> SharedPurchaseDocument:
    """A purchase as a document; `notes` come before its own."""
    return SharedPurchaseDocument(
        trained=trained,
        served=list(served),
        hours=terms.hours,
        front=[day_document(served_day) for served_day in found.front],
        cheapest_trained=cheapest_trained(found.front),
        days=[day_document(day) for day in found.days],
        mixes=found.mixes,
        bounded_away=found.bounded_away,
        not_looked_at=found.waiting,
        notes=[*notes, *found.notes],
    )


def shared_what_if_document(
    days: Sequence[ServedDay], trained: str, served: Sequence[str], terms: DayTerms, notes: Sequence[str]
) -> SharedWhatIfDocument:
    """Days of the candidates of a what-if as a document."""
    return SharedWhatIfDocument(
        trained=trained,
        served=list(served),
        hours=terms.hours,
        candidates=[day_document(day) for day in days],
        cheapest_trained=cheapest_trained(days),
        notes=list(notes),
    )
