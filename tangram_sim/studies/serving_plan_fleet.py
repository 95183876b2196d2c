"""A service plan as a fleet: what `tangram serve simulate` plays and `tangram serve export` launches."""

from collections.abc import Sequence
from typing import Any

from tangram_sim.serving_planners.offers import PricedConfiguration
from tangram_sim.serving_planners.problem import WHOLE
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.studies.serving_question import ServiceQuestion


def fleet_document(
    found: ServePlanDocument, priced: Sequence[PricedConfiguration], question: ServiceQuestion
) -> dict[str, Any]:
    """The plan in the format of a fleet file, for `tangram serve simulate`."""
    known = {one.name: one for one in priced}
    only = {} if question.several else {"model": next(iter(question.models))}
    apart = any(known[used.configuration].role != WHOLE for used in found.replicas)
    return {
        **only,
        **({"link_gb_per_s": question.goal.link_gb_per_s} if apart else {}),
        "engine": question.goal.engine,
        "precision": question.goal.precision,
        "types": [
            [one.input_tokens, one.output_tokens, *([one.model] if question.several else [])]
            for one in question.types
        ],
        "replicas": [
            {
                "name": used.configuration,
                **({"model": known[used.configuration].model} if question.several else {}),
                "count": used.count,
                **({"role": known[used.configuration].role} if apart else {}),
                "stages": [
                    {"gpu": kind, "tp": tp, "layers": layers}
                    for kind, tp, layers in known[used.configuration].stages
                ],
                "usd_per_hour": used.cost_per_hour,
                "shares": found.shares[used.configuration],
            }
            for used in found.replicas
        ],
    }
