"""`tangram calibrate`: corrects predictions, and narrows their intervals, from one's own measurements."""

import typer

from tangram_sim.cli.plugins import VerbGroup

app = typer.Typer(
    cls=VerbGroup, help="Shift and narrow predictions by what was measured.", no_args_is_help=True
)


@app.callback()
def group() -> None:
    """Shift and narrow predictions by what was measured."""
