"""What requests ask of a fleet: which of its models and types, and whether a context is too long."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.serving.fleet_file import ServedType, ServiceFleet
from tangram_sim.serving.workload import Ints, Workload


def asking(workload: Workload, fleet: ServiceFleet) -> Workload:
    """The workload in the fleet's own models. Raises BadInputError where they do not fit.

    What a trace calls models means nothing to a fleet of one model, which serves all of it; a trace
    that names none asks for a fleet's only one.
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
    """The nearest type for every request, by the logarithms of its tokens, among those of its model.

    Numbers of types, one for each request; 0 where there are no types.
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
