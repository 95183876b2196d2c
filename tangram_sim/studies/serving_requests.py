"""Match requests to a fleet's models and types, and find those too long for a model's context."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.serving.fleet_file import ServedType, ServiceFleet
from tangram_sim.serving.workload import Ints, Workload


def asking(workload: Workload, fleet: ServiceFleet) -> Workload:
    """The workload with the fleet's model names. Raises BadInputError where they do not match.

    A fleet of one model serves all requests, whatever the trace calls their models; a trace without model
    names asks for the fleet's only model.
    """
    served = fleet.models
    if not served:
        named = workload.models
        only = replace(workload, models=())
        if len(named) < 2:
            return only
        return replace(only, notes=(*only.notes, f"all {len(named)} models of the trace are served by one"))
    if not workload.models and len(served) == 1:
        return workload.of_models(served, np.zeros(len(workload), dtype=np.int64))
    if not workload.models:
        raise BadInputError(
            f"the fleet serves {', '.join(served)}; requests must say which: a column `model` in the trace, "
            "or names in a mix, like NAME=800:200:0.5"
        )
    for name in workload.models:
        if name not in served:
            raise unknown_name("model that is asked for", name, served)
    return workload


def beyond_context(workload: Workload, fleet: ServiceFleet) -> list[str]:
    """Warnings on requests longer than their model's context, which an engine would refuse."""
    tokens, found = workload.input_tokens + workload.output_tokens, []
    for name, context in fleet.contexts.items():
        mine = workload.model == workload.models.index(name) if name in workload.models else True
        longer = int(((tokens > context) & mine).sum())
        if longer and (name in workload.models or not workload.models):
            found.append(
                f"{longer:,} {'request is' if longer == 1 else 'requests are'} longer than the model's "
                f"context of {context:,} tokens: played as if it were longer, where an engine would refuse"
            )
    return found


def nearest_types(workload: Workload, types: Sequence[ServedType]) -> Ints:
    """Number of the nearest type of every request's model, by the logarithms of its tokens, [requests].

    0 where there are no types.
    """
    if not types:
        return np.zeros(len(workload), dtype=np.int64)
    centres = np.log(
        np.array([(served_type.input_tokens, served_type.output_tokens) for served_type in types])
    )
    given = np.log(np.stack([workload.input_tokens, workload.output_tokens], axis=1))
    away = ((given[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
    for number, name in enumerate(workload.models):
        others = [place for place, served_type in enumerate(types) if served_type.model not in ("", name)]
        away[np.ix_(workload.model == number, others)] = np.inf
    return np.asarray(np.argmin(away, axis=1), dtype=np.int64)
