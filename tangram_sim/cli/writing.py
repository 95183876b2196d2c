"""Files that verbs write: checks that they can be written, and the text of answers, plans and candidates."""

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from tangram_sim.cli.wording import as_options
from tangram_sim.datafiles import write_whole
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.planners.api import Candidate
    from tangram_sim.studies.documents import Document, PlanDocument


_NEVER_WRITTEN = (".pdf", ".png", ".svg", ".jpg", ".docx", ".xlsx", ".pptx")


def require_writable(**files: Path | None) -> None:
    """Check, before any work is done, that output files can be written; keys are the options that name them.

    Raises BadInputError for a folder, a place that cannot be written, or one file named twice.
    """
    seen: dict[Path, str] = {}
    for name, path in files.items():
        if path is None:
            continue
        option = f"--{name} {path}"
        if path.is_dir():
            raise BadInputError(f"{option}: is a folder; name a file in it, e.g. {path / (name + '.json')}")
        if name == "output" and path.suffix.lower() in _NEVER_WRITTEN:
            raise BadInputError(
                f"{option}: nothing is written as {path.suffix}; --help says what the file holds (answers "
                "are .json, reports to read or to print .html)"
            )
        place = next(folder for folder in path.absolute().parents if folder.exists())
        if not place.is_dir():
            raise BadInputError(f"{option}: {place} is a file, not a folder; name another place")
        if not os.access(path if path.exists() else place, os.W_OK):
            raise BadInputError(f"{option}: no permission to write in {place}; name another place")
        if path.absolute() in seen and (path.is_file() or not path.exists()):
            raise BadInputError(f"--{seen[path.absolute()]} and {option} name one file; name two")
        seen[path.absolute()] = name


def is_report(path: Path | None) -> bool:
    """Whether `-o` names an HTML report."""
    return path is not None and path.suffix.lower() in (".html", ".htm")


def require_output(path: Path | None) -> None:
    """Raise BadInputError, before any work is done, if `-o` (a report or a folder) cannot be written."""
    if is_report(path):
        require_writable(output=path)
    elif path is not None:
        require_folder(path)


def require_folder(path: Path) -> None:
    """Raise BadInputError, before any work is done, if files cannot be written into a folder at `path`."""
    place = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not place.is_dir():
        raise BadInputError(f"--output {path}: {place} is a file; name a folder for the plans")
    if not os.access(place, os.W_OK):
        raise BadInputError(f"--output {path}: no permission to write in {place}; name another folder")


def write_report(path: Path, html: str) -> None:
    """Write an HTML report, with Python arguments in its notes replaced by options, as on a terminal."""
    write_whole(path, as_options(html))


def answer_text(document: "Document", unwritten: Sequence[str] = ()) -> str:
    """The JSON text of an answer's file, without the keys in `unwritten`."""
    told = document.model_dump(mode="json", exclude=set(unwritten))
    return json.dumps(told, indent=1, allow_nan=False) + "\n"


def plan_text(document: "PlanDocument") -> str:
    """The JSON text of a plan file, without planning times, so that the same input gives the same bytes."""
    from tangram_sim.studies.planfile import plan_keys

    return json.dumps(plan_keys(document, ("planning_s", "planning_cpu_s")), indent=1, allow_nan=False) + "\n"


def candidates_text(candidates: Sequence["Candidate"]) -> str:
    """CSV text of every partial plan considered; `start` and `stop` count atoms (0 is the embedding)."""
    from tangram_sim.planners.api import Candidate

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(Candidate)]
    writer.writerow(names)
    writer.writerows([getattr(candidate, name) for name in names] for candidate in candidates)
    return text.getvalue()
