"""Time that replicas take for a batch of requests that are all there at the start: a stepped fluid model.

A batch is not a steady load: prompts come first and fill the seats; at the end seats are empty while the last
long outputs are decoded; in between, where memory is the limit, admitted requests preempt others. Requests
are real numbers, a time step is a part of the longest output. A step admits what seats, KV memory and the
iterations' token budget allow, and lasts as long as its iterations, some with whole prompts and some that
only decode. Curves of many pipelines are computed together.

Where memory is full, a request is admitted as soon as its prompt fits, into room that is uniform between 0
and the size X of the waiting prompt. Until the next request finishes, the others grow by a mean output g,
exponentially distributed: the share g / X (1 - exp(-X / g)) of those admitted is preempted and recomputed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.deployment import Deployment
from tangram_sim.serving.stepcost import KvCapacities, KvCapacity, StepCost
from tangram_sim.serving.workload import Floats

# Lengths of a batch, in seconds, for which shares of steady throughput are kept.
BATCH_SECONDS: Floats = np.geomspace(0.1, 1e6, 97)
_STEPS = 12  # of the longest output
_STAYS = 5  # longest outputs until the fluid is steady
_FIRST = (0.0, 1 / 64, 1 / 16, 1 / 4, 1 / 2, 1.0)  # parts of the seats, one at least: none waits
_FILLED = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # parts of the seats that are priced
_ROWS = 14  # numbers of prompt tokens in an iteration that are priced
_SHORT, _LONG = 256.0, 4096.0  # tokens of context
_BESIDE = 512.0  # prompt tokens beside decodes
_FULL = 0.98  # of the KV memory


@dataclass(frozen=True)
class BatchCurve:
    """Batches of growing size on P pipelines: `requests` of the mix and the `seconds` they take (P x points).

    Beyond the last point each pipeline processes `rate` further requests/s [P].
    """

    requests: Floats
    seconds: Floats
    rate: Floats

    def requests_in(self, seconds: Floats) -> Floats:
        """Requests of the mix that are finished within each of these times, P x len(seconds)."""
        found = np.array(
            [
                np.interp(seconds, mine, count, left=0.0)
                for mine, count in zip(self.seconds, self.requests, strict=True)
            ]
        )
        beyond = np.maximum(seconds[None, :] - self.seconds[:, -1:], 0.0)
        return np.asarray(found + beyond * self.rate[:, None])

    def seconds_of(self, requests: float) -> Floats:
        """Seconds that a batch of `requests` takes on each pipeline, [P]."""
        found = np.array(
            [
                np.interp(requests, count, mine)
                for mine, count in zip(self.seconds, self.requests, strict=True)
            ]
        )
        return np.asarray(found + np.maximum(requests - self.requests[:, -1], 0.0) / self.rate)


def steady_shares(curve: BatchCurve, mixes: Floats, rps: Floats) -> Floats:
    """Share of its steady throughput that each pipeline reaches in batches of BATCH_SECONDS, P x seconds.

    `mixes` are the shares of request types, `rps` the steady requests/s of each type alone (both P x types).
    """
    each_s = np.divide(mixes, rps, out=np.zeros_like(mixes), where=rps > 0).sum(axis=1)
    return np.asarray(curve.requests_in(BATCH_SECONDS) * each_s[:, None] / BATCH_SECONDS)


def batch_curve(
    cost: StepCost, deployment: Deployment, capacity: KvCapacity | KvCapacities, load: Load, mixes: Floats
) -> BatchCurve:
    """Batch times of a mix of request types (`load` has one entry for each) on P pipelines.

    `cost` prices arrays of pipelines x loads; `mixes` (P x types) are shares that sum to 1.
    """
    return _Fluid(cost, deployment, capacity, load, mixes).curve()


class _Fluid:
    """Fluid model of P pipelines: requests by the time step in which they were admitted."""

    def __init__(
        self,
        cost: StepCost,
        deployment: Deployment,
        capacity: KvCapacity | KvCapacities,
        load: Load,
        mixes: Floats,
    ) -> None:
        engine = deployment.engine
        self.mixes, self.budget = mixes, float(engine.max_batched_tokens)
        self.read_s = cost.request_s  # of each request, all before any is answered
        self.most = float(engine.max_sequences * deployment.attention_dp)
        self.mixed = engine.prefill == "mixed"
        grown = load.osl if engine.admission == "reserve_longest" else load.osl / 2.0
        self.held = load.isl + grown - load.cached  # tokens in memory of a request, on average
        self.prompt = mixes @ load.rows
        self.pairs = mixes @ load.scores / self.prompt  # query-key pairs of a prompt token
        # The prompt that waits for room is met the more often the longer it is.
        self.waiting = np.minimum(mixes @ load.rows**2 / self.prompt, self.budget)
        outputs = mixes @ load.osl
        again = outputs / self.waiting * (1.0 - np.exp(-self.waiting / outputs))
        self.again = again if engine.exhaustion != "never" else np.zeros_like(again)
        # Half of the prompt that waits is room that nobody has.
        whole = np.broadcast_to(np.asarray(capacity.tokens, dtype=np.float64), outputs.shape)
        least = (mixes > 0) @ self.held / np.maximum((mixes > 0).sum(axis=1), 1)
        self.tokens = np.maximum(whole - self.waiting / 2.0, np.minimum(whole, least))
        lengths = mixes * load.osl
        self.seats = np.maximum(
            np.minimum(self.most, self.tokens * lengths.sum(axis=1) / (lengths @ self.held)), 1.0
        )
        self.longest = np.where(mixes > 0, load.osl, 0.0).max(axis=1)
        self.step = self.longest / _STEPS  # iterations
        age = np.arange(_STEPS + 1)
        # Of the requests of each type admitted so many steps ago: the part of the step that they still run.
        alive = np.clip(load.osl / self.step[:, None, None] - age[None, :, None], 0.0, 1.0)
        self.running = alive @ mixes[:, :, None]
        context = load.isl + np.minimum((age[:, None] + 0.5) * self.step[:, None, None], load.osl)
        self.running = self.running[:, :, 0]  # P x ages
        self.context = ((alive * context) @ mixes[:, :, None])[:, :, 0]
        self.memory = (alive * self.held) @ mixes[:, :, None]
        self.memory = self.memory[:, :, 0]
        self._price(cost)

    def _price(self, cost: StepCost) -> None:
        """Price iterations of all pipelines in one call: decodes by share of seats, prompts by tokens."""
        self.filled = np.array(_FILLED)
        b = np.maximum(self.seats[:, None] * self.filled, 1.0)
        knots = np.geomspace(1.0, self.budget + self.most + 1.0, _ROWS)
        self.knots = np.log(knots)
        beside = 1.0 if self.mixed else 0.0
        rows = np.broadcast_to(np.maximum(knots - beside, 0.5), (len(b), _ROWS))
        ones, none = np.full_like(rows, beside), np.zeros_like(b)
        parts = [
            (none, none, b, b * _SHORT),
            (none, none, b, b * _LONG),
            (rows, 0.0 * rows, ones, ones),
            (rows[:, -1:], rows[:, -1:] * _LONG, ones[:, -1:], ones[:, -1:]),
            (none + _BESIDE, none, b, b * _SHORT),
            (none + _BESIDE, none, b, b * _LONG),
        ]
        columns = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
        priced = cost.step_s(*(column.ravel() for column in columns)).reshape(len(b), -1)
        ends = np.cumsum([part[0].shape[1] for part in parts])[:-1]
        near, far, self.rows_s, long, short, reached = np.split(priced, ends, axis=1)
        self.slope = np.maximum(far - near, 0.0) / (b * (_LONG - _SHORT))
        self.base = near - self.slope * b * _SHORT
        self.score = np.maximum(long[:, 0] - self.rows_s[:, -1], 0.0) / (rows[:, -1] * _LONG)
        self.beside_context = np.zeros(len(b))
        self.beside = np.zeros_like(b)
        if self.mixed:
            gain = np.maximum(reached - short, 0.0)[:, -1]
            self.beside_context = gain / (b[:, -1] * (_LONG - _SHORT))
            alone = np.stack([self._rows(_BESIDE + b[:, j]) for j in range(b.shape[1])], axis=1)
            self.beside = short - self.beside_context[:, None] * b * _SHORT - alone

    def _rows(self, tokens: Floats) -> Floats:
        return _between(self.rows_s, np.log(np.maximum(tokens, 1.0)), self.knots)

    def _decoding(self, running: Floats, contexts: Floats) -> Floats:
        """Seconds of an iteration without prompts; 0 where nothing runs."""
        filled = (running.T / self.seats).T
        slope = _between(self.slope, filled, self.filled)
        seconds = _between(self.base, filled, self.filled) + contexts * slope
        return np.where(running > 1e-9, seconds, 0.0)

    def _with_prompts(self, rows: Floats, running: Floats, contexts: Floats) -> Floats:
        """Seconds of an iteration with `rows` prompt tokens; no decodes where engines do not mix."""
        own = self._rows(rows + running if self.mixed else rows) + self.score * self.pairs * rows
        if not self.mixed:
            return own
        return np.asarray(
            own + self.beside_context * contexts + _between(self.beside, running / self.seats, self.filled)
        )

    def _step_s(self, prompts: Floats, at_once: Floats, running: Floats, contexts: Floats) -> Floats:
        """Mean seconds of an iteration with `prompts` prompt tokens on average, in chunks of `at_once`."""
        rows = np.maximum(prompts, at_once)
        part = prompts / rows
        decoding = self._decoding(running, contexts)
        beside = decoding * (1.0 - part) if self.mixed else decoding
        return part * self._with_prompts(rows, running, contexts) + beside

    def curve(self) -> BatchCurve:
        """The curve from batches of one request to batches that are steady for most of their time."""
        pipelines, ages = self.running.shape
        few, few_s = self._first()
        admitted = np.zeros((pipelines, ages))
        histories: list[Floats] = []
        clock, total = np.zeros(pipelines), np.zeros(pipelines)
        counts, clocks = [], []
        for step in range(_STEPS * _STAYS):
            admitted = np.concatenate([np.zeros((pipelines, 1)), admitted[:, :-1]], axis=1)
            free = self.tokens - (admitted * self.memory).sum(axis=1)
            running = (admitted * self.running).sum(axis=1)
            entering = np.minimum(free / self.memory[:, 0], (self.most - running) / self.running[:, 0])
            most_rows = self.step * np.maximum(self.budget - running, 0.0)
            entering = np.maximum(np.minimum(entering, most_rows / self.prompt), 0.0)
            admitted[:, 0] = entering
            full = (admitted * self.memory).sum(axis=1) > _FULL * self.tokens
            rows = entering * self.prompt / self.step
            if step:
                rows = rows * (1.0 + self.again * full)
            # At the start prompts fill whole iterations, later they come one by one.
            at_once = self.waiting if step else np.full(pipelines, self.budget)
            seconds = self._step_s(
                rows, at_once, (admitted * self.running).sum(axis=1), (admitted * self.context).sum(axis=1)
            )
            clock, total = clock + self.step * seconds, total + entering
            counts.append(total)
            clocks.append(clock)
            histories.append(admitted)
        drain = self._drain_s(np.stack(histories, axis=1))
        requests = np.concatenate([few, np.stack(counts, axis=1)], axis=1)
        seconds = np.concatenate([few_s, np.stack(clocks, axis=1) + drain], axis=1)
        added_s = (clocks[-1] - clocks[-1 - _STEPS]) / (counts[-1] - counts[-1 - _STEPS])
        requests = np.maximum.accumulate(requests, axis=1)
        seconds = np.maximum.accumulate(seconds, axis=1) + self.read_s * requests
        return BatchCurve(requests, seconds, 1.0 / (added_s + self.read_s))

    def _first(self) -> tuple[Floats, Floats]:
        """(requests, seconds) of batches that need no queue: all prompts first, then the outputs."""
        room = np.minimum(self.tokens / (self.mixes @ self.held), self.most)
        counts, seconds = [], []
        for part in _FIRST:
            requests = np.maximum(part * room, np.minimum(1.0, room))
            iterations = np.maximum(1.0, requests * self.prompt / self.budget)
            rows = requests * self.prompt / iterations
            half = requests / 2.0
            time_s = iterations * self._with_prompts(rows, half, half * self.prompt)
            seconds.append(time_s + self._drain_s(self._alone(requests), first=0)[:, 0])
            counts.append(requests)
        return np.stack(counts, axis=1), np.stack(seconds, axis=1)

    def _alone(self, requests: Floats) -> Floats:
        """An admission history in which all these requests were admitted in the latest step."""
        history = np.zeros((len(requests), 1, _STEPS + 1))
        history[:, 0, 0] = requests
        return history

    def _drain_s(self, histories: Floats, first: int = 1) -> Floats:
        """Seconds until all running requests are finished when no more are admitted: P x points of history.

        `first`: number of steps to skip before the first one counted; 0 right after prompts were computed.
        """
        total = np.zeros(histories.shape[:2])
        ages = histories.shape[2]
        for later in range(first, ages):
            seen = histories[:, :, : ages - later]
            running = np.einsum("pka,pa->pk", seen, self.running[:, later:])
            contexts = np.einsum("pka,pa->pk", seen, self.context[:, later:])
            total += self.step[:, None] * self._decoding(running, contexts)
        return total


def _between(table: Floats, at: Floats, knots: Floats) -> Floats:
    """Linear interpolation of each row of `table` at its own positions `at`, between common knots."""
    places = at.reshape(len(table), -1)
    place: NDArray[np.int64] = np.clip(np.searchsorted(knots, places) - 1, 0, len(knots) - 2)
    weight = np.clip((places - knots[place]) / (knots[place + 1] - knots[place]), 0.0, 1.0)
    low, high = (np.take_along_axis(table, place + more, axis=1) for more in (0, 1))
    return np.asarray(low + weight * (high - low)).reshape(at.shape)
