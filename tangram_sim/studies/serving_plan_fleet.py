"""A service plan as a fleet file, which `tangram serve simulate` and `tangram serve export` read."""

from collections.abc import Sequence
from math import ceil, isfinite
from typing import Any

from tangram_sim.serving_planners.offers import PricedConfiguration
from tangram_sim.serving_planners.problem import PREFILL, WHOLE
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.studies.serving_question import ServiceQuestion


def fleet_document(
    found: ServePlanDocument, priced: Sequence[PricedConfiguration], question: ServiceQuestion
) -> dict[str, Any]:
    """The plan in the format of a fleet file, for `tangram serve simulate`."""
    known = {configuration.name: configuration for configuration in priced}
    only = {} if question.several else {"model": next(iter(question.models))}
    apart = any(known[used.configuration].role != WHOLE for used in found.replicas)
    return {
        **only,
        **({"link_gb_per_s": question.goal.link_gb_per_s} if apart else {}),
        "engine": question.goal.engine,
        "precision": question.goal.precision,
        **({"power_cap_w": question.goal.energy.power_cap_w} if question.goal.energy.power_cap_w else {}),
        "types": [
            [
                asked_type.input_tokens,
                asked_type.output_tokens,
                *([asked_type.model] if question.several else []),
            ]
            for asked_type in question.types
        ],
        "replicas": [
            {
                "name": used.configuration,
                **({"model": known[used.configuration].model} if question.several else {}),
                "count": used.count,
                **({"role": known[used.configuration].role} if apart else {}),
                **_degrees(known[used.configuration]),
                **_drafts(known[used.configuration]),
                **_planned_sequences(known[used.configuration], question),
                "usd_per_hour": used.cost_per_hour,
                "shares": found.shares[used.configuration],
            }
            for used in found.replicas
        ],
    }


def _degrees(priced: PricedConfiguration) -> dict[str, Any]:
    """The stages of a replica, or its degrees where attention is data-parallel or experts are spread."""
    if priced.attention_dp > 1 or priced.ep > 1:
        ((kind, tp, _),) = priced.stages
        return {"gpu": kind, "tp": tp, "attention_dp": priced.attention_dp, "ep": priced.ep}
    return {"stages": [{"gpu": kind, "tp": tp, "layers": layers} for kind, tp, layers in priced.stages]}


def _drafts(priced: PricedConfiguration) -> dict[str, Any]:
    speculation = priced.speculation
    return {"drafts": speculation.drafts, "acceptance": speculation.acceptance} if speculation else {}


def _planned_sequences(priced: PricedConfiguration, question: ServiceQuestion) -> dict[str, int]:
    """Most concurrent requests of a replica at which it meets the time per token; {} without such a limit.

    By Little's law: requests/s, times tokens per request, times seconds per token. More concurrent requests
    would slow all of them down too much.
    """
    tpot_s = question.goal.slo.tpot_s
    if not isfinite(tpot_s) or priced.role == PREFILL:
        return {}
    own = [
        asked_type
        for asked_type in question.types
        if not question.several or asked_type.model == priced.model
    ]
    at_once = [
        rps * asked_type.output_tokens * tpot_s for rps, asked_type in zip(priced.rps, own, strict=False)
    ]
    most = ceil(max(at_once, default=0.0))
    return {"planned_sequences": most} if most >= 1 else {}
