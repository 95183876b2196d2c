"""The verbs of `tangram serve`."""

import typer

from tangram_sim.cli.export import writer
from tangram_sim.cli.plugins import VerbGroup
from tangram_sim.cli.serving import compare, estimate, plan, replan, simulate, tune, what_if, workload
from tangram_sim.questions.serve_export import ServeExportQuestion

app = typer.Typer(
    cls=VerbGroup,
    help="Serving: plan, simulate and validate inference on unequal GPUs.",
    no_args_is_help=True,
)
app.command("plan")(plan.command)
app.command("replan")(replan.command)
app.command("what-if")(what_if.what_if)
app.command("purchase")(what_if.purchase)
app.command("export")(writer(ServeExportQuestion))
app.command("estimate")(estimate.command)
app.command("simulate")(simulate.command)
app.command("tune")(tune.command)
app.command("compare")(compare.command)
app.add_typer(workload.app, name="workload")
