"""The order of passes as the CSV that `torch.distributed.pipelining` loads (`_load_csv`, compute only).

A row per pipeline rank, a cell per pass: stage, kind, microbatch, like 2F0. Kinds are F, B (whole backward),
or I (input gradient) and W (weight gradient) where a schedule splits it. Stages of several chunks count all
first chunks, then all second ones.
"""

import csv
import io
import re

from tangram_sim.datafiles import naming_csv
from tangram_sim.errors import BadInputError
from tangram_sim.training.plan import Pipeline, Plan
from tangram_sim.training.schedules.base import Pass, Schedule
from tangram_sim.training.schedules.named import schedule_named

_CELL = re.compile(r"(\d+)([FBIW])(\d+)")


def file_name(plan: Plan, number: int) -> str:
    """The name of the file for pipeline `number`."""
    return "schedule.csv" if len(plan.pipelines) == 1 else f"schedule-{number}.csv"


def write(plan: Plan) -> dict[str, str]:
    """File text by name: one file per pipeline, because pipelines may order their passes differently."""
    schedule = schedule_named(plan.job.schedule)
    return {
        file_name(plan, number): _text(pipeline, schedule) for number, pipeline in enumerate(plan.pipelines)
    }


def _text(pipeline: Pipeline, schedule: Schedule) -> str:
    depth, chunks = len(pipeline.stages), max(len(stage.chunks) for stage in pipeline.stages) or 1
    order = schedule.order(depth, pipeline.microbatches, chunks)
    places = order.places.place
    names = {"F": "F", "B": "I" if order.splits_backward else "B", "W": "W"}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for stage in range(depth):
        writer.writerow(
            f"{places[stage, stage_pass.chunk]}{names[stage_pass.kind]}{stage_pass.microbatch}"
            for stage_pass in order.stage(stage)
        )
    return text.getvalue()


def _ranks(place: int, ranks: int) -> tuple[int, int]:
    """The two ranks that may hold chunk number `place`: round-robin, or back and forth (V-shaped)."""
    chunk, within = divmod(place, ranks)
    return within, ranks - 1 - within if chunk % 2 else within


def read(text: str) -> list[tuple[Pass, ...]]:
    """The passes of every rank, in order. Raises BadInputError for a cell that is not a pass."""
    with naming_csv("schedule.csv"):
        rows = [row for row in csv.reader(text.splitlines()) if row]
    found = []
    for rank, row in enumerate(rows):
        passes = []
        for cell in filter(None, row):
            match = _CELL.fullmatch(cell.strip())
            if match is None or rank not in _ranks(int(match[1]), len(rows)):
                raise BadInputError(f"schedule.csv, line {rank + 1}: {cell!r} is no pass of this rank")
            kind = "B" if match[2] == "I" else match[2]
            passes.append(Pass(kind, int(match[3]), int(match[1]) // len(rows)))
        found.append(tuple(passes))
    return found
