"""`tangram simulate`: replay a plan file."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A file written by `tangram plan -o`.")],
    engine: Annotated[str, typer.Option("--engine", help="fast (compiled) or reference (SimPy).")] = "fast",
    output: shared.Output = None,
    as_json: shared.AsJson = False,
    trace: shared.Trace = None,
    memory: shared.MemoryFile = None,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Replay a plan file; rows under --hwdb win over the figures in the file and re-price the decisions."""
    from tangram_sim.cli import writing
    from tangram_sim.studies import api

    writing.require_writable(output=output, trace=trace, memory=memory)
    database = shared.load_hwdb(hwdb)
    result = api.simulate(plan, engine=engine, hwdb=database)
    output = writing.reported(result, output, database, as_json=as_json)
    writing.show(result, as_json=as_json, output=output, trace=trace, memory=memory)
