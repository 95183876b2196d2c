"""What a part of a plan is called, the same in tables, sentences, charts and files."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tangram_sim.studies.documents import StageForecast


def part_letter(part: int) -> str:
    """The letter of a part of a stage that has several: `a` for the first."""
    return chr(ord("a") + part) if part < 26 else f"/{part}"


def stage_name(pipeline: int, stage: int, part: int, *, several: bool, mixed: bool) -> str:
    """`0`; with `several` pipelines `1.0`; in a stage of several parts (`mixed`) `0a`, `1.0b`."""
    return (f"{pipeline}." if several else "") + f"{stage}" + (part_letter(part) if mixed else "")


def stage_names(stages: Sequence["StageForecast"]) -> list[str]:
    """The names of all rows of a plan document, in their order."""
    parts = Counter((stage.pipeline, stage.stage) for stage in stages)
    several = len({stage.pipeline for stage in stages}) > 1
    return [
        stage_name(
            stage.pipeline,
            stage.stage,
            stage.part,
            several=several,
            mixed=parts[stage.pipeline, stage.stage] > 1,
        )
        for stage in stages
    ]
