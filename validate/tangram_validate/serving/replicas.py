"""Runs on their replicas: the deployment of each setup, priced once for all runs on it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.build import deployment_of
from tangram_sim.serving.calibration import CalibrationTable, EngineFit
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.costs import LayerStepCost
from tangram_sim.serving.deployment import Deployment
from tangram_sim.serving.energy import CappedStepCost
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.kv import kv_capacity
from tangram_sim.serving.stepcost import KvCapacity
from tangram_validate.serving.cache_moves import kv_transfer_s
from tangram_validate.serving.disaggregated_steady_state import PromptStation
from tangram_validate.serving.runs import RefusedRun, ServedRun

ENDLESS = 10**9  # blocks


@dataclass(frozen=True)
class DeploymentRuns:
    """Runs on one deployment."""

    runs: tuple[ServedRun, ...]
    cost: LayerStepCost

    @property
    def deployment(self) -> Deployment:
        """The deployment that served these runs."""
        return self.cost.deployment

    @property
    def fit(self) -> EngineFit:
        """The calibrated parameters of the engine for this model, GPU and version."""
        return self.cost.fit

    def capacity(self, hwdb: Hwdb) -> KvCapacity:
        """KV memory in blocks; unlimited where by our count the weights alone do not fit, yet they ran."""
        try:
            return kv_capacity(self.deployment, hwdb, self.fit)
        except InfeasibleError:
            return KvCapacity(ENDLESS, self.deployment.engine.block_tokens)

    @property
    def load(self) -> Load:
        """Lengths of all runs."""
        return Load.of(*(column(self.runs, name) for name in ("isl", "osl", "cached")))


def column(runs: Iterable[ServedRun], name: str) -> Floats:
    """The attribute `name` of every run, as numbers [N]."""
    return np.array([float(getattr(run, name)) for run in runs])


def deployment_for(run: ServedRun, hwdb: Hwdb) -> Deployment:
    """The replica a run was made on, with the limits its row states. Raises TangramError."""
    engine = engine_defaults(hwdb, run.engine, hwdb.gpu(run.gpu), run.version)
    engine = replace(
        engine,
        max_sequences=run.max_sequences or engine.max_sequences,
        max_batched_tokens=run.max_batched_tokens or engine.max_batched_tokens,
        memory_fraction=run.memory_fraction or engine.memory_fraction,
        recv_interval=run.recv_interval or engine.recv_interval,
        async_scheduling=run.async_scheduling or engine.async_scheduling,
    )
    return deployment_of(
        run.model,
        run.gpu,
        hwdb,
        engine,
        precision=run.precision,
        tp=run.tp,
        pp=run.pp,
        ep=run.ep,
        attention_dp=run.attention_dp,
    )


def prompt_station(replica: DeploymentRuns, hwdb: Hwdb) -> PromptStation:
    """The workers that take the prompts of runs whose decode workers are `replica`."""
    first = replica.runs[0]
    pool = first.prompts
    if pool is None:
        raise ValueError("these runs have no workers for prompts alone")
    alone = replace(first, tp=pool.tp, pp=1, attention_dp=pool.attention_dp, ep=pool.ep)
    source = deployment_for(alone, hwdb)
    handover_s = np.array([kv_transfer_s(source, replica.deployment, run.isl, hwdb) for run in replica.runs])
    return PromptStation(
        LayerStepCost(source, hwdb, replica.fit), pool.workers, pool.attention_dp, handover_s
    )


def replicas(
    runs: Iterable[ServedRun], hwdb: Hwdb, table: CalibrationTable
) -> Iterator[DeploymentRuns | RefusedRun]:
    """Runs by deployment; those whose deployment cannot be, one by one with the reason."""
    by_setup: dict[tuple[object, ...], list[ServedRun]] = {}
    for run in runs:
        by_setup.setdefault(run.setup, []).append(run)
    for same in by_setup.values():
        first = same[0]
        try:
            deployment = deployment_for(first, hwdb)
            fit = table.fit_of(deployment, first.version)
            cost = LayerStepCost(deployment, hwdb, fit)
            if first.power_cap_w:
                cost = CappedStepCost(deployment, hwdb, fit, first.power_cap_w)
        except TangramError as error:
            yield from (RefusedRun(run.line, str(error), run.table) for run in same)
        else:
            yield DeploymentRuns(tuple(same), cost)
