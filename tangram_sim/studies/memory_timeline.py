"""Memory of one GPU of every stage over the step of a simulated plan, in bytes by use."""

import csv
import io
from collections.abc import Iterator

import numpy as np

from tangram_sim.sim.memory import memory_timeline
from tangram_sim.studies.forecast import Forecast

HEADER = ("time_s", "stage", "what", "bytes")
# What holds for the whole step, then what changes with every pass; `total` is what the driver shows.
CONSTANT = ("states", "workspace", "context", "transient")
CHANGING = ("activations", "cached", "total")

Row = tuple[float, int, str, float]


def memory_rows(result: Forecast) -> Iterator[Row]:
    """Yields (time_s, stage, what, bytes), stage by stage in order of time; a value holds until the next.

    `states` are weights, gradients and optimizer state; `transient` is the largest layer's temporary memory,
    counted for the whole step; `cached` is what the allocator holds beyond tensors; `context` lies outside
    the allocator. Times may repeat where one pass ends and another starts.
    """
    for stage, memory in enumerate(memory_timeline(result.timeline)):
        chunks = result.step.prices[stage]
        first, transient = chunks[0], max(chunk.transient_bytes for chunk in chunks)
        states = sum(chunk.static_bytes for chunk in chunks)
        constant = (states, first.workspace_bytes, first.context_bytes, transient)
        yield from ((0.0, stage, what, size) for what, size in zip(CONSTANT, constant, strict=True))
        # What the timeline starts from is states and transient; the rest comes and goes with microbatches.
        activations = np.maximum(memory.bytes - (states + transient), 0.0)
        cached = first.fragmentation * (activations + transient)
        total = activations + cached + sum(constant)
        for time_s, *sizes in zip(
            *(a.tolist() for a in (memory.times_s, activations, cached, total)), strict=True
        ):
            yield from ((time_s, stage, what, size) for what, size in zip(CHANGING, sizes, strict=True))


def memory_csv(result: Forecast) -> str:
    """The rows as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(
        (f"{time_s:.9g}", stage, what, f"{size:.0f}") for time_s, stage, what, size in memory_rows(result)
    )
    return text.getvalue()
