"""What the rules of frameworks cost: the plan that a framework launches beside the plan of any shape.

`python -m benchmarks anywhere --launchable` asks mixed clusters from seeds (`narrower.mixed`) four questions:
for the fastest plan alone, for that and the nearest launchable one (the default), for any framework, and for
each one named with `--answers`. The tables give steps and CPU seconds over those of the fastest plan alone.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from benchmarks.anywhere.narrower import mixed
from benchmarks.anywhere.worlds import World
from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.api import SearchOptions
from tangram_sim.studies import tried
from tangram_sim.studies.launch_choice import frameworks_named

FREE, BOTH, ANY = "free", "default", "any"


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer in the world of a seed: seconds of its step (None: there is no plan) and of planning."""

    seed: int
    answer: str  # `free`, `default`, `any`, or the framework asked for
    step_s: float | None
    cpu_s: float
    words: str


def answers(seeds: Sequence[int], frameworks: Sequence[str], hwdb: Hwdb | None = None) -> Iterator[Asked]:
    """Every world's answers; the first world is planned once before, so that nothing compiles meanwhile."""
    hwdb = hwdb or Hwdb.load()
    names = (FREE, BOTH, ANY, *frameworks)
    for name in names:
        _asked(mixed(seeds[0], hwdb), name, hwdb)
    for seed in seeds:
        world = mixed(seed, hwdb)
        for name in names:
            yield _asked(world, name, hwdb)


def _asked(world: World, name: str, hwdb: Hwdb) -> Asked:
    wishes = SearchOptions(beside=name != FREE, simple_within=0.0)
    if name not in (FREE, BOTH):
        wishes = SearchOptions(frameworks=frameworks_named(name))
    begun_s, step_s = time.process_time(), None
    try:
        found = tried.plan(world.model, world.cluster, world.job, wishes=wishes, hwdb=hwdb)
        step_s = found.document.step_s
    except InfeasibleError:
        pass
    return Asked(world.seed, name, step_s, time.process_time() - begun_s, world.words())


def table(asked: Sequence[Asked]) -> list[str]:
    """Lines of two Markdown tables: steps and CPU seconds of each kind of answer over the free one's."""
    free = {item.seed: item for item in asked if item.answer == FREE}
    lines = []
    for title in ("step", "CPU seconds"):
        lines += [f"| answer | worlds | without a plan | {title} over free: median | 90 % | worst (seed) |"]
        lines += ["|---|---|---|---|---|---|"]
        for name in dict.fromkeys(item.answer for item in asked if item.answer != FREE):
            some = [item for item in asked if item.answer == name]
            ratios = sorted(
                (ratio, item.seed)
                for item in some
                if (ratio := _ratio(item, free[item.seed], steps=title == "step")) is not None
            )
            lacking = sum(item.step_s is None for item in some)
            lines.append(f"| {name} | {len(some)} | {lacking} | {_spread(ratios)} |")
        lines.append("")
    return lines[:-1]


def _ratio(asked: Asked, free: Asked, *, steps: bool) -> float | None:
    if not steps:
        return asked.cpu_s / free.cpu_s
    return asked.step_s / free.step_s if asked.step_s and free.step_s else None


def _spread(ratios: Sequence[tuple[float, int]]) -> str:
    """Median, 90th percentile and worst of ratios, with the seed of the worst."""
    if not ratios:
        return "- | - | -"
    values = [ratio for ratio, _ in ratios]
    ninety = quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]
    return f"{median(values):.3f} | {ninety:.3f} | {values[-1]:.3f} ({ratios[-1][1]})"


def as_json(asked: Asked) -> dict[str, Any]:
    """An answer as one JSON object."""
    return asdict(asked)
