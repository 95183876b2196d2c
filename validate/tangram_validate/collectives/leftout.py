"""Predicting what was left out of the fit: a rank count, or every curve of one kind of GPU."""

from collections.abc import Callable, Sequence

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_validate.collectives import rows
from tangram_validate.collectives.points import Point
from tangram_validate.collectives.predict import CollectivePrediction, predict


def gpu_kind(point: Point) -> str:
    """The chip a point ran on: all A100 are one kind, H100 and H200 are two."""
    return (point.label if point.fabric.gpu == "*" else point.fabric.gpu).partition("-")[0]


def rank_count(point: Point) -> str:
    """The number of ranks, as a group to leave out."""
    return str(point.ranks)


AXES: dict[str, Callable[[Point], str]] = {"gpu": gpu_kind, "ranks": rank_count}


def left_out(points: Sequence[Point], axis: str, hwdb: Hwdb) -> dict[str, list[CollectivePrediction]]:
    """For each value along `axis`: its points within one node, predicted from fits to all others.

    What is left lacks a generation's row where only one kind has it: then the kind of link and the
    datasheet answer alone.
    """
    key = AXES.get(axis)
    if key is None:
        raise BadInputError(f"`left_out={axis}` given; known: {', '.join(AXES)}")
    usable = [point for point in points if rows.clean(point)]
    inside = [point for point in usable if point.fabric.nic is None]
    found, known = dict[str, list[CollectivePrediction]](), rows.Fits()
    for value in sorted({key(point) for point in inside}):
        kept = [point for point in inside if key(point) != value]
        table = rows.table_rows([*rows.fit_sets(kept, known), rows.ANY_NETWORK])
        database = hwdb.with_collectives(table)
        found[value] = predict([point for point in inside if key(point) == value], database)
    return found
