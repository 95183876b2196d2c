"""The verbs of `tangram serve`."""

import typer

from tangram_sim.cli.serving import (
    calibrate,
    compare,
    estimate,
    export,
    plan,
    purchase,
    replan,
    simulate,
    validate,
    what_if,
    workload,
)

app = typer.Typer(
    help="Serving: plan, simulate and validate inference on unequal GPUs.", no_args_is_help=True
)
app.command("plan")(plan.command)
app.command("replan")(replan.command)
app.command("what-if")(what_if.command)
app.command("purchase")(purchase.command)
app.command("export")(export.command)
app.command("estimate")(estimate.command)
app.command("simulate")(simulate.command)
app.command("validate")(validate.command)
app.command("calibrate")(calibrate.command)
app.command("compare")(compare.command)
app.add_typer(workload.app, name="workload")
