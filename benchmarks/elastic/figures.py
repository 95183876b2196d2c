"""Rows of published figures, what is computed for them, and whether the two agree."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from tangram_sim.errors import BadInputError

COLUMNS = ("id", "group", "setting", "metric", "value", "unit", "source", "basis", "inputs", "tolerance")
# A bare number in the column `tolerance`: 1e-3, 0.02; a percentage: 5 %.
_BARE = re.compile(r"(?:^|\s)(\d+(?:\.\d+)?(?:e-?\d+)?)(?!\s*%)(?![\w.])")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
# Figures of which only the order or the direction is to be met.
_SHAPES = ("shape", "direction", "order")


class RefusedError(Exception):
    """A row that cannot be computed; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure: what was measured or computed, where, and how near to come."""

    id: str
    group: str
    setting: str
    metric: str
    value: str
    unit: str
    inputs: str
    tolerance: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is computed for a figure: a number with `unit` of the row, or words that must equal its value.

    `within` is the module's own verdict where the tolerance is not a number; None leaves it to the row.
    `tolerance` is the part of a tolerance with conditions that applies to the row; empty: all of it. `note`
    says what a reader must know of how the answer came about.
    """

    value: float | str
    within: bool | None = None
    tolerance: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """Where the files named in `inputs` are looked for: the first folder that has one."""

    folders: tuple[Path, ...]

    def path(self, name: str) -> Path:
        """The file `name`, relative to one of the folders; raises `RefusedError`."""
        for folder in self.folders:
            if (folder / name).is_file():
                return folder / name
        raise RefusedError(f"no file {name} in {' or '.join(str(folder) for folder in self.folders)}")


def read_figures(path: Path) -> list[Figure]:
    """The rows of a table of figures; raises `BadInputError`."""
    try:
        with path.open(newline="") as lines:
            reader = csv.DictReader(lines)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise BadInputError(f"{path}: no column {', '.join(missing)}; give {', '.join(COLUMNS)}.")
            return [
                Figure(**{name: row[name] or "" for name in Figure.__dataclass_fields__}) for row in reader
            ]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read: {error}.") from None


def error_of(figure: Figure, answer: Answer) -> float | None:
    """How far off: relative where the tolerance is in per cent or a power of ten (1e-3) of a value above 1,
    else absolute. None where the figure or the answer is not a number.
    """
    published = _number(figure.value)
    if published is None or isinstance(answer.value, str):
        return None
    scale = 1.0
    tolerance = answer.tolerance or figure.tolerance
    if _PERCENT.search(tolerance):
        scale = abs(published)
    elif "e-" in tolerance:
        scale = max(1.0, abs(published))
    return abs(answer.value - published) / (scale or 1.0)


def within(figure: Figure, answer: Answer) -> bool | None:
    """Whether the answer is as near as the row asks; None where it asks for no more than a direction."""
    if answer.within is not None:
        return answer.within
    if isinstance(answer.value, str) or _number(figure.value) is None:
        return str(answer.value).split() == figure.value.split()
    error, limit = error_of(figure, answer), limit_of(answer.tolerance or figure.tolerance)
    return None if error is None or limit is None else error <= limit


def limit_of(tolerance: str) -> float | None:
    """The number in a tolerance, None if there is none or it is about the order only."""
    if any(tolerance.strip().startswith(word) for word in _SHAPES):
        return None
    percent = _PERCENT.search(tolerance)
    if percent:
        return float(percent[1]) / 100
    bare = _BARE.search(tolerance)
    return float(bare[1]) if bare else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
