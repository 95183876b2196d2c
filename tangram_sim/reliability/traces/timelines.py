"""Step traces from timelines that `tangram simulate --trace` wrote: one simulated step.

Their sends have no receive: a pass waits for the transfer. Pipelines side by side are read as replicas.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tangram_sim.errors import BadInputError, shown
from tangram_sim.reliability.traces.kinds import CODES
from tangram_sim.reliability.traces.trace import StepTrace, TraceRows, assemble

_CODES = {"F": "F", "B": "B", "SEND_F": "FS", "SEND_B": "BS", "SYNC": "RS", "TIED": "EM", "OPTIMIZER": "OP"}
_PLACE = re.compile(r"(?:pipeline (\d{1,9}) )?(?:stage (\d{1,9})|first and last stage)")
_SEQ = re.compile(r"[A-Z_]+(\d{1,9})")
# Timelines hold whole nanoseconds beside the exact seconds of what was not slowed down on the way.
_ROUNDING_S = 1.1e-9

Event = Mapping[str, Any]
Row = tuple[int, int, int, int, float, float]  # dp, stage, kind, seq, start, duration


def is_timeline(events: Iterable[Event]) -> bool:
    """Whether these Chrome trace events are a timeline written by `tangram simulate`."""
    return any(event.get("ph") == "X" and "uncontended_s" in event.get("args", {}) for event in events)


def read_timeline(events: list[Event], name: str) -> StepTrace:
    """The trace of our own timeline's events; raises `BadInputError` for schedules that cannot be
    replayed."""
    places = {
        event.get("pid"): match
        for event in events
        if event.get("ph") == "M" and event.get("name") == "process_name"
        if (match := _PLACE.fullmatch(str(event.get("args", {}).get("name"))))
    }
    rows: list[Row] = []
    ends: list[Row] = []
    for event in events:
        if event.get("ph") != "X":
            continue
        code, place = _CODES.get(str(event.get("cat"))), places.get(event.get("pid"))
        if code is None or place is None or "." in str(event.get("name")):
            raise BadInputError(
                f"{name}: operation {shown(event.get('name'))} of kind {shown(event.get('cat'))} cannot be "
                f"replayed: timelines "
                "of 1f1b and gpipe can, one chunk per stage and the backward in one piece."
            )
        seq = _SEQ.fullmatch(str(event.get("name")))
        row = (
            int(place[1] or 0),
            int(place[2] or 0),
            CODES[code],
            int(seq[1]) if seq else 0,
            float(event["ts"]) * 1e-6,
            _duration_s(event),
        )
        (ends if place[2] is None else rows).append(row)
    if not rows:
        raise BadInputError(f"{name}: no operation in this timeline.")
    depth = max(row[1] for row in rows) + 1
    rows += [(dp, stage, *rest) for dp, _, *rest in ends for stage in (0, depth - 1)]  # type: ignore[misc]
    return assemble(_columns(_waited(rows)), name)


def _duration_s(event: Event) -> float:
    shown, exact = float(event["dur"]) * 1e-6, float(event.get("args", {}).get("uncontended_s", -1.0))
    return exact if abs(exact - shown) <= _ROUNDING_S else shown


def _waited(rows: list[Row]) -> list[Row]:
    """The rows with gradient syncs extended to the optimizer's start, so that all replicas end together."""
    optimizer = {(dp, stage): start for dp, stage, kind, _, start, _ in rows if kind == CODES["OP"]}
    tied = {(dp, stage) for dp, stage, kind, *_ in rows if kind == CODES["EM"]}
    replicas = len({row[0] for row in rows})
    if replicas == 1:
        return rows
    return [
        (*row[:5], optimizer[row[:2]] - row[4])
        if row[2] == CODES["RS"] and row[:2] in optimizer and row[:2] not in tied
        else row
        for row in rows
    ]


def _columns(rows: list[Row]) -> TraceRows:
    places = np.array([row[:4] for row in rows], dtype=np.int64)
    times = np.array([row[4:] for row in rows], dtype=np.float64)
    dp, stage, kind, seq = places.T
    return TraceRows(
        step=np.zeros(len(rows), np.int64),
        dp=dp,
        stage=stage,
        kind=kind,
        seq=seq,
        start_s=times[:, 0],
        duration_s=times[:, 1],
    )
