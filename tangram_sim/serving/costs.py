"""`StepCost` computed from a model's layers: forward passes of a replica on its GPUs, with fitted factors."""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tangram_sim.cost.collectives import group
from tangram_sim.cost.kernels import Floats, Number
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.calibration import EngineFit
from tangram_sim.serving.deployment import Deployment, ReplicaStage
from tangram_sim.serving.forward import ForwardTimes, IterationWork, Ranks, block_times, end_times
from tangram_sim.serving.stepcost import StepCost, StepTable

PARTS = ("gemm", "experts", "cache", "attention", "memory", "reduce", "exchange")
SHORT, LONG = 1024.0, 2048.0  # contexts at which a table's slope is taken
ROWS = 1024.0  # prompt rows beside which it is said what decodes take


def sent_s(size_bytes: Floats, bytes_per_s: Number, latency_s: Number) -> Floats:
    """Seconds of point-to-point transfers: size / bandwidth + latency; 0 where nothing is sent."""
    seconds = latency_s + size_bytes / np.maximum(bytes_per_s, 1.0)
    return np.where(size_bytes > 0, seconds, 0.0)


def ranks_of(deployment: Deployment, stage: ReplicaStage, hwdb: Hwdb) -> Ranks:
    """Inputs for the cost of one rank of a stage: GPU, parallel degrees, communication groups."""
    island = stage.island
    wide, split = np.array([stage.tp]), np.array([deployment.ep])
    stride = np.maximum(stage.tp * deployment.attention_dp // split, 1)
    return Ranks(
        model=deployment.model,
        precision=deployment.precision,
        gpu=island.gpu,
        hwdb=hwdb,
        tp=stage.tp,
        attention_dp=deployment.attention_dp,
        ep=deployment.ep,
        tp_group=group(island, wide, np.ones_like(wide), hwdb),
        ep_group=group(island, split, stride, hwdb),
        one_shot=island.intra.kind in ("nvlink", "xgmi") and island.nodes == 1,
    )


@dataclass(frozen=True)
class LayerStepCost(StepCost):
    """Costs of a deployment's iterations, as sums over the layers of the model."""

    deployment: Deployment
    hwdb: Hwdb
    fit: EngineFit
    bounded: bool = field(default=True, kw_only=True)  # whether arithmetic outruns no measured kernel

    @cached_property
    def _stages(self) -> tuple[tuple[Ranks, Counter[object], bool, bool], ...]:
        model = self.deployment.model
        found = []
        for stage in self.deployment.stages:
            blocks: Counter[object] = Counter(model.blocks[stage.first : stage.end])
            ranks = ranks_of(self.deployment, stage, self.hwdb)
            found.append((ranks, blocks, stage.first == 0, stage.end == model.layers))
        return tuple(found)

    def passes(self, work: IterationWork) -> list[ForwardTimes]:
        """Seconds of one forward pass of each stage, split into parts (see ForwardTimes)."""
        found = []
        for ranks, blocks, first, last in self._stages:
            total = end_times(ranks, work, first, last)
            for block, count in blocks.items():
                total = total + block_times(ranks, block, work).times(count)  # type: ignore[arg-type]
            found.append(total)
        return found

    def device_s(self, times: ForwardTimes) -> Floats:
        """Seconds of GPU time of one pass of one stage: parts times fitted factors, and fixed costs."""
        seconds = self.fit["kernel_s"] * times.kernels + self.fit["handshake_s"] * times.reductions
        for part in PARTS:
            spent = self.fit[part] * getattr(times, part)
            if part == "experts":  # their arithmetic, as kernels inside the engine were measured
                if self.deployment.block_scaled:
                    spent = spent * self.fit["experts_blocks"]
                spent = np.maximum(spent, self.fit["experts_floor"] * times.experts_least_s)
            seconds = seconds + spent
        return np.asarray(seconds)

    def work(self, rows: Floats, scores: Floats, decodes: Floats, contexts: Floats) -> IterationWork:
        """One rank's share of one microbatch; pure decode is padded to the next batch with a CUDA graph."""
        engine, speculation = self.deployment.engine, self.deployment.speculation
        share = float(self.deployment.attention_dp * self.deployment.pp)
        mine = np.where(decodes > 0, np.maximum(decodes / share, 1.0), 0.0)
        padding = np.where(rows > 0, 0.0, graph_bucket(mine, engine.graph_batch) - mine)
        verified = speculation.drafts + 1.0 if speculation else 1.0
        return IterationWork(rows / share, scores / share, mine, contexts / share, verified, padding)

    def _replica_s(self, work: IterationWork) -> tuple[Floats, Floats]:
        """(seconds in which all microbatches in flight pass all stages, those of their arithmetic alone).

        With p stages there are p microbatches: the time is that of one pass through all stages, or p times
        the slowest stage where that is longer.
        """
        passes = self.passes(work)
        stages = [self.device_s(times) for times in passes]
        # Beyond the captured batches the host launches kernel by kernel, ahead of the GPU where it can.
        eager = work.tokens > self.deployment.engine.graph_batch
        launched = self.fit["launch_s"]
        stages = [
            np.where(eager, np.maximum(seconds, times.kernels * launched), seconds)
            for seconds, times in zip(stages, passes, strict=True)
        ]
        # Decodes read their caches after the products, not beside them, no slower than was fitted.
        cache = self.fit["cache"] * min(self.fit["time_scale"], 1.0)
        inside = self.fit["experts_floor"] - 1.0  # arithmetic of experts as measured inside the engine
        least = [times.least_s + inside * times.experts_bound_s + cache * times.cache for times in passes]
        if len(stages) == 1:
            return stages[0], least[0]
        hops = [self._hop_s(work, stage) for stage in range(len(stages) - 1)]
        alone = np.sum([*stages, *hops], axis=0)
        slowest: Floats = np.maximum(alone, len(stages) * np.max(stages, axis=0))
        return slowest, np.max(least, axis=0) * len(stages)

    def _hop_s(self, work: IterationWork, stage: int) -> Floats:
        """Seconds to send the activations of one microbatch from a stage to the next."""
        size = work.tokens * self.deployment.model.hidden * self.deployment.precision.activation_bytes
        return sent_s(size, *self.hop_of(self.deployment, stage))

    def hop_of(self, deployment: Deployment, stage: int) -> tuple[float, float]:
        """(bytes/s, latency) to the next stage: links of a node that both fit, else the slower network."""
        here, there = (deployment.stages[index].island for index in (stage, stage + 1))
        if here.gpu.name == there.gpu.name and here.gpus + there.gpus <= 8:
            return here.intra.bytes_per_s, here.intra.latency_s
        rate = min(
            side.nic_bytes_per_s / side.gpus_per_node * self.hwdb.network_efficiency.value
            for side in (here, there)
        )
        return rate, max(here.nic_latency_s, there.nic_latency_s)

    def step_s(self, rows: Number, scores: Number, decodes: Number, contexts: Number) -> Floats:
        """Seconds of an iteration: decodes, the additional time of prompts, and exposed host work."""
        busy, least, prepared = self._parts_s(rows, scores, decodes, contexts)
        # Factors fitted to steady loads, which show a part of what prompts take, outrun no measured kernel.
        busy = np.maximum(busy, least) if self.bounded else busy
        overlaps = self.deployment.engine.async_scheduling
        seconds = np.maximum(busy, prepared) if overlaps else busy + prepared
        some = np.broadcast_to((np.asarray(rows) > 0) | (np.asarray(decodes) > 0), np.shape(seconds))
        return np.where(some, seconds, 0.0)

    def least_s(self, rows: Number, scores: Number, decodes: Number, contexts: Number) -> Floats:
        """Lower bound on an iteration's seconds whatever the fitted factors: arithmetic as measured."""
        _, least, prepared = self._parts_s(rows, scores, decodes, contexts)
        return least if self.deployment.engine.async_scheduling else least + prepared

    def _parts_s(
        self, rows: Number, scores: Number, decodes: Number, contexts: Number
    ) -> tuple[Floats, Floats, Floats]:
        """(seconds of GPU and exposed host work, their lower bound, host seconds that may overlap)."""
        n, pairs, b, context = np.broadcast_arrays(
            *(np.asarray(item, dtype=np.float64) for item in (rows, scores, decodes, contexts))
        )
        zero = np.zeros_like(b)
        alone, least = self._replica_s(self.work(zero, zero, b, context))
        device = np.where(b > 0, alone, 0.0)
        if np.any(n > 0):
            both, least = self._replica_s(self.work(n, pairs, b, context))
            added = np.maximum(both - device, 0.0) * self.fit["prefill"]
            device = device + np.where(n > 0, added, 0.0)
        requests = b / self.deployment.attention_dp
        host = "hidden" if self.deployment.engine.async_scheduling else "serial"
        prepared = self.fit[f"{host}_host_s"] + self.fit[f"{host}_request_s"] * requests
        exposed = self.fit["host_s"] + self.fit["request_s"] * requests
        busy = (device + exposed) * self.fit["time_scale"]
        # Groups are arrays of one layout; so are what comes of them for a single iteration.
        shape = np.shape(n)
        return busy.reshape(shape), np.reshape(least, shape), np.reshape(prepared, shape)

    @property
    def request_s(self) -> float:
        """Seconds of the server per request outside iterations: HTTP, tokenizer, first byte."""
        return self.fit["server_s"]

    def table(self, most_decodes: int, most_rows: int) -> StepTable:
        """The step table: slopes from two contexts per batch size, prompt sizes a factor of 1.4 apart."""
        b = np.arange(1, most_decodes + 1, dtype=np.float64)
        window = self._window
        ends = (window + SHORT, window + LONG)
        far = [self.step_s(0.0, 0.0, b, b * end) for end in ends]
        free = replace(self, bounded=False)  # prompts' bound is a line of its own
        slope = np.maximum(far[1] - far[0], 0.0) / (b * (ends[1] - ends[0]))
        start = self.step_s(0.0, 0.0, b, b)
        reach = far[0] - slope * b * ends[0]
        inner = np.maximum(reach - start, 0.0) / (b * window) if window else np.zeros_like(b)
        base = start - (slope + inner) * b
        most = float(most_decodes + most_rows)
        knots = np.unique(np.round(np.geomspace(1.0, most, 2 + int(np.log(most) / np.log(1.4)))))
        # Where prompts share iterations with decodes, what they add is on top of a decode's own pass.
        beside = 1.0 if self.deployment.engine.prefill == "mixed" else 0.0
        alone = np.maximum(knots - beside, 0.0)
        rows_s = free.step_s(alone, 0.0, beside, beside)
        # As an array of one: stages of a pipeline are stacked.
        long = free.step_s(np.array([most - beside]), most * LONG, beside, beside)[0]
        score = float(long - rows_s[-1]) / (most * LONG)
        item = np.zeros(1)
        mixed, mixed_window, beside_s = 0.0, 0.0, np.zeros(most_decodes)
        if beside:
            near, short, reached = (free.step_s(ROWS, 0.0, b, b * end) for end in (1.0, *ends))
            mixed = float(np.maximum(reached - short, 0.0)[-1]) / (b[-1] * (ends[1] - ends[0]))
            if window:
                reads = float((short - near)[-1]) - mixed * b[-1] * (ends[0] - 1.0)
                mixed_window = max(reads, 0.0) / (b[-1] * (window - 1.0))
            beside_s = near - (mixed + mixed_window) * b - np.interp(ROWS + b, knots, rows_s)
            beside_s = np.maximum.accumulate(np.maximum(beside_s, 0.0))  # more decodes never take less
        return StepTable(
            decode_s=np.concatenate([item, base]),
            context_s=np.concatenate([item, slope]),
            window_s=np.concatenate([item, inner]),
            window_tokens=window,
            row_knots=knots,
            rows_s=rows_s,
            score_s=max(score, 0.0),
            mixed_context_s=mixed,
            mixed_window_s=mixed_window,
            beside_s=np.concatenate([item, beside_s]),
            least_s=self._least(most, most_decodes),
            request_s=self.request_s,
        )

    def _least(self, rows: float, decodes: float) -> Floats:
        """`StepTable.least_s`, computed from iterations of up to `rows` prompt rows and `decodes` decodes."""
        window = self._window
        near, far = window + SHORT, window + LONG
        # Half the rows, half the decodes, then pairs and contexts at two lengths beyond the window.
        none = [rows, 0.0, decodes, decodes]
        lines = [none, [rows / 2, *none[1:]], [rows, 0.0, decodes / 2, decodes]]
        lines += [[rows, rows * end, decodes, decodes] for end in (near, far)]
        lines += [[rows, 0.0, decodes, decodes * end] for end in (near, far)]
        plain = LayerStepCost(self.deployment, self.hwdb, self.fit)
        full, fewer, less, pairs, more, held, longer = plain.least_s(*np.array(lines).T)
        row, decode = (full - fewer) / (rows / 2), (full - less) / (decodes / 2)
        score, context = (more - pairs) / (rows * SHORT), (longer - held) / (decodes * SHORT)
        seen = inner = 0.0
        if window:
            seen = (pairs - full - score * rows * near) / (rows * window)
            inner = (held - full - context * decodes * (near - 1.0)) / (decodes * (window - 1.0))
        item = full - row * rows - (decode + context + inner) * decodes
        # Under a power cap arithmetic of prompts takes as much longer as a full iteration of them does.
        prompts = (np.array([rows]), rows * LONG, 0.0, 0.0)
        capped = float((self.step_s(*prompts) / plain.step_s(*prompts))[0])
        return np.array([item, capped * row, capped * score, decode, context, capped * seen, inner])

    @property
    def _window(self) -> int:
        """Tokens in the shortest attention window of any layer; 0: no layer has a window."""
        every = (block.attention for block in self.deployment.model.blocks)
        return min((one.window for one in every if one.window and not one.linear), default=0)


def graph_bucket(batches: Floats, largest: int) -> Floats:
    """For each batch the size of the smallest CUDA graph that holds it; itself beyond the `largest` graph.

    Engines capture graphs for 1, 2, 4, then multiples of 8 (of 16 from 256 on).
    """
    small = np.where(batches <= 2, np.ceil(batches), np.where(batches <= 4, 4.0, np.ceil(batches / 8) * 8))
    large = np.where(batches > 256, np.ceil(batches / 16) * 16, small)
    return np.where(batches > largest, batches, np.minimum(large, np.maximum(largest, batches)))


def filled_graph(batches: Floats) -> Floats:
    """For each batch size, the largest CUDA graph not above it (see `graph_bucket`)."""
    step = np.where(batches < 4, np.where(batches < 2, 1.0, 2.0), np.where(batches < 8, 4.0, 8.0))
    step = np.where(batches >= 256, 16.0, step)
    return np.asarray(np.floor(batches / step) * step)
