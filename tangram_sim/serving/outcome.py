"""Summary of a simulation: latencies, tokens, Little's law, goodput, cost."""

from dataclasses import dataclass
from math import inf

import numpy as np

from tangram_sim.serving.fleet import PlayedService
from tangram_sim.serving.workload import Floats
from tangram_sim.units import HOUR_S


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency objective: most seconds to the first token, and per further token (mean); inf: no limit."""

    ttft_s: float = inf
    tpot_s: float = inf


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles, in seconds, over the requests that were served; 0 where there are none."""

    mean: float
    p50: float
    p90: float
    p99: float


def spread(seconds: Floats) -> Spread:
    """Mean and percentiles of an array of seconds."""
    if not len(seconds):
        return Spread(0.0, 0.0, 0.0, 0.0)
    ordered = np.sort(seconds)  # once: numpy's own percentiles partition the column for each of them
    places = np.array([0.5, 0.9, 0.99]) * (len(ordered) - 1)
    below = places.astype(np.int64)
    above = np.minimum(below + 1, len(ordered) - 1)
    p50, p90, p99 = ordered[below] + (places - below) * (ordered[above] - ordered[below])
    return Spread(float(seconds.mean()), float(p50), float(p90), float(p99))


class ServiceOutcome:
    """Results of one simulation; a request counts as served when its last token was delivered."""

    def __init__(self, played: PlayedService) -> None:
        self.played = played
        self.served = np.flatnonzero(~np.isnan(played.ledger.finish_s))
        work, ledger = played.workload, played.ledger
        arrival = work.arrival_s[self.served]
        self.ttft_s = ledger.first_s[self.served] - arrival
        self.e2e_s = ledger.finish_s[self.served] - arrival
        self.queue_s = ledger.start_s[self.served] - arrival
        more = work.output_tokens[self.served] - 1
        decode_s = ledger.finish_s[self.served] - ledger.first_s[self.served]
        self.tpot_s = np.divide(decode_s, more, out=np.zeros_like(decode_s), where=more > 0)
        self.several = more > 0  # a request of one output token has no time per further one

    @property
    def begin_s(self) -> float:
        """Arrival time of the first request, seconds."""
        return float(self.played.workload.arrival_s[0])

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last finish."""
        return max(0.0, self.played.end_s - self.begin_s)

    def rate(self, count: float) -> float:
        """`count` divided by the run's duration, per second."""
        return count / self.duration_s if self.duration_s > 0 else 0.0

    def good(self, slo: Slo) -> int:
        """Number of requests served within the latency objective."""
        late = (self.ttft_s > slo.ttft_s) | (self.several & (self.tpot_s > slo.tpot_s))
        return int((~late).sum())

    def little(self) -> tuple[float, float]:
        """Both sides of Little's law, in request-seconds, over the requests served.

        The integral over time of the number of requests in the system, and the sum of their times in the
        system.
        """
        arrival = self.played.workload.arrival_s[self.served]
        finish = np.sort(self.played.ledger.finish_s[self.served])
        times = np.concatenate([arrival, finish])
        change = np.concatenate([np.ones(len(arrival)), -np.ones(len(finish))])
        order = np.argsort(times, kind="stable")
        inside = np.cumsum(change[order])
        area = float((inside[:-1] * np.diff(times[order])).sum()) if len(times) else 0.0
        return area, float(self.e2e_s.sum())

    def up_s(self, place: int) -> float:
        """Seconds for which an instance is paid: from its start until it goes down or the run ends."""
        presence = self.played.instances[place].presence
        end_s = min(presence.down_s, max(self.played.end_s, self.begin_s))
        return max(0.0, end_s - max(presence.up_s, min(self.begin_s, presence.up_s)))

    @property
    def cost_usd(self) -> float:
        """Price of all instances for their time up, USD."""
        return sum(
            self.up_s(place) * instance.given.usd_per_hour / HOUR_S
            for place, instance in enumerate(self.played.instances)
        )
