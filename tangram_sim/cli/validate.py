"""`tangram validate`: the group of verbs that hold predictions against measurements."""

import typer

from tangram_sim.cli.plugins import VerbGroup

app = typer.Typer(cls=VerbGroup, help="Hold predictions against measurements.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Hold predictions against measurements."""
