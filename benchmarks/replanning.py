"""Planning after one change of a fleet: CPU seconds with what the search before worked out, and from nothing.

    python -m benchmarks.replanning [--fleets 12]

Fleets and changes (a node lost, added, slowed) are drawn. Each changed fleet is planned three ways, with the
memory of the plan before the change and from nothing under the same options: by default; for only what would
be shown (`only_shown`, as purchases ask); the last with effort quick. Compiled code and shapes of steps are
at hand in all of them. Steps are compared with that of the default from nothing.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from tangram_sim.clusters import Cluster
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.placement.slowing import with_slowdowns
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.search_memory import SearchMemory
from tangram_sim.studies import api
from tangram_sim.studies.results import Result
from tangram_sim.studies.slow_files import read_slow
from tangram_sim.training.job import Job

KINDS = ("A100-80GBx8", "H100x8", "L40Sx8", "A100-40GBx8")
CHANGES = ("lost", "added", "slowed")
JOB = Job(global_batch=128, seq=4096)
SHOWN = SearchOptions(only_shown=True)
WAYS = {
    "default": SearchOptions(),
    "only what is shown": SHOWN,
    "only what is shown, quick": replace(SHOWN, effort="quick"),
}


def changed_fleets(count: int, hwdb: Hwdb) -> Iterator[tuple[str, Cluster, Cluster]]:
    """(change, fleet before, fleet after), the changes in turn."""
    draw = random.Random(0)
    for number in range(count):
        nodes = {kind: draw.randint(1, 3) for kind in draw.sample(KINDS, draw.choice((2, 3)))}
        change, kind = CHANGES[number % len(CHANGES)], draw.choice(list(nodes))
        before = _fleet(nodes, hwdb)
        if change == "slowed":
            where = f"n{draw.randrange(sum(nodes.values()))}={draw.choice((1.2, 1.5, 2.0))}"
            after = with_slowdowns(before, read_slow(where, before).slowdowns)
        else:
            nodes[kind] += 1 if change == "added" else -1
            after = _fleet(nodes, hwdb)
        yield change, before, after


def _fleet(nodes: dict[str, int], hwdb: Hwdb) -> Cluster:
    return load_cluster("+".join(f"{kind}:{count}" for kind, count in nodes.items() if count), hwdb)


def timed(question: Callable[[], Result]) -> tuple[float, Result]:
    """CPU seconds of an answer, and the answer."""
    begin = time.process_time()
    found = question()
    return time.process_time() - begin, found


def measured(count: int) -> None:
    """Print one line a change, then the distribution of every way."""
    hwdb, model = Hwdb.load(), load_model("llama3-8b")
    warm = load_cluster("A100-80GBx8:2+L40Sx8:1", hwdb)
    for options in WAYS.values():
        api.plan(model, warm, JOB, wishes=options, hwdb=hwdb)
    shares: dict[str, list[float]] = {way: [] for way in WAYS}
    gaps: dict[str, list[float]] = {way: [] for way in WAYS}
    for change, before, after in changed_fleets(count, hwdb):
        line, best_s = [f"{change:6} {before.name:45.45}"], 0.0
        for way, options in WAYS.items():
            alone_s, alone = timed(partial(api.plan, model, after, JOB, wishes=options, hwdb=hwdb))
            best_s = best_s or alone.step_s
            memory = SearchMemory()
            with memory.in_use():
                api.plan(model, before, JOB, wishes=replace(options, effort="normal"), hwdb=hwdb)
                kept_s, kept = timed(partial(api.plan, model, after, JOB, wishes=options, hwdb=hwdb))
            shares[way].append(kept_s / alone_s)
            gaps[way].append(kept.step_s / best_s - 1.0)
            line.append(f"{way} {kept_s:.2f} of {alone_s:.2f} CPU-s ({gaps[way][-1]:+.2%})")
        print("; ".join(line), flush=True)
    for way, found in shares.items():
        low, middle, high = np.quantile(found, (0.1, 0.5, 0.9))
        same = sum(gap == 0.0 for gap in gaps[way])
        print(
            f"{way}: {middle:.2f} of the CPU seconds from nothing (p10 {low:.2f}, p90 {high:.2f}); same step "
            f"in {same} of {len(found)}, {max(gaps[way]):+.2%} at most"
        )


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--fleets", type=int, default=12)
    measured(parser.parse_args().fleets)


if __name__ == "__main__":
    main()
