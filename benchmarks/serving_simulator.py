"""Requests a CPU-second of the simulator of a service: `python -m benchmarks.serving_simulator [TRACE.csv]`.

Lengths are the trace's, or drawn where none is given (mean 1155 in, 211 out: those of Azure's conversations).
"""

import sys
import time
from pathlib import Path

import numpy as np

from tangram_sim.serving.batching import BatchingRules
from tangram_sim.serving.fleet import FAST, REFERENCE, FleetReplica, play
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.plain_tables import linear_table
from tangram_sim.serving.router import RoundRobin
from tangram_sim.serving.synthetic import LengthMix, arrivals, synthetic
from tangram_sim.serving.trace_file import read_trace
from tangram_sim.serving.workload import plain
from tangram_sim.studies.serving_simulation import describe_run

_TABLE = linear_table(256, step_s=0.012, decode_s=5e-5, context_s=2e-8, prompt_s=4e-5, score_s=1e-10)
_RULES = BatchingRules(8192, 256, 16, 28_000, True, "whole_prompt", "recompute", prefix_cache=True)


def main(trace: Path | None) -> None:
    """Play and describe 100,000 requests at 2 and 6 a second; the reference plays a fiftieth of them."""
    count = 100_000
    lengths = synthetic(count, 1.0, [LengthMix(1155, 211, cv=1.0)], 0) if trace is None else read_trace(trace)
    for rate in (2.0, 6.0):
        for engine, size, runs in ((FAST, count, 5), (REFERENCE, count // 50, 1)):
            work = plain(
                arrivals(size, rate, 1),
                np.resize(lengths.input_tokens, size),
                np.resize(lengths.output_tokens, size),
            )
            speeds = []
            for _ in range(
                runs
            ):  # the first may compile; all but the fastest had more of the machine's noise
                begun = time.process_time()
                played = play([FleetReplica("one", _RULES, _TABLE)], work, RoundRobin(), engine=engine)
                found = describe_run(played, engine, "round_robin", Slo())
                speeds.append(size / (time.process_time() - begun))
            print(
                f"{engine} at {rate:g}/s: {max(speeds):,.0f} requests per CPU-second (least of {runs} runs: "
                f"{min(speeds):,.0f}), {found.events / size:.2f} events a request, "
                f"TTFT {found.ttft_s.p50:.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
