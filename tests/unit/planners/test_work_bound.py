"""The bound on work where some kinds cannot hold some atoms, against a linear program."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.placement.islands import find_islands
from tangram_sim.planners.tangram.bound import WorkBound
from tangram_sim.training.job import Job

HWDB = Hwdb.load()
MODEL = load_model("gpt3-350m")
CLUSTER = load_cluster("azure-c1")
ISLANDS = find_islands(CLUSTER, "fp16", hwdb=HWDB)
JOB = Job(8, dtype="fp16")


def _least(seed: int) -> NDArray[np.float64]:
    """Seconds of atoms on kinds, some without end; seconds on different kinds differ by up to ten times."""
    rng = np.random.default_rng(seed)
    shape = len(ISLANDS), MODEL.layers + 2
    seconds = rng.uniform(0.5, 2, shape) * 10 ** rng.uniform(0, 1, (shape[0], 1))
    return np.where(rng.random(shape) < 0.3, np.inf, seconds)


def _shared_s(least: NDArray[np.float64], gpus: NDArray[np.float64]) -> float:
    """Least seconds of a step if atoms could be shared among kinds in any fractions."""
    kinds, atoms = least.shape
    cost = np.where(np.isfinite(least), least, 0.0) * JOB.global_batch / gpus[:, None]
    busy = np.zeros((kinds, kinds * atoms + 1))
    whole = np.zeros((atoms, kinds * atoms + 1))
    for kind in range(kinds):
        busy[kind, kind * atoms : (kind + 1) * atoms] = cost[kind]
        whole[range(atoms), kind * atoms + np.arange(atoms)] = 1.0
    busy[:, -1] = -1.0
    limits = [(0.0, 1.0 if held else 0.0) for held in np.isfinite(least).ravel()]
    objective = np.append(np.zeros(kinds * atoms), 1.0)
    found = linprog(objective, busy, np.zeros(kinds), whole, np.ones(atoms), [*limits, (0.0, None)])
    return float(found.fun) if found.success else float("inf")


@pytest.mark.parametrize("seed", range(40))
def test_what_a_kind_cannot_hold_leaves_a_bound_on_the_rest(seed: int) -> None:
    least = _least(seed)
    bound = WorkBound(MODEL, JOB, ISLANDS, HWDB, CLUSTER).tightened(least)
    best_s = _shared_s(least, bound.gpus)
    assert bound.step_s() <= best_s * (1 + 1e-9)
    assert bound.pipeline_s(1) >= bound.step_s() > 0
    if np.isfinite(best_s):
        assert bound.step_s() > best_s / 4  # kinds that lack atoms are worth what they do of the others


@pytest.mark.parametrize("seed", range(40))
def test_slices_without_what_a_kind_lacks_have_a_number(seed: int) -> None:
    least = _least(seed)
    bound = WorkBound(MODEL, JOB, ISLANDS, HWDB, CLUSTER).tightened(least)
    atoms = least.shape[1]
    starts, stops = np.array([(a, b) for a in range(atoms) for b in range(a + 1, atoms + 1)]).T
    for kind, island in enumerate(ISLANDS):
        told = bound.slices_s(starts, stops, kind, island.gpus)
        for start, stop, seconds in zip(starts, stops, told, strict=True):
            own = least[kind, start:stop]
            if np.isfinite(own).all() and np.isfinite(least).any(axis=0).all():
                assert np.isfinite(seconds) or island.gpus * bound.value[kind] > 1 - 1e-9
            assert not np.isnan(seconds) and not np.isnan(bound.load(start, stop, kind, island.gpus))
            assert seconds >= own.sum() * JOB.global_batch / island.gpus * (1 - 1e-9)
