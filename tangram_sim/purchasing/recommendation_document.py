"""The JSON of a recommendation, and of recommendation.json."""

import math

from pydantic import Field

from tangram_sim.hwdb import Hwdb
from tangram_sim.purchasing.clouds import provider_of
from tangram_sim.purchasing.documents import (
    BilledDocument,
    CandidateDocument,
    candidate_document,
)
from tangram_sim.purchasing.documents import sensitivity_document as written
from tangram_sim.purchasing.goal import slow_end_days, spent_usd
from tangram_sim.purchasing.notes import break_evens
from tangram_sim.purchasing.recommend import Recommendation
from tangram_sim.purchasing.rows import WhatIfRow
from tangram_sim.purchasing.sensitivity import Sensitivity
from tangram_sim.purchasing.whatif import assumed


class RecommendedDocument(CandidateDocument):
    """A mix of nodes for the goal."""

    nodes: dict[str, int] = Field({}, description="what is bought or rented, by node")
    providers: list[str] = Field([], description="whose nodes these are")
    reaches_the_goal: bool = False
    days_at_slow_end: float | None = Field(None, description="of the 90 % interval")
    spent_usd: float | None = Field(
        None, description="purchases, rents and hosting until the tokens are trained"
    )
    usd_per_million_tokens_low: float | None = Field(None, description="90 % interval")
    usd_per_million_tokens_high: float | None = None


class RecommendationDocument(BilledDocument):
    """`purchase --json` with a goal."""

    model: str
    tokens: float
    finish_within_days: float | None
    budget_usd: float | None
    reached: bool = Field(description="whether the recommended mix reaches the goal")
    recommended: RecommendedDocument
    runner_ups: list[RecommendedDocument]
    why: list[str]
    changes: list[str] = Field(description="what would change the recommendation")
    mixes_planned: int
    mixes_left_out: int
    mixes_waiting: int = Field(description="not looked at for lack of time")
    least_usd: float | None = Field(
        description="no mix that was not planned can cost less; null: none can be"
    )


def recommendation_document(
    study: Recommendation, found: Sensitivity | None, notes: tuple[str, ...], hwdb: Hwdb
) -> RecommendationDocument:
    """A recommendation as a document; the notes given are put before the study's own."""
    goal = study.goal
    least = study.searched.least_usd
    return RecommendationDocument(
        model=study.work.model.name,
        tokens=goal.tokens,
        finish_within_days=goal.days if math.isfinite(goal.days) else None,
        budget_usd=goal.budget_usd if math.isfinite(goal.budget_usd) else None,
        reached=study.reached,
        recommended=_row(study, study.best, hwdb),
        runner_ups=[_row(study, row, hwdb) for row in study.runner_ups],
        why=study.why(),
        changes=study.changes(),
        mixes_planned=study.searched.planned,
        mixes_left_out=study.searched.left_out,
        mixes_waiting=study.searched.waiting,
        least_usd=least if math.isfinite(least) else None,
        sensitivity=written(found) if found else None,
        break_even=break_evens((study.best, *study.runner_ups), study.billing.prices),
        assumptions=list(assumed(study.billing.prices, (study.best, *study.runner_ups))),
        notes=[*notes, *study.notes],
    )


def _row(study: Recommendation, row: WhatIfRow, hwdb: Hwdb) -> RecommendedDocument:
    bought = [member for member in row.fleet.members if member.bought]
    low, high = row.usd_per_million_interval if row.bill.known else (None, None)
    providers = dict.fromkeys(provider_of(member.name, hwdb) for member in bought)
    return RecommendedDocument(
        **dict(candidate_document(row)),
        nodes={member.name: member.nodes for member in bought},
        providers=[name for name in providers if name],
        reaches_the_goal=study.reaches(row),
        days_at_slow_end=slow_end_days(row),
        spent_usd=spent_usd(row, study.goal),
        usd_per_million_tokens_low=low,
        usd_per_million_tokens_high=high,
    )
