"""`--jobs`: one search on one process and on two, in CPU seconds of each process and in wall seconds.

Two processes are as good as the longer of them: beside the wall time, which other work on the machine spoils,
stands what the asker spent plus what the busiest of the others did.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import measure
from benchmarks.measure import Row, call

CASE = ("gpt3-22b", "azure-c1", "aceso", 256)  # model, cluster, parallelizer, global batch
SPEEDUP = 1.5


def workers_cpu_s() -> list[float]:
    """CPU seconds of this process's children that are alive, from /proc."""
    tick, found = os.sysconf("SC_CLK_TCK"), []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # gone since it was listed
            fields = path.read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == os.getpid():
                found.append((int(fields[11]) + int(fields[12])) / tick)
    return found


def planned(jobs: str) -> dict[str, float]:
    """Plan the case on so many processes; what it took, and the step found."""
    from tangram_sim.hwdb import Hwdb, load_cluster, load_model
    from tangram_sim.planners.api import SearchOptions
    from tangram_sim.planners.tangram.engine import tangram
    from tangram_sim.training.job import Job

    model, cluster, parallelizer, batch = CASE
    hwdb = Hwdb.load()
    cpu, wall = time.process_time(), time.perf_counter()
    found = tangram(
        load_model(model),
        load_cluster(cluster, hwdb),
        Job(batch, dtype="fp16"),
        hwdb,
        SearchOptions(parallelizer=parallelizer, jobs=int(jobs)),
    )
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    others = workers_cpu_s() if int(jobs) > 1 else [0.0]
    return {
        "asker_cpu_s": cpu,
        "busiest_cpu_s": max(others),
        "others_cpu_s": sum(others),
        "wall_s": wall,
        "step_s": found.ranked[0].step_s,
        "asked": found.counts.asked,
    }


def jobs(compiled: Path) -> Iterator[Row]:
    """One and two processes, and how much shorter the longest chain of CPU seconds is."""
    if sys.platform != "linux":
        return
    # Compiled code on disk: the one process, which comes first, would pay for it alone.
    small = f"plan gpt3-1.3b azure-c1-t4x4-v100x4 --parallelizer {CASE[2]} --global-batch 16"
    measure.tangram(small, compiled)
    item, _ = call("jobs", "planned", "1", compiled=compiled)
    name = " ".join(map(str, CASE))
    yield Row(f"{name}, 1 process", item["asker_cpu_s"], "CPU-s", note=f"wall {item['wall_s']:.0f} s")
    two, _ = call("jobs", "planned", "2", compiled=compiled)
    chain, others = two["asker_cpu_s"] + two["busiest_cpu_s"], two["others_cpu_s"]
    same = "same step" if item["step_s"] == two["step_s"] else "ANOTHER STEP"
    yield Row(
        f"{name}, 2 processes: asker and the busier one",
        chain,
        "CPU-s",
        note=f"asker {two['asker_cpu_s']:.1f}, both others {others:.1f}, wall {two['wall_s']:.0f} s",
    )
    yield Row("faster with 2 processes", item["asker_cpu_s"] / chain, "x", SPEEDUP, True, note=same)
