"""The verbs of `tangram rl`."""

import typer

from tangram_sim.cli.export import writer
from tangram_sim.cli.plugins import VerbGroup
from tangram_sim.cli.rl import verbs
from tangram_sim.questions.rl import RlExportQuestion

app = typer.Typer(
    cls=VerbGroup,
    help="Post-training: plan, simulate and validate reinforcement learning on unequal GPUs.",
    no_args_is_help=True,
)

app.command("plan")(verbs.plan)
app.command("estimate")(verbs.estimate)
app.command("simulate")(verbs.simulate)
app.command("compare")(verbs.compare)
app.command("what-if")(verbs.what_if)
app.command("purchase")(verbs.purchase)
app.command("export")(writer(RlExportQuestion))
