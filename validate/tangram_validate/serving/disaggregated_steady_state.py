"""Steady load in closed form where prompts and outputs have replicas of their own.

A request waits for a prompt worker, passes it, moves its KV cache to a decode worker and stays there. Clients
are a closed queueing network of two stations: prompt workers, which serve one prompt a rank at a time, and
decode workers, where nobody waits (Reiser and Lavenberg, 1980, give the exact recursion; the throughput here
solves the same balance of clients with the M/D/1 wait of the prompt station).
"""

from dataclasses import dataclass

import numpy as np

from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.serving.closed_form import ROUNDS, Load, Steady
from tangram_sim.serving.stepcost import StepCost

MOST_BUSY = 0.98  # of the prompt station, where its wait is asked for


@dataclass(frozen=True, slots=True)
class PromptStation:
    """Workers that take prompts: their cost, how many there are, prompts that each takes at once.

    `handover_s` passes between a prompt's end and its first decode: its KV cache on the link.
    """

    cost: StepCost
    workers: int
    ranks: int  # attention data-parallel ranks of a worker, each with a prompt of its own
    handover_s: Number = 0.0  # of each load, or of all

    def prompt_s(self, load: Load) -> Floats:
        """Seconds a prompt spends on a worker whose ranks all have one."""
        return self.cost.step_s(load.rows * self.ranks, load.scores * self.ranks, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ApartClients:
    """What clients add to the first token: seconds outside the engine, and the share that stays in step.

    Clients begin together and their outputs are of similar length, so prompts keep coming in waves; a client
    in step waits for half of the others' prompts.
    """

    seconds: float = 0.0
    wave: float = 0.0


def apart_loop(
    decode: StepCost,
    workers: int,
    prompts: PromptStation,
    load: Load,
    clients: Number,
    habits: ApartClients,
) -> Steady:
    """`clients` requests in flight at all times, over all workers; each load's averages.

    `running` are the requests that decode, on all workers; `request_rate` that of the whole service.
    """
    wanted = np.asarray(clients, dtype=np.float64) * np.ones_like(load.isl)
    prompt = prompts.prompt_s(load)
    most = prompts.workers * prompts.ranks / prompt  # prompts a second
    low, high = np.zeros_like(wanted), wanted
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        rate = middle / (load.osl * _tpot(decode, workers, load, middle))
        before = _first_s(prompts, prompt, most, rate)
        over = (rate > most) | (middle + rate * before > wanted)
        low, high = np.where(over, low, middle), np.where(over, middle, high)
        if np.max((high - low) / np.maximum(high, 1e-3)) < 1e-3:
            break
    running = np.maximum(low, np.minimum(wanted, 1e-3))
    tpot = _tpot(decode, workers, load, running)
    rate = running / (load.osl * tpot)
    waves = habits.wave * (wanted - 1.0) / 2.0 / most
    ttft = habits.seconds + _first_s(prompts, prompt, most, rate) + waves
    # Where prompts are the bottleneck, all clients who do not decode stand before them.
    ttft = np.maximum(ttft, wanted / rate - load.osl * tpot)
    e2e = ttft + (load.osl - 1.0) * tpot
    return Steady(running, tpot, prompt, tpot, ttft, e2e, request_rate=rate, overloaded=np.zeros_like(tpot))


def _tpot(decode: StepCost, workers: int, load: Load, running: Floats) -> Floats:
    """Seconds a token with so many requests spread evenly over the decode workers."""
    each = np.maximum(running / workers, 1.0)
    return decode.step_s(0.0, 0.0, each, each * load.context)


def _first_s(prompts: PromptStation, prompt: Floats, most: Floats, rate: Floats) -> Floats:
    """Wait, prompt and handover at `rate` prompts a second: an M/D/1 queue at the pooled workers."""
    busy = np.minimum(rate / most, MOST_BUSY)
    wait = busy / (2.0 * (1.0 - busy)) / most
    return np.asarray(prompt + wait + prompts.handover_s)
