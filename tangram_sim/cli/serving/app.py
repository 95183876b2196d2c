"""The verbs of `tangram serve`."""

import typer

from tangram_sim.cli.serving import plan

app = typer.Typer(
    help="Serving: plan, simulate and validate inference on unequal GPUs.", no_args_is_help=True
)
app.command("plan")(plan.command)
