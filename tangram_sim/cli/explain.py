"""`tangram explain`: what a plan's step is made of, and why not otherwise."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.console import print_json, print_table
from tangram_sim.units import show_seconds

_SHOWN = 12


def command(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A file written by `tangram plan -o`.")],
    as_json: shared.AsJson = False,
    hwdb: shared.HwdbFolders = None,
) -> None:
    """Say where the step of a plan goes (critical path by cause), and what speaks against other layouts."""
    from tangram_sim.studies.explain import explain
    from tangram_sim.studies.planfile import plan_from_document, read_plan

    database = shared.load_hwdb(hwdb)
    found = explain(plan_from_document(read_plan(plan), database, str(plan)), database)
    step_s = found.forecast.step_s
    if as_json:
        print_json(
            {
                "step_s": step_s,
                "critical_path": [{"cause": share.cause, "seconds": share.seconds} for share in found.path],
                "stages": [
                    [{"kernel": share.cause, "seconds": share.seconds} for share in shares] for shares in found.inside
                ],
                "why_not": [{"stage": w.stage, "layout": w.layout, "verdict": w.verdict} for w in found.why_not],
            }
        )
        return
    typer.echo(f"The step of {show_seconds(step_s)} is, along its critical path:")
    rows = [(share.cause, show_seconds(share.seconds), f"{share.seconds / step_s * 100:.1f} %") for share in found.path[:_SHOWN]]
    print_table(("cause", "time", "share"), rows, right=(1, 2))
    typer.echo("One microbatch through each stage, forward and backward, along the critical path of its kernels:")
    rows = [
        (str(number), ", ".join(f"{share.cause} {show_seconds(share.seconds)}" for share in shares if share.seconds > 0))
        for number, shares in enumerate(found.inside)
    ]
    print_table(("stage", "time by kernel class"), rows)
    typer.echo("Why not otherwise:")
    print_table(("stage", "layout", "verdict"), [(str(w.stage), w.layout, w.verdict) for w in found.why_not])
