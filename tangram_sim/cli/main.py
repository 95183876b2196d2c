"""The `tangram` command: collects the verbs and turns errors into one message and exit code 2."""

import os
import sys

import typer

from tangram_sim.cli import estimate, explain, hardware, models, plan, simulate
from tangram_sim.errors import TangramError

app = typer.Typer(
    name="tangram",
    help="Plan and simulate the training of large language models on clusters of unequal GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("plan")(plan.command)
app.command("estimate")(estimate.command)
app.command("simulate")(simulate.command)
app.command("explain")(explain.command)
app.command("islands")(hardware.islands)
app.add_typer(hardware.app, name="hw")
app.add_typer(models.app, name="models")


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    """Plan and simulate the training of large language models on clusters of unequal GPUs."""
    if version:
        from tangram_sim import __version__

        typer.echo(f"tangram-sim {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command. Exit 2 with one message for requests that cannot be met; `| head` ends quietly."""
    try:
        app(standalone_mode=True)
        sys.stdout.flush()
    except TangramError as error:
        _leave(f"error: {error}", 2)
    except BrokenPipeError:
        # The reader has what it wanted; keep the interpreter from complaining when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        _leave("interrupted; nothing was written", 130)


def _leave(message: str, code: int) -> None:
    sys.stderr.write(message.rstrip() + "\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
