"""`tangram serve export`: writes the files that start a planned service."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared

To = Annotated[
    str,
    typer.Option("--to", help="vllm, sglang, trtllm or kubernetes.  [default: the plan's engine]"),
]
Weights = Annotated[
    list[str] | None,
    typer.Option("--weights", help="MODEL=PATH_OR_HUB_NAME of its checkpoint; may be repeated."),
]
Folder = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the files into this folder.  [default: print]")
]


def command(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN_OR_FLEET", help="Written by `serve plan -o`, or a fleet file.")
    ],
    to: To = "",
    weights: Weights = None,
    output: Folder = None,
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Write launch lines or Kubernetes manifests, and router weights; exit 2 where a format cannot say it."""
    from tangram_sim.cli import buying
    from tangram_sim.cli.export import show_files
    from tangram_sim.errors import BadInputError
    from tangram_sim.export.service.commands import ENGINES
    from tangram_sim.export.service.formats import export_service
    from tangram_sim.export.service.groups import load_service

    if output is not None:
        buying.require_folder(output)
    places = {}
    for text in weights or ():
        name, sign, place = text.partition("=")
        if not sign or not name or not place:
            raise BadInputError(f"--weights {text}: give it like llama3-8b=meta-llama/Llama-3.1-8B")
        places[name] = place
    service = load_service(plan, shared.load_hwdb(hwdb), to if to in ENGINES else "")
    show_files(export_service(service, to or service.engine, places), to or service.engine, output, as_json)
