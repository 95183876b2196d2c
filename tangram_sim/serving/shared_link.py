"""Arrival times of transfers that share the bandwidth of one link equally (processor sharing)."""

from heapq import heappop, heappush

import numpy as np

from tangram_sim.serving.workload import Floats


def arrivals_over(ready_s: Floats, size_bytes: Floats, bytes_per_s: float, latency_s: float) -> Floats:
    """Arrival times, seconds, of transfers that are ready at `ready_s` and share a link.

    While k transfers are active each gets 1/k of the bandwidth. Virtual time counts the bytes that each
    active transfer has received: a transfer of s bytes that begins at virtual time v ends at v + s, whichever
    others begin or end.
    """
    done = np.empty(len(ready_s))
    order = np.argsort(ready_s, kind="stable")
    now_s, virtual = 0.0, 0.0
    under_way: list[tuple[float, int]] = []

    def run_until(until_s: float) -> None:
        nonlocal now_s, virtual
        while under_way:
            ends, which = under_way[0]
            end_s = now_s + (ends - virtual) * len(under_way) / bytes_per_s
            if end_s > until_s:
                virtual += (until_s - now_s) * bytes_per_s / len(under_way)
                break
            now_s, virtual = end_s, ends
            heappop(under_way)
            done[which] = end_s + latency_s
        now_s = max(now_s, until_s) if until_s < float("inf") else now_s

    for which in order.tolist():
        run_until(float(ready_s[which]))
        heappush(under_way, (virtual + float(size_bytes[which]), which))
    run_until(float("inf"))
    return done
