"""Figures that a table lists for two kinds of GPU: of one of them they are not true."""

from collections.abc import Iterable
from dataclasses import replace

from tangram_validate.serving.runs import RefusedRun, ServedRun

COPIED = "the same figures are listed for another kind of GPU"
_LEAST_FIGURES = 3  # fewer may agree by chance


def doubting_copies(found: Iterable[ServedRun | RefusedRun]) -> list[ServedRun | RefusedRun]:
    """The runs, those whose every figure is also one of another kind of GPU with that doubt."""
    found = list(found)
    kinds: dict[object, set[str]] = {}
    for run in found:
        if isinstance(run, ServedRun) and len(run.measured) >= _LEAST_FIGURES:
            kinds.setdefault(_figures(run), set()).add(run.gpu)
    return [
        replace(run, doubt=COPIED)
        if isinstance(run, ServedRun) and len(kinds.get(_figures(run), ())) > 1
        else run
        for run in found
    ]


def _figures(run: ServedRun) -> object:
    return run.isl, run.osl, run.measured
