"""Step traces from files of any known kind: tables, torch.profiler files, our own timelines."""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tangram_sim.datafiles import parse_json
from tangram_sim.errors import BadInputError, shown
from tangram_sim.reliability.traces.profiles import profile_of, read_profiles
from tangram_sim.reliability.traces.tables import read_table
from tangram_sim.reliability.traces.timelines import is_timeline, read_timeline
from tangram_sim.reliability.traces.trace import StepTrace

_MOST = 1e18  # microseconds since 1970 are 2e15
_HINT = (
    "give a table (step,dp,stage,op,seq,start_us,dur_us), a timeline of `tangram simulate --trace`, or one "
    "torch.profiler file per rank"
)


def read_trace(paths: Sequence[Path], stages: int = 1) -> StepTrace:
    """The step trace in these files: one table or timeline, or the torch.profiler files of all ranks.

    A folder stands for the files in it. `stages` is needed for torch.profiler files only. Raises
    `BadInputError`.
    """
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise BadInputError(f"no trace in {', '.join(map(str, paths))}; {_HINT}.")
    first = _text(files[0])
    if not first.lstrip().startswith(("{", "[")):
        if len(files) > 1:
            raise BadInputError(f"{len(files)} files given, and {files[0]} is a table; give one table.")
        return read_table(files[0])
    documents = [_document(_text(file), file) for file in files]
    name = str(paths[0])
    if len(documents) == 1 and is_timeline(documents[0]["traceEvents"]):
        return read_timeline(documents[0]["traceEvents"], name)
    profiles = [profile_of(document, str(file)) for document, file in zip(documents, files, strict=True)]
    return read_profiles(profiles, stages, name)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not path.exists():
        raise BadInputError(f"{path}: no such file; {_HINT}.")
    return [path]


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise BadInputError(f"{path}: cannot be read: {error}; {_HINT}.") from None


def _document(text: str, path: Path) -> dict[str, Any]:
    try:
        found = parse_json(text, path)
    except BadInputError as error:
        raise BadInputError(f"{error}; {_HINT}.") from None
    document = {"traceEvents": found} if isinstance(found, list) else found
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise BadInputError(f"{path}: holds no traceEvents; {_HINT}.")
    for number, event in enumerate(document["traceEvents"]):
        if wrong := _wrong(event):
            raise BadInputError(f"{path}: traceEvents[{number}] {wrong}; {_HINT}.")
    return document


def _wrong(event: Any) -> str:
    """What is wrong with the fields of a Chrome trace event that are read later; "" where nothing is."""
    if not isinstance(event, dict):
        return "is no object"
    if event.get("ph") not in ("X", "M"):
        return ""
    if not isinstance(event.get("args", {}), dict):
        return f"has args {shown(event['args'])}, not keys with values"
    if not isinstance(event.get("pid", 0), int | str):
        return f"has the pid {shown(event['pid'])}, no number and no text"
    figures = [(event, "ts"), (event, "dur")] if event["ph"] == "X" else []
    if "uncontended_s" in event.get("args", {}):
        figures.append((event["args"], "uncontended_s"))
    for holder, key in figures:
        value: Any = holder.get(key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not -_MOST <= value <= _MOST:
            return f"has {key} {shown(value)}, no time that can be meant"
    return ""
