"""How much of a gradient reduction hides behind compute where one core does both: measured, then applied.

On a GPU collectives run beside kernels. A CPU rank's own core carries its messages (sockets, shapers, sums),
so that what it reduces during a backward pass slows that pass. A microbenchmark says which share is hidden;
the step lies that far between one that overlaps all it can and one that reduces behind the last backward.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tangram_sim.hwdb import Hwdb
from tangram_sim.sim import contention
from tangram_sim.training.plan import Plan
from tangram_sim.training.step.side_by_side import price_plan

WIDTH = 256  # of the products that stand for a backward pass
REPEATS = 5


def bench_hidden(members: Sequence[int], size: int) -> float | None:
    """Share of an all-reduce of `size` bytes that runs beside equally long compute (task for ranks)."""
    import torch
    import torch.distributed as dist

    group = dist.new_group(list(members))
    found: list[tuple[float, float, float]] = []
    if dist.get_rank() in members:
        buffer, matrix = torch.zeros(size // 4), torch.randn(WIDTH, WIDTH)

        def reduced() -> float:
            begun = time.monotonic()
            dist.all_reduce(buffer, group=group)
            return time.monotonic() - begun

        def computed(count: int) -> float:
            begun = time.monotonic()
            for _ in range(count):
                matrix @ matrix
            return time.monotonic() - begun

        dist.barrier(group)
        reduced()
        # As many products as take this long; every rank finds its own number.
        count = max(1, int(reduced() / (computed(20) / 20)))
        for _ in range(REPEATS):
            dist.barrier(group)
            alone = reduced()
            work = computed(count)
            dist.barrier(group)
            begun = time.monotonic()
            pending: Any = dist.all_reduce(buffer, group=group, async_op=True)
            computed(count)
            pending.wait()
            found.append((alone, work, time.monotonic() - begun))
    dist.barrier()
    if not found:
        return None
    alone, work, both = (min(column) for column in zip(*found, strict=True))  # load only adds
    return min(max((alone + work - both) / min(alone, work), 0.0), 1.0)


def step_s(plan: Plan, overlapped_s: float, hidden: float, hwdb: Hwdb) -> float:
    """Seconds of a step that takes `overlapped_s` where reductions overlap, if only a share of them does."""
    late = replace(plan, job=replace(plan.job, gradients_last=True))
    last_s = contention.play(price_plan(late, hwdb).graph()).makespan_s
    return overlapped_s + (1.0 - hidden) * max(last_s - overlapped_s, 0.0)
