"""Watts of a replica under a steady load, and the effect of a power cap on its clocks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tangram_sim.cost.energy import LEAST_CLOCK, Activity, GpuPower, gpu_power
from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.closed_form import Load, Steady
from tangram_sim.serving.costs import LayerStepCost
from tangram_sim.serving.deployment import Deployment, ReplicaStage
from tangram_sim.units import percent

CLOCKS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, LEAST_CLOCK)  # tried under a power cap


@dataclass(frozen=True)
class ReplicaPower:
    """Mean watts of a replica's GPUs and of their shares of the hosts. Arrays of N loads."""

    gpu_w: Floats  # all GPUs together
    most_w: float  # all GPUs together at their boards' limits, or at the cap
    host_w: float
    sigma: float  # standard deviation of log watts
    basis: str


def stage_activities(cost: LayerStepCost, load: Load, steady: Steady) -> list[tuple[ReplicaStage, Activity]]:
    """Activity of one GPU of each stage in a mean second; `steady` is the result of `cost` for `load`."""
    deployment = cost.deployment
    b, pp = np.maximum(steady.running, 1.0), float(deployment.pp)
    contexts, zero = b * load.context, np.zeros_like(b)
    mixed = deployment.engine.prefill == "mixed"
    beside, beside_contexts = (b, contexts) if mixed else (zero, zero)
    decode = cost.passes(cost.work(zero, zero, b, contexts))
    both = cost.passes(cost.work(load.rows, load.scores, beside, beside_contexts))
    yielded = deployment.speculation.tokens if deployment.speculation else 1.0
    iterations = steady.request_rate * load.osl / (yielded * b)  # per second
    passing = iterations * steady.step_s + steady.request_rate * steady.prompt_s
    found = []
    for stage, alone, with_prompt in zip(deployment.stages, decode, both, strict=True):
        gpu = board_of(stage, cost.hwdb)
        per_second: dict[str, Floats] = {}
        for name in ("peak_s", "attention_flop", "moved_bytes", "sent_bytes"):
            decoded, prompted = getattr(alone, name), getattr(with_prompt, name)
            added = np.maximum(prompted - decoded, 0.0) if mixed else prompted
            per_second[name] = pp * (iterations * decoded + steady.request_rate * added)
        products_s = per_second["peak_s"] + per_second["attention_flop"] / gpu.vector_flop_per_s
        activity = Activity(
            seconds=1.0,
            running_s=np.minimum(passing, 1.0),
            arithmetic_s=products_s,
            memory_s=per_second["moved_bytes"] / gpu.memory_bytes_per_s,
            link_s=per_second["sent_bytes"] / gpu.link_bytes_per_s,
        )
        found.append((stage, activity))
    return found


def replica_power(cost: LayerStepCost, load: Load, steady: Steady) -> ReplicaPower:
    """Watts of the replica that `cost` prices, where `steady` is its result for `load`.

    Under a power cap operations are counted at their power at the highest clock, up to the cap.
    """
    total = np.zeros_like(steady.running)
    host_w, sigma, most_w, basis = 0.0, 0.0, 0.0, []
    cap_w = cost.cap_w if isinstance(cost, CappedStepCost) else np.inf
    for stage, activity in stage_activities(cost, load, steady):
        power = gpu_power(stage.island.gpu, cost.hwdb)
        limit_w = float(np.minimum(power.limit_w, cap_w))
        total, most_w = (
            total + np.minimum(power.watts(activity), limit_w) * stage.gpus,
            most_w + limit_w * stage.gpus,
        )
        host_w, sigma = host_w + power.host_w * stage.gpus, max(sigma, power.sigma)
        basis.append(power.basis)
    return ReplicaPower(total, most_w, host_w, sigma, "; ".join(dict.fromkeys(basis)))


@dataclass(frozen=True)
class Board:
    """Power and rates of a GPU of a stage at its highest clock: numbers, or arrays over loads."""

    power: GpuPower
    vector_flop_per_s: Number
    memory_bytes_per_s: Number
    link_bytes_per_s: Number  # infinite where it has none


def board_of(stage: ReplicaStage, hwdb: Hwdb) -> Board:
    """The board of a GPU of `stage`. Raises BadInputError where its power limit is not known."""
    gpu = stage.island.gpu
    return Board(
        gpu_power(gpu, hwdb),
        max(gpu.peak_flop_per_s("bf16"), gpu.peak_flop_per_s("fp16")),
        gpu.memory_bytes_per_s,
        stage.island.intra.bytes_per_s or np.inf,
    )


def at_clock(deployment: Deployment, clock: float) -> Deployment:
    """The deployment with every GPU's arithmetic at the share `clock` of its speed; memory is not slowed."""
    if clock == 1.0:
        return deployment
    stages = tuple(
        replace(stage, island=replace(stage.island, gpu=stage.island.gpu.slowed(1.0 / clock, clock)))
        for stage in deployment.stages
    )
    return replace(deployment, stages=stages)


@dataclass(frozen=True)
class CappedStepCost(LayerStepCost):
    """Costs under a power cap: each iteration runs at the highest clock at which no GPU exceeds the cap.

    Drivers adapt the clock within milliseconds, so prompts are slowed, while memory-bound decodes hardly are.
    Clocks between those tried are interpolated. An iteration that exceeds the cap even at the lowest clock
    runs at that clock.
    """

    cap_w: float = 0.0

    def slowed(self, clock: float) -> LayerStepCost:
        """The costs without a cap, with every GPU's arithmetic at the share `clock` of its highest clock."""
        return LayerStepCost(at_clock(self.deployment, clock), self.hwdb, self.fit, bounded=self.bounded)

    def boards(self, loads: int) -> Sequence[Board]:
        """One board for each stage at its highest clock, or arrays over `loads` loads."""
        del loads  # all loads are on the same boards
        return [board_of(stage, self.hwdb) for stage in self.deployment.stages]

    @cached_property
    def _tried(self) -> tuple[tuple[float, LayerStepCost], ...]:
        return tuple((clock, self.slowed(clock)) for clock in CLOCKS)

    def step_s(self, rows: Number, scores: Number, decodes: Number, contexts: Number) -> Floats:
        """Seconds of the iteration at the highest clock that keeps to the cap."""
        work = np.broadcast_arrays(
            *(np.asarray(item, dtype=np.float64) for item in (rows, scores, decodes, contexts))
        )
        tried = ((cost.step_s(*work), clock, cost) for clock, cost in self._tried)
        above_s, clock, cost = next(tried)
        above_w, found, hot = (
            self._watts(cost, clock, above_s, work),
            above_s,
            np.ones_like(above_s, np.bool_),
        )
        for below_s, clock, cost in tried:
            below_w = self._watts(cost, clock, below_s, work)
            part = np.clip((self.cap_w - below_w) / np.maximum(above_w - below_w, 1e-9), 0.0, 1.0)
            slower = np.where(below_w <= self.cap_w, below_s + part * (above_s - below_s), below_s)
            found = np.where(hot, slower, found)
            hot &= below_w > self.cap_w
            if not hot.any():
                break
            above_s, above_w = below_s, below_w
        return np.asarray(found)

    def check(self, load: Load, running: Floats) -> None:
        """Raise InfeasibleError where decodes or prompts exceed the cap even at the lowest clock."""
        clock, cost = self._tried[-1]
        zero, b = np.zeros_like(running), np.maximum(running, 1.0)
        for work in ((zero, zero, b, b * load.context), (load.rows, load.scores, zero, zero)):
            watts = float(np.max(self._watts(cost, clock, cost.step_s(*work), work)))
            if watts > self.cap_w:
                gpu = self.deployment.stages[0].island.gpu.name
                raise InfeasibleError(
                    f"a power cap of {self.cap_w:g} W cannot be met: {gpu} still draws {watts:,.0f} W at "
                    f"{percent(clock)} of its clock; give a higher cap or more GPUs"
                )

    def _watts(self, cost: LayerStepCost, clock: float, seconds: Floats, work: Sequence[Floats]) -> Floats:
        """Watts of the GPU that draws most in iterations of `work` (rows, scores, decodes, contexts)."""
        highest, pp = np.zeros_like(seconds), float(self.deployment.pp)
        boards = self.boards(np.size(seconds))
        for board, did in zip(boards, cost.passes(cost.work(*work)), strict=True):
            activity = Activity(
                seconds,
                seconds,
                pp * (did.peak_s * clock + did.attention_flop / board.vector_flop_per_s),
                pp * did.moved_bytes / board.memory_bytes_per_s,
                pp * did.sent_bytes / board.link_bytes_per_s,
            )
            busy = np.where(seconds > 0, board.power.joules(activity, clock), 0.0)
            highest = np.maximum(highest, busy / np.where(seconds > 0, seconds, 1.0))
        return np.asarray(highest.reshape(np.shape(seconds)))


def capped(cost: LayerStepCost, cap_w: float) -> LayerStepCost:
    """The costs of the same replica with each GPU limited to `cap_w` watts; 0.0: to its board's limit."""
    return CappedStepCost(cost.deployment, cost.hwdb, cost.fit, cap_w) if cap_w else cost
