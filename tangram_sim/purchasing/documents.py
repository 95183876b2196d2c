"""The JSON of `what-if` and `purchase`, and of front.json: pydantic models and how they are filled."""

from pathlib import Path

from pydantic import Field

from tangram_sim.file_parts import FiniteOrNull
from tangram_sim.purchasing.notes import BreakEven, break_evens, price_file
from tangram_sim.purchasing.purchase import PurchaseStudy
from tangram_sim.purchasing.rows import Use, WhatIfRow
from tangram_sim.purchasing.sensitivity import Sensitivity
from tangram_sim.purchasing.whatif import WhatIf
from tangram_sim.studies.documents import AnswerDocument, Document
from tangram_sim.studies.power_documents import PowerDocument


class ChargeDocument(Document):
    """One line of a bill."""

    of: str
    kind: str = Field(description="capital, power, hosting, rent, reserved or spot")
    usd_per_hour: float = Field(description="of training")
    basis: str = Field(description="the figures behind it, with day and source")


class CandidateDocument(Document):
    """One candidate. Without a plan only name, feasible and reason are there."""

    name: str
    feasible: bool
    reason: str | None = None
    cut_short: bool = Field(False, description="time was over before the search was")
    tokens_per_s: float | None = Field(None, description="as simulated, times goodput where that is known")
    tokens_per_s_low: float | None = Field(None, description="90 % interval")
    tokens_per_s_high: float | None = None
    goodput: float | None = None
    checkpoint_interval_s: FiniteOrNull = None
    step_s: float | None = None
    mfu: float | None = None
    days_to_train: FiniteOrNull = None
    power_w: float | None = Field(
        None, description="mean of all GPUs and hosts, idle ones too, without PUE; as in `plan`"
    )
    site_kw: float | None = Field(None, description="the same with PUE where it is stated")
    mwh: FiniteOrNull = Field(None, description="electricity of the run, with PUE where it is stated")
    outlay_usd: float | None = None
    usd_per_hour: float | None = None
    usd_per_hour_at_least: float | None = Field(None, description="what is known of it")
    usd_to_train: FiniteOrNull = None
    usd_per_million_tokens: FiniteOrNull = None
    marginal_tokens_per_usd: FiniteOrNull = None
    missing: list[str] = Field([], description="figures without which the bill is incomplete")
    uses: list[Use] = Field([], description="member by member")
    charges: list[ChargeDocument] = Field([], description="of the bill")
    power: PowerDocument | None = Field(None, description="under limits on power; null: none was asked")


class SwingDocument(Document):
    """How far one assumption moves the score."""

    input: str
    base: float
    low: float
    high: float
    at_low: float
    at_high: float
    source: str


class FlipDocument(Document):
    """The value of one assumption at which the second best candidate becomes the best."""

    input: str
    base: float
    threshold: float


class SensitivityDocument(Document):
    """How assumptions change the ranking of the candidates that buy something, if there are two or more."""

    score: str = Field(description="usd_per_million_tokens or tokens_per_s")
    best: str
    second: str
    value: float
    tornado: list[SwingDocument]
    flips: list[FlipDocument]
    steady: list[str] = Field(description="inputs that flip nothing as far as was looked")
    unpriced: list[str] = Field([], description="candidates not ranked: their bills are incomplete")
    unseen: list[str] = Field([], description="inputs not looked at for lack of time")


class BilledDocument(AnswerDocument):
    """Sensitivity, break-even and assumptions behind bills of candidates."""

    sensitivity: SensitivityDocument | None
    break_even: list[BreakEven] = Field([], description="of nodes with capital price and rent")
    assumptions: list[str]
    notes: list[str]


class WhatIfDocument(BilledDocument):
    """`what-if --json`; the fleet as it stands comes first."""

    model: str
    tokens: float
    candidates: list[CandidateDocument]
    to_complete: str = Field("", description="YAML for --prices with the figures that are missing")


class WorkDocument(Document):
    """One of the models of a purchase."""

    name: str
    weight: float = Field(description="share of the tokens")


class PointDocument(Document):
    """One mix of nodes on the Pareto front of cost and throughput."""

    mix: dict[str, int]
    cost: float = Field(description="of several models in one run that trains them all by their weights")
    tokens_per_s: float
    bound_tokens_per_s: float = Field(description="no plan is faster")
    gap: FiniteOrNull = Field(description="bound over found, less one")
    planned_in_full: bool = Field(True, description="as `plan` plans it; else time was over before")
    proven_to_next: bool = Field(True, description="no mix that costs less than the next point is as good")
    plans: list[str] = Field(description="files in plans/ beside front.json")
    rows: list[CandidateDocument]


class MixDocument(Document):
    """One mix that was simulated."""

    mix: list[int] = Field(description="nodes of each offer, in order of the catalogue")
    name: str
    cost: float
    tokens_per_s: float
    bound_tokens_per_s: float
    step_s: list[float]
    reason: str
    cut_short: bool = Field(False, description="time was over before a search was")


class MixesDocument(Document):
    """Counts of the mixes of a catalogue: within the limits, ruled out by bounds, not reached in time."""

    mixes: int = Field(description="within the limits")
    bounded_away: int
    not_looked_at: int = Field(0, description="for lack of time; each may reach the front")
    notes: list[str] = Field([])


class PurchaseDocument(MixesDocument, BilledDocument):
    """`purchase --json` and front.json."""

    models: list[WorkDocument]
    cost: str = Field(description="usd_per_hour or outlay_usd")
    front: list[PointDocument]
    simulated: list[MixDocument]


def candidate_document(row: WhatIfRow) -> CandidateDocument:
    """One row as a document; its plan is written to a separate file."""
    if row.document is None:
        return CandidateDocument(name=row.name, feasible=False, reason=row.reason, cut_short=row.cut_short)
    good = row.goodput
    return CandidateDocument.from_objects(
        row,
        row.throughput,
        row.bill,
        feasible=True,
        reason=None,
        tokens_per_s_low=row.throughput.low,
        tokens_per_s_high=row.throughput.high,
        goodput=good.fraction if good else None,
        checkpoint_interval_s=good.interval_s if good else None,
        step_s=row.document.step_s,
        mfu=row.document.mfu,
        usd_per_hour=row.bill.usd_per_hour if row.bill.known else None,
        usd_per_hour_at_least=row.bill.usd_per_hour,
        missing=list(row.bill.missing),
        charges=[ChargeDocument.from_objects(charge, of=charge.member) for charge in row.bill.charges],
        power=row.document.power,
    )


def sensitivity_document(found: Sensitivity) -> SensitivityDocument:
    """A sensitivity as a document."""
    return SensitivityDocument.from_objects(
        found,
        tornado=[
            SwingDocument.from_objects(swing, swing.input, input=swing.input.name) for swing in found.tornado
        ],
        flips=[FlipDocument.from_objects(flip, flip.input, input=flip.input.name) for flip in found.flips],
    )


def what_if_document(study: WhatIf, found: Sensitivity | None, notes: tuple[str, ...]) -> WhatIfDocument:
    """A what-if as a document; the notes given are put before the study's own."""
    missing = dict.fromkeys(figure for row in study.rows for figure in row.bill.missing)
    return WhatIfDocument(
        model=study.model.name,
        tokens=study.billing.tokens,
        candidates=[candidate_document(row) for row in study.rows],
        sensitivity=sensitivity_document(found) if found else None,
        break_even=break_evens(study.rows, study.billing.prices),
        to_complete=price_file(missing),
        assumptions=list(study.assumptions),
        notes=[*notes, *study.notes],
    )


def purchase_document(
    study: PurchaseStudy, found: Sensitivity | None, notes: tuple[str, ...], *, cost: str
) -> PurchaseDocument:
    """A purchase study as a document; the notes given are put before the study's own."""
    front = study.front
    rows = [row for point in study.points for row in point.rows]
    return PurchaseDocument(
        models=[WorkDocument(name=work.model.name, weight=work.weight) for work in study.works],
        cost=cost,
        mixes=front.mixes,
        bounded_away=front.left_out,
        not_looked_at=front.waiting,
        front=[
            PointDocument.from_objects(
                point.simulated,
                mix={
                    offer.name: count for offer, count in zip(study.offers, point.simulated.mix, strict=True)
                },
                planned_in_full=not point.simulated.cut_short,
                proven_to_next=front.is_proven(at),
                plans=[str(path.name) for path, _ in point.plan_files(Path())],
                rows=[candidate_document(row) for row in point.rows],
            )
            for at, point in enumerate(study.points)
        ],
        simulated=[
            MixDocument.from_objects(simulated, step_s=[document.step_s for document in simulated.documents])
            for simulated in front.simulated
        ],
        sensitivity=sensitivity_document(found) if found else None,
        break_even=break_evens(rows, study.billing.prices),
        assumptions=list(study.assumptions),
        notes=[*notes, *study.notes],
    )
