"""Closed-form rollout seconds for given replicas, used to rank them before simulation."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tangram_sim.post_training.plan import RolloutReplicas
from tangram_sim.post_training.rollout import fleet_of, speed
from tangram_sim.rl_planners.problem import RlProblem
from tangram_sim.serving.fleet import FleetReplica


@dataclass
class EngineEstimates:
    """Closed forms of one problem's rollout. Methods raise InfeasibleError where an engine does not fit."""

    problem: RlProblem
    _fastest: dict[RolloutReplicas, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def _drawn(self) -> tuple[float, float]:
        """(total tokens, longest) of the responses in the simulated step, without first tokens."""
        work = self.problem.work
        lengths = work.lengths.draw(work.prompts, work.samples, 0)
        return float(lengths.sum() - lengths.size), float(lengths.max()) - 1.0

    def burst_s(self, replicas: tuple[RolloutReplicas, ...]) -> float:
        """Seconds of a burst: all tokens at the total speed, then the rest of the longest response alone."""
        work = self.problem.work
        rate, last_s = self._speeds(replicas, work.sequences)
        longest = work.lengths.longest(work.sequences) - work.lengths.mean
        return work.sequences * work.lengths.mean / rate + longest * last_s

    def least_burst_s(self, replicas: tuple[RolloutReplicas, ...]) -> float:
        """Lower bound in seconds on a burst, for any dispatch of responses."""
        rate, alone_s = 0.0, float("inf")
        for replica in replicas:
            fastest, token_s = self._fastest_of(replace(replica, count=1))
            rate, alone_s = rate + replica.count * fastest, min(alone_s, token_s)
        tokens, longest = self._drawn
        return max(tokens / rate, longest * alone_s) * self.problem.work.generated_share

    def steady_s(self, replicas: tuple[RolloutReplicas, ...], steps: int) -> float:
        """Seconds per step of continuous rollout: tokens over speed, or the longest response over `steps`."""
        work = self.problem.work
        rate, last_s = self._speeds(replicas, work.sequences * steps)
        longest_s = work.lengths.longest(work.sequences) * last_s
        return max(work.sequences * work.lengths.mean / rate, longest_s / steps)

    def _speeds(self, replicas: tuple[RolloutReplicas, ...], running: int) -> tuple[float, float]:
        """(tokens per second of all replicas, seconds per token of a lone request on the slowest)."""
        work = self.problem.work
        context = work.prompt_tokens + work.lengths.mean / 2.0
        each = running / sum(replica.count for replica in replicas)
        engines = [(replica.count, self._engine(replica)) for replica in replicas]
        rate = sum(count * speed(fleet_replica, each, context) for count, fleet_replica in engines)
        return rate, max(fleet_replica.table.decode_step_s(1, context) for _, fleet_replica in engines)

    def _engine(self, replicas: RolloutReplicas) -> FleetReplica:
        extra = self.problem.overheads
        scales = (extra.rollout_scale, extra.rollout_iteration_s)
        return fleet_of(self.problem.work, [replace(replicas, count=1)], self.problem.hwdb, *scales)[0]

    def _fastest_of(self, rollout_replicas: RolloutReplicas) -> tuple[float, float]:
        """(highest tokens per second of one replica, least seconds per token of a lone response)."""
        if rollout_replicas not in self._fastest:
            table = self._engine(rollout_replicas).table
            most = min(len(table.decode_s) - 1, self.problem.work.sequences)
            running = np.arange(1, most + 1)
            contexts = running * self.problem.work.prompt_tokens
            each_s = table.decode_s[1 : most + 1] + table.context_s[1 : most + 1] * contexts
            self._fastest[rollout_replicas] = float((running / each_s).max()), float(each_s[0])
        return self._fastest[rollout_replicas]
