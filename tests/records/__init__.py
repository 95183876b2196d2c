"""Figures of whole rooms as they were when last looked at.

Tables worked out by hand and laws hold the formulas one by one; a room's answer has more figures than can be
worked out by hand. Those are recorded here, on hardware data that does not change (`tests/documents/hwdb`): a
change that was not meant shows. After one that was, `python -m tests.records` writes them anew; look at the
difference before committing it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tangram_sim.hwdb import Hwdb
from tests.places import ROOT

FOLDER = Path(__file__).parent
HWDB = Hwdb.load([ROOT / "tests" / "documents" / "hwdb"])
CLOSE = 1e-9  # relative: as far as other processors may add up numbers in another order


def text_of(figures: dict[str, Any]) -> str:
    """Figures as they stand in a file, one case a line."""
    lines = (f" {json.dumps(case)}: {json.dumps(values)}" for case, values in figures.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def rounded(value: Any) -> Any:
    """Numbers to twelve digits, arrays and tuples as lists; words and whole numbers as they are."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {str(key): rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value


def hold(name: str, case: str, figures: Any) -> None:
    """Compare what a case comes to with what was recorded."""
    recorded = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    _compare(rounded(figures), recorded[case], f"{name}: {case}")


def _compare(now: Any, then: Any, where: str) -> None:
    assert type(now) is type(then) or {type(now), type(then)} <= {int, float}, where
    if isinstance(now, dict):
        assert now.keys() == then.keys(), where
        for key, value in now.items():
            _compare(value, then[key], f"{where}, {key}")
    elif isinstance(now, list):
        assert len(now) == len(then), where
        for index, (item, other) in enumerate(zip(now, then, strict=True)):
            _compare(item, other, f"{where}[{index}]")
    elif isinstance(now, float):
        assert now == pytest.approx(then, rel=CLOSE, abs=0.0), where
    else:
        assert now == then, where
