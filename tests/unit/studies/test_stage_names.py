"""One name for a part of a plan everywhere: in tables, sentences and pictures."""

from dataclasses import dataclass

import pytest

from tangram_sim.reports.charts import _by_stage
from tangram_sim.studies.stage_names import stage_names


@dataclass(frozen=True)
class Seat:
    pipeline: int
    stage: int
    part: int = 0


@pytest.mark.parametrize(
    ("seats", "names"),
    [
        ([Seat(0, 0), Seat(0, 1)], ["0", "1"]),
        ([Seat(0, 0, 0), Seat(0, 0, 1), Seat(0, 1)], ["0a", "0b", "1"]),
        ([Seat(0, 0), Seat(1, 0, 0), Seat(1, 0, 1)], ["0.0", "1.0a", "1.0b"]),
    ],
)
def test_a_part_has_a_letter_and_a_pipeline_its_number_only_where_there_are_several(seats, names):
    assert stage_names(seats) == names


def test_tracks_are_in_the_order_of_their_stages():
    given = {f"stage {number}/compute" for number in (0, 2, 10, 1)} | {"stage 2/sync"}
    assert _by_stage(given) == [
        "stage 0/compute", "stage 1/compute", "stage 2/compute", "stage 2/sync", "stage 10/compute"
    ]  # fmt: skip
