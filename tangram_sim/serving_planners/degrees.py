"""Replicas of models with experts: data-parallel attention groups, experts distributed over all ranks."""

from collections.abc import Sequence
from dataclasses import replace

from tangram_sim.errors import InfeasibleError
from tangram_sim.models import Experts, Model
from tangram_sim.serving_planners.offers import (
    MOST_GPUS,
    GpuOffer,
    OfferPricer,
    PricedConfiguration,
    configuration_of,
)


def expert_degrees(pricer: OfferPricer, offers: Sequence[GpuOffer]) -> list[PricedConfiguration]:
    """Replicas of one stage inside a node, at every tp and attention data parallelism, with ep 1 or all.

    Each expert is either whole on one rank (ep = tp x attention_dp) or split over all ranks (ep = 1), since
    no engine supports all degrees in between. One group at ep 1 (a plain replica) and replicas that finish no
    request are left out. Empty for models without experts, and for a batch, whose filling and draining are
    not priced at these degrees.
    """
    if pricer.mix is not None:
        return []
    found = []
    for offer in offers:
        most = min(offer.gpus_per_node, offer.available, MOST_GPUS)
        shapes = [
            (tp, groups, ep)
            for ranks in (2, 4, 8, 16)
            if ranks <= most
            for tp, groups, ep in degrees_on(pricer.model, ranks)
            if (groups, ep) != (1, 1)
        ]
        for shape in sorted(shapes):
            found += _priced(pricer, offer.name, *shape)
    return found


def degrees_on(model: Model, ranks: int) -> list[tuple[int, int, int]]:
    """Every (tp, attention data parallelism, ep) of a model with experts on so many ranks of one stage."""
    parts = [block.feed_forward for block in model.blocks]
    experts = [part.experts for part in parts if isinstance(part, Experts)]
    return [
        (tp, ranks // tp, ep)
        for tp in (1, 2, 4, 8, 16)
        if experts and ranks % tp == 0 and not any(block.attention.heads % tp for block in model.blocks)
        for ep in sorted({1, ranks})
        if not any(count % ep for count in experts)
    ]


def _priced(pricer: OfferPricer, kind: str, tp: int, groups: int, ep: int) -> list[PricedConfiguration]:
    stages = [(kind, tp, pricer.model.layers)]
    name = f"{kind} tp{tp}" + f" dp{groups}" * (groups > 1) + f" ep{ep}" * (ep > 1)
    try:
        rps = pricer.throughput(pricer.deployment(stages, attention_dp=groups, ep=ep)).tolist()
    except InfeasibleError as error:
        pricer.refused[name] = str(error)
        return []
    if not any(rps):
        return []
    one = configuration_of(stages, tuple(rps))
    return [replace(one, name=name, gpus={kind: tp * groups}, attention_dp=groups, ep=ep)]
