"""`tangram rl export`: writes the configuration that launches a post-training plan."""

from pathlib import Path
from typing import Annotated

import typer

from tangram_sim.cli import options as shared

Plan = Annotated[Path, typer.Argument(metavar="PLAN", help="A file written by `tangram rl plan -o`.")]
To = Annotated[str, typer.Option("--to", "--for", help="verl, nemo-rl or areal.")]
Nearest = Annotated[
    bool, typer.Option("--nearest", help="Write the nearest plan that the framework can express.")
]
Folder = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the files into this folder.  [default: print]")
]


def command(
    plan: Plan,
    to: To = "verl",
    nearest: Nearest = False,
    output: Folder = None,
    as_json: shared.AsJson = False,
) -> None:
    """Write the YAML of verl or NeMo-RL, or AReaL's allocation mode; exit 2 for what cannot be expressed."""
    from tangram_sim.cli import buying
    from tangram_sim.cli.export import show_files
    from tangram_sim.export.post_training import export_post_training
    from tangram_sim.questions.rl import read_plan
    from tangram_sim.studies.rl_plan import plan_from

    if output is not None:
        buying.require_folder(output)
    asked, document = read_plan(plan)
    problem = asked.problem
    made = plan_from(document.decisions, problem)
    files = export_post_training(made, problem.work, to, nearest=nearest, fleet=problem.fleet)
    show_files(files, to, output, as_json)
