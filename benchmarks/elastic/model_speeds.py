"""Speeds from the model alone against measured ones: `python -m benchmarks.elastic.model_speeds`.

GPT-2 1.5B in 16-bit numbers on n nodes of one V100 (p3.2xlarge, 10 Gb/s): the 47 measured layouts of
policies/parcae_throughput.csv, predicted with nothing fitted to them; then both tables live through four
windows of the same 11.4 h of spot nodes. Regret: what the layouts that the prediction picks lose at measured
speeds. The runs are those of a fork of DeepSpeed (github:JF-D/Parcae), hence the stack.
"""

import argparse
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median

from tangram_sim.availability import Availability
from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.reliability.spot.engine import replay
from tangram_sim.reliability.spot.policies import Free, Restart
from tangram_sim.reliability.spot.speeds import LayoutTable, read_speeds
from tangram_sim.reliability.spot.tracefile import read_trace
from tangram_sim.reliability.spot.transitions import free_transitions, read_transitions
from tangram_sim.studies import api
from tangram_sim.training.job import Job

_SHARED = Path(__file__).parents[3] / "shared" / "data" / "elastic"
MODEL, TABLE, SEQ = "gpt2-xl", "gpt-1.5b", 1024
WINDOWS_H = {"hh": (5.5, 6.5), "hl": (1.5, 2.5), "ll": (10.0, 11.0), "all": (0.0, 12.0)}


def predicted(measured: LayoutTable, hwdb: Hwdb, recompute: str, stack: str) -> LayoutTable:
    """The same layouts at predicted speeds."""
    model, node = load_model(MODEL), hwdb.node("p3.2xlarge")
    batch, microbatch = int(measured.samples_per_step), int(measured.microbatch)
    rates = {}
    for pipelines, stages in measured.rates:
        cluster = Cluster("spot", (NodeGroup("g0", pipelines * stages, node),))
        share = batch // (microbatch * pipelines) * microbatch * pipelines  # what the pipelines share evenly
        job = Job(share, SEQ, "fp16", "adamw", stack=stack)
        layout = Uniform(pp=stages, dp=pipelines, micro_batch=microbatch, recompute=recompute)
        rates[pipelines, stages] = share / api.estimate(model, cluster, job, layout, hwdb=hwdb).step_s
    return LayoutTable(rates, measured.samples_per_step, measured.microbatch)


def picked(table: LayoutTable, measured: LayoutTable, history: Availability) -> float:
    """Samples at measured speeds when `table` says which layout runs, changes free."""
    rates: Mapping[tuple[int, int], float] = measured.rates
    total, counts = 0.0, [*history.counts(), (history.until_s, 0)]
    for (at, nodes), (until, _) in pairwise(counts):
        best = table.best((("", nodes),))
        if best is not None:
            total += rates[best.pipelines, best.stages] * (min(until, history.until_s) - at)
    return total


def main(arguments: list[str] | None = None) -> int:
    """Print errors by layout, totals and regret by window."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.elastic.model_speeds", description=__doc__)
    parser.add_argument("--data", type=Path, default=_SHARED)
    parser.add_argument("--recompute", default="none")
    parser.add_argument("--stack", default="deepspeed-pipeline")
    given = parser.parse_args(arguments)
    measured = read_speeds(given.data / "policies/parcae_throughput.csv", TABLE)
    if not isinstance(measured, LayoutTable):
        return 2
    table = predicted(measured, Hwdb.load(), given.recompute, given.stack)
    errors = {layout: table.rates[layout] / rate - 1 for layout, rate in measured.rates.items() if rate}
    for (pipelines, stages), error in sorted(errors.items()):
        rate = measured.rates[pipelines, stages]
        print(f"{pipelines} x {stages:2}  measured {rate:7.2f} samples/s  {error * 100:+6.1f} %")
    print(
        f"{len(errors)} layouts: median {median(map(abs, errors.values())) * 100:.1f} %, "
        f"bias {median(errors.values()) * 100:+.1f} %"
    )
    history = read_trace(given.data / "traces/spot_p3_parcae.csv")
    costs, _ = read_transitions(given.data / "policies/parcae_migration_costs.csv", TABLE)
    for name, (start, stop) in WINDOWS_H.items():
        window = history.window(start * 3600.0, stop * 3600.0)
        free = [
            replay(window, Free(layout_table), free_transitions()).samples
            for layout_table in (table, measured)
        ]
        again = [
            replay(window, Restart(layout_table, costs), costs).samples for layout_table in (table, measured)
        ]
        regret = 1 - picked(table, measured, window) / picked(measured, measured, window)
        print(
            f"{name:4} free changes {free[0] / free[1] * 100 - 100:+5.1f} %   restart "
            f"{again[0] / again[1] * 100 - 100:+5.1f} %   regret {regret * 100:.1f} %"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
