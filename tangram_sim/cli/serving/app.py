"""The verbs of `tangram serve`."""

import typer

from tangram_sim.cli.plugins import VerbGroup
from tangram_sim.cli.serving import (
    compare,
    estimate,
    export,
    plan,
    purchase,
    replan,
    simulate,
    what_if,
    workload,
)

app = typer.Typer(
    cls=VerbGroup,
    help="Serving: plan, simulate and validate inference on unequal GPUs.",
    no_args_is_help=True,
)
app.command("plan")(plan.command)
app.command("replan")(replan.command)
app.command("what-if")(what_if.command)
app.command("purchase")(purchase.command)
app.command("export")(export.command)
app.command("estimate")(estimate.command)
app.command("simulate")(simulate.command)
app.command("compare")(compare.command)
app.add_typer(workload.app, name="workload")
