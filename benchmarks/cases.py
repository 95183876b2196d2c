"""The cases: each runs one thing and says what it cost, as rows of the table."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import purchase
from benchmarks.jobs import jobs
from benchmarks.measure import Row, call, spend, tangram
from benchmarks.scale import compared, gaps, scale

# Arguments of `tangram plan` and the most CPU seconds on one core, cold process.
PLANNING = (
    ("gpt3-6.7b azure-c1", 5.0),
    ("gpt3-13b azure-c3", 10.0),  # four islands
    ("gpt3-6.7b a100x128-h100x128 --global-batch 128", 10.0),
    ("llama3-70b a100x128-h100x128 --global-batch 1024", 10.0),
)
PEAK_BYTES = 1e9
HELP_S = 0.3
PLANS_PER_MINUTE = 1e5
ESTIMATES_PER_CPU_S = 1000.0


def first_run(_compiled: Path) -> Iterator[Row]:
    """The very first command after installation: numba compiles everything."""
    with TemporaryDirectory() as empty:
        spent = tangram("plan gpt3-6.7b azure-c1", Path(empty))
    yield Row("first run ever: plan gpt3-6.7b azure-c1", spent.cpu_s, "CPU-s", peak_bytes=spent.peak_bytes)


def planning(compiled: Path) -> Iterator[Row]:
    """`tangram plan`, cold process, compiled code on disk."""
    tangram(f"plan {PLANNING[0][0]}", compiled)
    peaks = []
    for arguments, target in PLANNING:
        spent = tangram(f"plan {arguments} --json", compiled)
        peaks.append(spent.peak_bytes)
        found = json.loads(spent.printed)
        gap = found["step_s"] / found["lower_bound_step_s"] - 1
        note = f"step {found['step_s']:.3g} s, {gap:.0%} above the bound"
        yield Row(f"plan {arguments}", spent.cpu_s, "CPU-s", target, peak_bytes=spent.peak_bytes, note=note)
    yield Row("peak memory of the plans above", max(peaks) / 1e6, "MB", PEAK_BYTES / 1e6)


def startup(compiled: Path) -> Iterator[Row]:
    """What a person waits for before anything happens: the best of three."""
    tangram("--help", compiled)
    wall_s = min(tangram("--help", compiled).wall_s for _ in range(3))
    yield Row("tangram --help", wall_s, "s", HELP_S)
    line = "import sys; before = set(sys.modules); import tangram_sim; print(*set(sys.modules) - before)"
    modules = spend(["-c", line], compiled).printed.split()
    heavy = sorted({name.partition(".")[0] for name in modules} & {"torch", "pandas", "numba"})
    yield Row("import tangram_sim: torch, pandas, numba", len(heavy), "modules", 0.0, note=" ".join(heavy))
    yield Row("import tangram_sim: all", len(modules), "modules")


def replay(compiled: Path) -> Iterator[Row]:
    """1,000 distinct plans of 8 stages x 64 microbatches, from plan objects to step times."""
    for kinds in ("one kind", "two kinds"):
        for decisions in ("cuts", "cuts and layouts"):
            found, spent = call("replay", "plans_per_minute", kinds, decisions, compiled=compiled)
            yield Row(
                f"replay 1,000 plans, {kinds} of node, {decisions} differ",
                found["plans_per_minute"],
                "plans/min",
                PLANS_PER_MINUTE,
                more_is_better=True,
                peak_bytes=spent.peak_bytes,
            )


def estimates(compiled: Path) -> Iterator[Row]:
    """Distinct layouts of llama3-70b on 64 to 512 H100, lowering, memory and intervals included."""
    found, spent = call("estimate", "many", compiled=compiled)
    yield Row(
        f"estimate_many, {found['layouts']:,.0f} layouts",
        found["per_cpu_s"],
        "/CPU-s",
        ESTIMATES_PER_CPU_S,
        more_is_better=True,
        peak_bytes=spent.peak_bytes,
    )
    found, spent = call("estimate", "one_by_one", compiled=compiled)
    yield Row("estimate, a document each", found["per_cpu_s"], "/CPU-s", peak_bytes=spent.peak_bytes)


def engines(compiled: Path) -> Iterator[Row]:
    """Both engines on one 1F1B step of 16 stages x 256 microbatches."""
    found, spent = call("engines", "speeds", compiled=compiled)
    for engine, speed in found.items():
        yield Row(f"engine {engine}", speed, "ops/s", peak_bytes=spent.peak_bytes)


def gentree(compiled: Path) -> Iterator[Row]:
    """GenTree on 4,096 servers whose racks all differ, and its gains on the two published scenarios."""
    found, spent = call("gentree", "planning", compiled=compiled)
    for case, seconds in found.items():
        yield Row(f"gentree plan, {case}", seconds, "CPU-s", 10.0, peak_bytes=spent.peak_bytes)
    found, _ = call("gentree", "gains", compiled=compiled)
    for case, gain in found.items():
        yield Row(f"gentree gain, {case}", gain, "x")


def purchasing(compiled: Path) -> Iterator[Row]:
    """What-if of eight candidates; a catalogue under a budget, and the same again from its cache."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        purchase.write_inputs(folder)
        tangram("plan gpt3-6.7b azure-c1", compiled)  # compiled code on disk, as in the other groups
        spent = tangram(purchase.what_if_arguments(folder), compiled)
        yield Row(
            "what-if of 8 candidates on 64 GPUs", spent.cpu_s, "CPU-s", 20.0, peak_bytes=spent.peak_bytes
        )
        spent = tangram(purchase.purchase_arguments(folder), compiled)
        found = json.loads(spent.printed)
        note = (
            f"{found['mixes']} mixes, {len(found['simulated'])} simulated, {found['bounded_away']} bounded "
            f"away, {len(found['front'])} on the front; {spent.wall_s:.0f} s wall"
        )
        yield Row("purchase: 6 kinds, up to 4 each", spent.cpu_s, "CPU-s", 600.0, note=note)
        spent = tangram(purchase.purchase_arguments(folder), compiled)
        yield Row("the same from its cache", spent.wall_s, "s", 2.0)


GROUPS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "startup": startup,
    "first": first_run,
    "planning": planning,
    "replay": replay,
    "estimates": estimates,
    "engines": engines,
    "gentree": gentree,
    "purchase": purchasing,
    "scale": scale,
    "gaps": gaps,
    "compared": compared,
    "jobs": jobs,
}
