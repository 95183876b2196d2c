"""The null model: what a regression on the numbers everybody knows gets right, without any physics."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_sim.validation.serving.predict import PredictedRun
from tangram_sim.validation.serving.runs import ServedRun

LEAST_ROWS = 12  # of an engine and metric: fewer are no regression
RIDGE = 0.1  # on slopes of logarithms: kinds left out are not extrapolated to at any price


def with_null(train: Sequence[PredictedRun], test: Sequence[PredictedRun], hwdb: Hwdb) -> list[PredictedRun]:
    """`test` with the null model's predictions, fitted to `train`.

    log(metric) is linear in the logarithms of weights, memory bandwidth and peak of one GPU's share, requests
    or rate, and lengths; one fit for each engine and metric. Rows of engines unseen keep 0.0.
    """
    found = list(test)
    for key in {(one.run.engine, one.metric) for one in test}:
        seen = [one for one in train if (one.run.engine, one.metric) == key]
        wanted = [place for place, one in enumerate(test) if (one.run.engine, one.metric) == key]
        if len(seen) < LEAST_ROWS:
            continue
        known = np.stack([_facts(one.run, hwdb) for one in seen])
        middle = known.mean(axis=0) * (np.arange(known.shape[1]) > 0)
        target = np.log([one.measured for one in seen])
        centred = known - middle
        normal = centred.T @ centred + RIDGE * np.eye(known.shape[1])
        slopes = np.linalg.solve(normal, centred.T @ target)
        for place in wanted:
            value = float(np.exp((_facts(test[place].run, hwdb) - middle) @ slopes))
            found[place] = replace(test[place], null=value)
    return found


def _facts(run: ServedRun, hwdb: Hwdb) -> Floats:
    gpu, ranks = hwdb.gpu(run.gpu), run.tp * run.attention_dp * run.pp
    weights = run.model.parameters * run.precision.expert_bytes
    active = run.model.active_parameters * run.precision.expert_bytes
    load = max(run.clients, run.rate, 1e-3)
    return np.concatenate(
        [
            np.ones(1),
            np.log(
                [weights, active, gpu.memory_bytes_per_s, gpu.memory_bytes, ranks, load, run.isl, run.osl]
            ),
        ]
    )
