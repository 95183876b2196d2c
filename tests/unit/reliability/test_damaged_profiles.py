"""Profiles and timelines in which any one thing is something else: read, or refused in one message."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.reliability.traces.reading import read_trace

PROFILE = {
    "distributedInfo": {"rank": 0, "world_size": 1},
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0.0, "dur": 20.0},
        {"ph": "X", "cat": "user_annotation", "name": "Forward 0", "ts": 1.0, "dur": 2.0},
        {"ph": "X", "cat": "user_annotation", "name": "Backward 0", "ts": 4.0, "dur": 2.0},
    ],
}
TIMELINE = {
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "pipeline 0 stage 0"}},
        {"ph": "X", "cat": "F", "name": "F0", "pid": 1, "ts": 1, "dur": 2, "args": {"uncontended_s": 2e-6}},
        {"ph": "X", "cat": "B", "name": "B0", "pid": 1, "ts": 4, "dur": 2, "args": {"uncontended_s": 2e-6}},
    ]
}
GONE = object()
OTHERS = (GONE, None, True, "x", "9" * 5000, [], {}, -5, 1e308, 10**400, float("nan"), float("inf"))


def places(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to every part of a document."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, part in inner if isinstance(document, dict | list) else ():
        yield (*before, key)
        if isinstance(part, dict | list):
            yield from places(part, (*before, key))


@pytest.mark.parametrize("document", [PROFILE, TIMELINE], ids=["profile", "timeline"])
def test_whatever_stands_in_a_trace_is_read_or_refused(document: dict[str, Any], tmp_path: Path) -> None:
    path, refused = tmp_path / "rank0.json", 0
    path.write_text(json.dumps(document))
    read_trace([path])
    for place in places(document):
        if place[1:2] == (2,):  # the last event is as the one before it
            continue
        for other in OTHERS:
            damaged = copy.deepcopy(document)
            holder: Any = damaged
            for key in place[:-1]:
                holder = holder[key]
            if other is GONE:
                del holder[place[-1]]
            else:
                holder[place[-1]] = other
            path.write_text(json.dumps(damaged))
            try:
                read_trace([path])
            except BadInputError as error:
                refused += 1
                assert len(str(error)) < 600
    assert refused > 40


@pytest.mark.parametrize("ranks", [(0, 10**400), (True, 2), (3, 3), (-1, 2), (0, "2")])
def test_a_rank_is_one_of_so_many(ranks: tuple[Any, Any], tmp_path: Path) -> None:
    info = dict(zip(("rank", "world_size"), ranks, strict=True))
    (tmp_path / "rank0.json").write_text(json.dumps({**PROFILE, "distributedInfo": info}))
    with pytest.raises(BadInputError, match="the rank below the world size"):
        read_trace([tmp_path / "rank0.json"])
