"""`tangram simulate`: simulates one training step of a plan file."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.studies.results import Result


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A file written by `tangram plan -o`.")],
    engine: Annotated[str, typer.Option("--engine", help="fast (compiled) or reference (SimPy).")] = "fast",
    slow: shared.Slow = None,
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
    result = _slowed(result, plan, slow, engine, database)
    output = writing.reported(result, output, database, as_json=as_json)
    writing.show(result, as_json=as_json, output=output, trace=trace, memory=memory)


def _slowed(result: "Result", plan: Path, slow: list[str] | None, engine: str, database: "Hwdb") -> "Result":
    """The plan played under --slow, or under what its file says was slow."""
    from tangram_sim.studies.api import CHANGED
    from tangram_sim.studies.planfile import read_plan_keys
    from tangram_sim.studies.slow_files import read_every_slow, slow_of
    from tangram_sim.studies.slow_plans import replayed

    made = result.forecast.plan
    section = read_plan_keys(plan)[0].slow
    if slow is not None:
        given = read_every_slow(slow, made.cluster)
    elif section is not None:
        given = slow_of(section)
    else:
        return result
    if given.is_nothing:
        return result
    played, changed = replayed(made, given, database, engine), CHANGED.among(result.document.findings)
    return replace(played, document=played.document.with_findings([*changed, *played.document.findings]))
