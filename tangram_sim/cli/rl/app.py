"""The verbs of `tangram rl`."""

import typer

from tangram_sim.cli.plugins import VerbGroup

app = typer.Typer(
    cls=VerbGroup,
    help="Post-training: plan, simulate and validate reinforcement learning on unequal GPUs.",
    no_args_is_help=True,
)


@app.callback()
def group() -> None:
    """Post-training: plan, simulate and validate reinforcement learning on unequal GPUs."""
