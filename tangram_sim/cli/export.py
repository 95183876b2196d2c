"""`tangram export`: writes the launch configuration of a training framework for a plan."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_line
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.export.formats import Exported
    from tangram_sim.training.plan import Plan

To = Annotated[
    str,
    typer.Option(
        "--to",
        "--for",
        show_default=False,
        help="rankmap, torchrun, megatron, torchtitan, deepspeed, flagscale or torch-pipeline-csv.",
    ),
]
Version = Annotated[
    str,
    typer.Option(
        "--framework-version",
        show_default=False,
        help="Version of the framework, e.g. 0.2.2 of torchtitan.  [default: the newest known]",
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Let the framework's own parser read the files first, where it is installed."
    ),
]
Python = Annotated[
    str,
    typer.Option(
        "--python", show_default=False, help="Interpreter that has the framework.  [default: the one running]"
    ),
]
Differing = Annotated[
    bool,
    typer.Option(
        "--differing",
        help="Write the files also where the framework trains another model; every difference is listed.",
    ),
]
Folder = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the files into this folder.  [default: print]")
]


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A file written by `tangram plan -o`.")],
    to: To = "",
    output: Folder = None,
    framework_version: Version = "",
    differing: Differing = False,
    check: Check = False,
    python: Python = "",
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Write a plan as launch configuration; exit 2 with the reasons where a framework cannot express it."""
    from tangram_sim.cli import buying
    from tangram_sim.export.formats import FORMATS, export
    from tangram_sim.studies.planfile import plan_from_document, read_plan

    if not to:
        raise BadInputError(f"--to is missing: give one of {', '.join(FORMATS)}, e.g. --to megatron")
    if output is not None:
        buying.require_folder(output)
    database = shared.load_hwdb(hwdb)
    made = plan_from_document(read_plan(plan), database, str(plan))
    found = export(made, to, str(plan), version=framework_version, differing=differing)
    if check:
        found = replace(found, notes=(_checked(found, made, to, framework_version, python), *found.notes))
    show_files(found, to, output, as_json)


def _checked(found: "Exported", plan: "Plan", to: str, version: str, python: str) -> str:
    """What the framework's parser says. Raises BadInputError where there is none, CannotExportError."""
    from tangram_sim.export.checking import check
    from tangram_sim.planners.uniform.frameworks import FRAMEWORKS

    if to not in FRAMEWORKS:
        raise BadInputError(f"--check: {to} has no parser of its own; frameworks: {', '.join(FRAMEWORKS)}")
    return check(found, plan, to, version, python or sys.executable)


def show_files(found: "Exported", to: str, output: Path | None, as_json: bool) -> None:
    """Write the files into a folder or print them, with what a person should know of them."""
    from tangram_sim.datafiles import write_all

    if output is not None:
        write_all({output / name: text for name, text in found.files.items()})
    if as_json:
        print_json({"to": to, "files": found.files, "notes": list(found.notes)})
        return
    for name, text in found.files.items():
        if output is not None:
            print_line(f"{output / name} written")
        elif len(found.files) == 1:
            sys.stdout.write(text)
        else:
            sys.stdout.write(f"==> {name} <==\n{text}")
    for note in found.notes:
        if output is not None:
            print_line(f"note: {note}")
        else:  # standard output holds the files
            sys.stderr.write(f"note: {note}\n")
