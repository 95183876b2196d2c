"""What runs say about an engine's parameters: the parts of their iterations, and seconds a token.

An iteration is a sum of parts, each times a factor, so a run's seconds a token are linear in the factors.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.cost.kernels import Floats
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import seats
from tangram_sim.serving.costs import PARTS, LayerStepCost
from tangram_sim.serving.forward import ForwardTimes, IterationWork
from tangram_validate.serving.replicas import DeploymentRuns, column, replicas
from tangram_validate.serving.runs import CLOSED, OFFLINE, OPEN, STATIC, ServedRun

# Columns of the features: parts of a pass, in seconds, then counts of kernels and reductions.
FEATURES = (*PARTS, "kernels", "reductions")


@dataclass(frozen=True)
class Observations:
    """N runs: features of an iteration of pure decode and of what a prompt adds, and seconds a token."""

    runs: tuple[ServedRun, ...]
    decode: Floats  # N x FEATURES
    prompt: Floats  # N x FEATURES
    requests: Floats  # N: of one attention rank
    share: Floats  # N: prompts an iteration
    tpot_s: Floats  # N: measured

    def __getitem__(self, index: NDArray[np.intp]) -> "Observations":
        runs = tuple(np.array(self.runs, dtype=object)[index])
        arrays = (self.decode, self.prompt, self.requests, self.share, self.tpot_s)
        return Observations(runs, *(array[index] for array in arrays))


def observe(runs: Iterable[ServedRun], hwdb: Hwdb) -> Observations:
    """Features of all runs that say how long a token takes; deployments of several stages are left out."""
    table = CalibrationTable(())
    wanted = [run for run in runs if is_telling(run)]
    found: list[Observations] = []
    for replica in replicas(wanted, hwdb, table):
        if isinstance(replica, DeploymentRuns):
            found.append(_observe(replica, hwdb))
    return Observations(
        tuple(run for observations in found for run in observations.runs),
        *(
            np.concatenate([getattr(observations, name) for observations in found])
            for name in ("decode", "prompt", "requests", "share", "tpot_s")
        ),
    )


def is_telling(run: ServedRun) -> bool:
    """Whether a run says what ran, and how long a token took: others are predicted, and nothing is fitted."""
    if run.pp > 1 or run.doubt or run.assumed:
        return False
    if run.load == CLOSED:
        return run.value("tpot") > 0
    if run.load == OPEN:
        return run.value("tpot") > 0 and run.value("e2e") > 0
    return run.load in (OFFLINE, STATIC) and run.value("output_tok_s") > 0


def _observe(replica: DeploymentRuns, hwdb: Hwdb) -> Observations:
    deployment, load, runs = replica.deployment, replica.load, replica.runs
    room = seats(deployment, replica.capacity(hwdb), load)
    offline = np.array([run.load == OFFLINE for run in runs])
    opened = np.array([run.load == OPEN for run in runs])
    in_flight = column(runs, "rate") * np.array([run.value("e2e") for run in runs])
    wanted = np.where(offline, room, np.where(opened, in_flight, column(runs, "clients")))
    running = np.maximum(np.minimum(wanted, np.maximum(room, 1.0)), 1.0)
    told = np.array([run.value("output_tok_s") for run in runs])
    tpot = np.array([run.value("tpot") for run in runs])
    measured = np.where(told > 0, running / np.maximum(told, 1e-9), tpot)
    zero = np.zeros_like(running)
    context = running * load.context
    decode = features(replica.cost, replica.cost.work(zero, zero, running, context))
    if deployment.engine.prefill == "mixed":
        prompt = features(replica.cost, replica.cost.work(load.rows, load.scores, running, context)) - decode
    else:
        prompt = features(replica.cost, replica.cost.work(load.rows, load.scores, zero, zero))
    return Observations(runs, decode, prompt, running / deployment.attention_dp, running / load.osl, measured)


def features(cost: LayerStepCost, work: IterationWork) -> Floats:
    """FEATURES of passes of a one-stage deployment: seconds by part, two counts. [N, FEATURES]."""
    (times,) = cost.passes(work)
    return np.stack([_column(times, name, work.tokens) for name in FEATURES], axis=1)


def _column(times: ForwardTimes, name: str, like: Floats) -> Floats:
    return np.asarray(getattr(times, name) + np.zeros_like(like))
