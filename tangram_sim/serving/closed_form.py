"""Steady load in closed form: time per output token and to first token of a replica, without simulation.

Arrays of N loads on one deployment. Good for ranking and for means; queues and tails need the simulator.
"""

from dataclasses import dataclass

import numpy as np

from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.serving.calibration import EngineFit
from tangram_sim.serving.deployment import Deployment
from tangram_sim.serving.stepcost import KvCapacities, KvCapacity, StepCost

ROUNDS = 60  # of bisection: halves an interval of any load to below a request


@dataclass(frozen=True)
class Load:
    """N loads: prompt and output tokens of every request, and prompt tokens found in the prefix cache."""

    isl: Floats
    osl: Floats
    cached: Floats

    @classmethod
    def of(cls, isl: Number, osl: Number, cached: Number = 0.0) -> "Load":
        """Loads from numbers or arrays, broadcast against each other."""
        arrays = np.broadcast_arrays(*(np.asarray(item, dtype=np.float64) for item in (isl, osl, cached)))
        prompt, output, known = (np.atleast_1d(array) for array in arrays)
        return cls(prompt, output, np.minimum(known, prompt - 1.0))

    def repeated(self, times: int) -> "Load":
        """The same loads repeated `times` times, as for several replicas."""
        return Load(*(np.tile(item, times) for item in (self.isl, self.osl, self.cached)))

    @property
    def rows(self) -> Floats:
        """Prompt tokens to compute: those not found in the prefix cache."""
        return self.isl - self.cached

    @property
    def scores(self) -> Floats:
        """Query-key pairs of one prompt: each token attends to the cached ones and to those before it."""
        return self.rows * (self.cached + self.rows / 2.0)

    @property
    def context(self) -> Floats:
        """Tokens in the KV cache of a running request, averaged over its decoding."""
        return self.isl + self.osl / 2.0


@dataclass(frozen=True, slots=True)
class ClosedClients:
    """Effect of the clients of a closed-loop benchmark on the time to first token.

    A benchmark starts all its clients at once and requests outputs of similar length, so that their prompts
    keep arriving together. A share `wave` of the clients stays synchronised in this way; each of them waits
    for half of the others' prompts.
    """

    seconds: float | None = None  # outside the engine; None: what a request of an open loop takes
    factor: float = 1.0
    wave: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, fit: EngineFit) -> "ClosedClients":
        """Clients that behave like those of the benchmarks that `fit` was fitted to."""
        return cls(fit["client_s"], fit["first_token"], fit["wave"], fit["ttft_scale"])


CALM = ClosedClients()


@dataclass(frozen=True)
class Steady:
    """Averages of a replica in steady state: times in seconds, rates per second. Arrays of N loads."""

    running: Floats  # requests that decode at once
    step_s: Floats  # an iteration of pure decode
    prompt_s: Floats  # what one prompt adds
    tpot_s: Floats
    ttft_s: Floats
    e2e_s: Floats
    request_rate: Floats  # completed per second
    overloaded: Floats  # 1 where more arrive than can be carried

    @property
    def busy(self) -> Floats:
        """Share of time spent on prompts, 0 to 1."""
        return np.minimum(self.request_rate * self.prompt_s, 1.0)


def seats(deployment: Deployment, capacity: KvCapacity | KvCapacities, load: Load) -> Floats:
    """Requests that can run at once: the engine's limit, or as many as fit the KV cache.

    An engine that reserves memory for the longest output holds isl + osl tokens for each request, others isl
    + osl / 2 on average; in both cases less the prompt tokens that are shared in the prefix cache.
    """
    whole = deployment.engine.admission == "reserve_longest"
    held = load.isl + (load.osl if whole else load.osl / 2.0) - load.cached
    fitting = np.floor(capacity.tokens / np.maximum(held, 1.0))
    return np.minimum(fitting, float(deployment.engine.max_sequences * deployment.attention_dp))


def _decode(
    cost: StepCost, deployment: Deployment, load: Load, running: Floats
) -> tuple[Floats, Floats, Floats]:
    """(seconds of a pure decode step, seconds that a prompt adds, seconds per output token)."""
    b = np.maximum(running, 1.0)
    contexts = b * load.context
    step = cost.step_s(0.0, 0.0, b, contexts)
    if deployment.engine.prefill == "mixed":
        prompt = np.maximum(cost.step_s(load.rows, load.scores, b, contexts) - step, 0.0)
    else:
        prompt = cost.step_s(load.rows, load.scores, 0.0, 0.0)
    yielded = deployment.speculation.tokens if deployment.speculation else 1.0
    return step, prompt, step / yielded + running / load.osl * prompt


def closed_loop(
    cost: StepCost,
    deployment: Deployment,
    capacity: KvCapacity | KvCapacities,
    load: Load,
    clients: Number,
    habits: ClosedClients = CALM,
) -> Steady:
    """Averages with `clients` requests in flight at all times, each replaced as it ends.

    TPOT = step + (b / osl) x seconds that a prompt adds. Requests beyond the seats wait for a seat.
    """
    wanted = np.asarray(clients, dtype=np.float64) * np.ones_like(load.isl)
    room = np.maximum(seats(deployment, capacity, load), 1.0)
    running = np.minimum(wanted, room)
    step, prompt, tpot = _decode(cost, deployment, load, running)
    apart = first_token_s(step, prompt, running / (load.osl * tpot))
    together = habits.wave * (running - 1.0) / 2.0 * prompt
    seconds = cost.request_s if habits.seconds is None else habits.seconds
    busy = running / (load.osl * tpot) * prompt
    unseen = unseen_s(deployment.engine.recv_interval, step, busy, running - 1.0)
    served = habits.scale * (seconds + habits.factor * apart + together) + unseen
    stay = served + (load.osl - 1.0) * tpot
    waiting = (wanted / running - 1.0) * stay
    ttft = served + waiting
    e2e = ttft + (load.osl - 1.0) * tpot
    return Steady(
        running, step, prompt, tpot, ttft, e2e, request_rate=wanted / e2e, overloaded=np.zeros_like(step)
    )


def open_loop(
    cost: StepCost,
    deployment: Deployment,
    capacity: KvCapacity,
    load: Load,
    rate: Number,
) -> Steady:
    """Averages with requests arriving at `rate` per second, independently of how fast they are served.

    The number in the system is rate x time in the system (Little's law), solved by bisection. Where full
    seats cannot serve the rate, the load is marked overloaded and shown at full seats.
    """
    arriving = np.asarray(rate, dtype=np.float64) * np.ones_like(load.isl)
    room = np.maximum(seats(deployment, capacity, load), 1.0)
    low, high = np.zeros_like(room), room
    for _ in range(ROUNDS):
        middle = (low + high) / 2.0
        _, _, tpot = _decode(cost, deployment, load, middle)
        enough = middle >= arriving * load.osl * tpot
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        if np.max((high - low) / np.maximum(high, 1e-3)) < 1e-4:
            break
    step, prompt, tpot = _decode(cost, deployment, load, high)
    over = high < arriving * load.osl * tpot * (1.0 - 1e-3)
    carried = np.where(over, high / (load.osl * tpot), arriving)
    unseen = unseen_s(deployment.engine.recv_interval, step, carried * prompt, high)
    ttft = cost.request_s + first_token_s(step, prompt, carried) + unseen
    e2e = ttft + (load.osl - 1.0) * tpot
    return Steady(
        high, step, prompt, tpot, ttft, e2e, request_rate=carried, overloaded=over.astype(np.float64)
    )


def greatest_throughput(
    cost: StepCost, deployment: Deployment, capacity: KvCapacity | KvCapacities, load: Load
) -> Steady:
    """Averages with every seat taken at all times: an offline run of many requests."""
    room = np.maximum(seats(deployment, capacity, load), 1.0)
    step, prompt, tpot = _decode(cost, deployment, load, room)
    rate = room / (load.osl * tpot)
    nothing = np.full_like(step, np.nan)
    return Steady(
        room, step, prompt, tpot, nothing, nothing, request_rate=rate, overloaded=np.zeros_like(step)
    )


def first_token_s(step: Floats, prompt: Floats, rate: Floats) -> Floats:
    """Mean seconds to the first token inside the engine, with independent arrivals at `rate` per second.

    The sum of the rest of the current iteration, the prompts queued before, the request's own prompt and its
    iteration. Prompts are served one after another between decodes: an M/D/1 queue whose utilisation is the
    share of time that prompts take.
    """
    busy = np.minimum(rate * prompt, 0.98)
    queue = busy / (2.0 * (1.0 - busy)) * prompt
    return np.asarray(1.5 * step + prompt + queue)


def unseen_s(interval: int, step: Floats, busy: Floats, others: Floats) -> Floats:
    """Mean seconds until a new request is noticed by an engine that polls every `interval` decode iterations.

    A request comes at any of these N with equal probability and waits for the (N - 1) / 2 that follow. There
    is no wait in the share of time `busy` of iterations with prompts, after which the engine polls, nor when
    nothing runs: `others` is the mean number of other requests, assumed to be Poisson.
    """
    waits = (interval - 1.0) / 2.0 * step
    return np.asarray(waits * (1.0 - np.minimum(busy, 1.0)) * (1.0 - np.exp(-np.maximum(others, 0.0))))
