"""The null model: what a regression on the numbers everybody knows gets right, without any physics."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_validate.serving.placed_runs import PlacedRun
from tangram_validate.serving.predict import PredictedRun
from tangram_validate.serving.runs import ServedRun

LEAST_ROWS = 12  # of an engine and metric: fewer are no regression
RIDGE = 0.1  # on slopes of logarithms: kinds left out are not extrapolated to at any price


def with_null(train: Sequence[PredictedRun], test: Sequence[PredictedRun], hwdb: Hwdb) -> list[PredictedRun]:
    """`test` with the null model's predictions, fitted to `train`.

    log(metric) is linear in the logarithms of weights, memory bandwidth and peak of one GPU's share, requests
    or rate, and lengths; one fit for each engine, load and metric. Rows of which none was seen keep 0.0.
    Tokens a second of layers placed on unlike nodes are in proportion to the memory bandwidth of all nodes,
    by load.
    """
    found = list(test)
    train = [predicted_run for predicted_run in train if predicted_run.run.placed is None]
    for key in {_kind(predicted_run) for predicted_run in test if predicted_run.run.placed is None}:
        seen = [predicted_run for predicted_run in train if _kind(predicted_run) == key]
        wanted = [place for place, predicted_run in enumerate(test) if _kind(predicted_run) == key]
        if len(seen) < LEAST_ROWS:
            continue
        known = np.stack([_facts(predicted_run.run, hwdb) for predicted_run in seen])
        middle = known.mean(axis=0) * (np.arange(known.shape[1]) > 0)
        target = np.log([predicted_run.measured for predicted_run in seen])
        centred = known - middle
        normal = centred.T @ centred + RIDGE * np.eye(known.shape[1])
        slopes = np.linalg.solve(normal, centred.T @ target)
        for place in wanted:
            value = float(np.exp((_facts(test[place].run, hwdb) - middle) @ slopes))
            found[place] = replace(test[place], null=value)
    return [_by_bandwidth(predicted_run, test, hwdb) for predicted_run in found]


def _kind(predicted_run: PredictedRun) -> tuple[str, str, str]:
    return predicted_run.run.engine, predicted_run.run.load, predicted_run.metric


def _by_bandwidth(predicted_run: PredictedRun, all_runs: Sequence[PredictedRun], hwdb: Hwdb) -> PredictedRun:
    """A run of placed layers with the null model's tokens a second; other runs as they are."""
    if predicted_run.run.placed is None or predicted_run.metric != "output_tok_s":
        return predicted_run
    alike = [
        (other.measured, _bandwidth(other.run.placed, hwdb))
        for other in all_runs
        if other.metric == predicted_run.metric
        and other.run.placed is not None
        and other.run.placed.load == predicted_run.run.placed.load
    ]
    rate = float(np.median([measured / bandwidth for measured, bandwidth in alike]))
    return replace(predicted_run, null=rate * _bandwidth(predicted_run.run.placed, hwdb))


def _bandwidth(placed: PlacedRun, hwdb: Hwdb) -> float:
    return sum(hwdb.gpu(name).memory_bytes_per_s for name in placed.gpus)


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
