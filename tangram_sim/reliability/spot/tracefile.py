"""Trace files: `time_s,event,node[,kind][,value]`, or counts `time_s[,kind],count`; each line is checked."""

import math
from collections import Counter
from pathlib import Path

from tangram_sim.availability import EVENTS, Availability, NodeEvent
from tangram_sim.datafiles import read_csv
from tangram_sim.errors import BadInputError, unknown_name

_MINUTE_S = 60.0
_COUNTS = ("count", "gpus", "nodes")
_COLUMNS = {"trace", "time_s", "event", "node", "kind", "value", *_COUNTS}


def read_trace(path: Path, name: str = "", until_s: float = 0.0) -> Availability:
    """The availability history of a trace file, or of its trace `name` where a column `trace` names several.

    It ends at `until_s` if given, else with the last event; where all times are whole minutes, one minute
    after that, since each state lasts a minute. Raises BadInputError for unsorted times and for nodes that
    are added twice or removed while absent, UnknownNameError for a name that the file does not have.
    """
    rows = read_csv(path)
    header = set(rows[0]) if rows else set()
    strange = header - _COLUMNS
    if not rows or "time_s" not in header or strange:
        raise BadInputError(
            f"{path}: {'unknown column ' + ', '.join(sorted(strange)) if strange else 'no events'}; a trace "
            "has time_s,event,node[,kind][,value], or time_s[,kind],count"
        )
    numbered = list(enumerate(rows, start=2))
    names = list(dict.fromkeys(row.get("trace", "") for row in rows))
    if "trace" in header and len(names) > 1 and not name:
        raise BadInputError(
            f"{path}: holds {len(names)} traces, {', '.join(names)}: say which with `trace_name=`"
        )
    if name and name not in names:
        raise unknown_name("trace", name, names)
    if name:
        numbered = [(line, row) for line, row in numbered if row.get("trace") == name]
    counted = next((column for column in _COUNTS if column in header), None)
    events = _from_counts(path, numbered, counted) if counted else _from_events(path, numbered)
    last = events[-1].time_s
    if until_s and until_s <= 0:
        raise BadInputError(f"`until_s={until_s:g}`: give seconds above zero")
    on_minutes = all(event.time_s % _MINUTE_S == 0 for event in events)
    return Availability(
        tuple(events), until_s or last + (_MINUTE_S if on_minutes else 0.0), name or path.stem
    )


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise BadInputError(f"{path}, line {line}: {column} {text!r}: a number, zero or more, is wanted")
    return value


def _in_order(path: Path, line: int, time_s: float, before: float) -> None:
    if time_s < before:
        raise BadInputError(
            f"{path}, line {line}: time {time_s:g} s comes after {before:g} s; sort the trace by time_s"
        )


def _from_events(path: Path, rows: list[tuple[int, dict[str, str]]]) -> list[NodeEvent]:
    found: list[NodeEvent] = []
    there: dict[str, str] = {}
    seen: set[tuple[float, str, str]] = set()
    before = 0.0
    for line, row in rows:
        time_s = _number(path, line, "time_s", row["time_s"])
        _in_order(path, line, time_s, before)
        before = time_s
        event, node, kind = row.get("event", ""), row.get("node", ""), row.get("kind", "")
        if event not in EVENTS:
            raise BadInputError(f"{path}, line {line}: {unknown_name('event', event, EVENTS)}")
        if event != "price" and not node:
            raise BadInputError(f"{path}, line {line}: {event} of no node; name it in the column node")
        if (time_s, event, node + kind) in seen:
            raise BadInputError(
                f"{path}, line {line}: {event} of {node or kind} at {time_s:g} s is given twice"
            )
        seen.add((time_s, event, node + kind))
        if event == "add":
            if node in there:
                raise BadInputError(
                    f"{path}, line {line}: {node} is added at {time_s:g} s, and is there already"
                )
            there[node] = kind
        elif event in ("remove", "notice", "slow", "recover"):
            if node not in there:
                raise BadInputError(
                    f"{path}, line {line}: {event} of {node} at {time_s:g} s, which is not there"
                )
            kind = there.pop(node) if event == "remove" else there[node]
        value = _number(path, line, "value", row["value"]) if row.get("value") else 0.0
        if event == "slow" and value <= 0:
            raise BadInputError(f"{path}, line {line}: slow needs a value above 0, the factor on its time")
        found.append(NodeEvent(time_s, event, node, kind, value))
    return found


def _from_counts(path: Path, rows: list[tuple[int, dict[str, str]]], column: str) -> list[NodeEvent]:
    """Events from counts by kind: the newest nodes are removed first; the last count of one time holds."""
    found: list[NodeEvent] = []
    there: dict[str, list[str]] = {}
    made: Counter[str] = Counter()
    before = 0.0
    last_at: dict[tuple[float, str], int] = {}
    for line, row in rows:
        last_at[_number(path, line, "time_s", row["time_s"]), row.get("kind", "")] = line
    for line, row in rows:
        time_s, kind = _number(path, line, "time_s", row["time_s"]), row.get("kind", "")
        _in_order(path, line, time_s, before)
        before = time_s
        wanted = _number(path, line, column, row[column])
        if wanted % 1:
            raise BadInputError(f"{path}, line {line}: {column} {row[column]!r}: a whole number is wanted")
        if last_at[time_s, kind] != line:
            continue
        nodes = there.setdefault(kind, [])
        while len(nodes) > wanted:
            found.append(NodeEvent(time_s, "remove", nodes.pop(), kind))
        while len(nodes) < wanted:
            made[kind] += 1
            nodes.append(f"{kind or 'node'}-{made[kind]}")
            found.append(NodeEvent(time_s, "add", nodes[-1], kind))
    if not found:
        raise BadInputError(f"{path}: every count is 0; there is nothing to replay")
    return found
