"""The `tangram` command: collects the verbs and turns errors into one message and exit code 2."""

import atexit
import errno
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TextIO, cast

import typer

from tangram_sim.cli import (
    bounds,
    cluster,
    command_clock,
    compare,
    explain,
    export,
    goodput,
    grouped_help,
    hardware,
    interconnect,
    islands,
    models,
    offered,
    plan,
    played,
    plugins,
    purchase,
    replay,
    run,
    stragglers,
    trace,
    web,
    what_if,
)
from tangram_sim.cli.derived import derived, renamed
from tangram_sim.cli.printable import LONGEST, PrintableStream
from tangram_sim.cli.progress import Listener, listening
from tangram_sim.cli.rl import app as rl
from tangram_sim.cli.serving import app as serving
from tangram_sim.cli.streams import open_closed_streams, point_at_nothing, say_error
from tangram_sim.cli.wording import as_options
from tangram_sim.digests import ChangedFileWarning
from tangram_sim.errors import TangramError
from tangram_sim.fields import option
from tangram_sim.studies.collecting import collecting_rarely

app = typer.Typer(
    name="tangram",
    cls=grouped_help.GroupedVerbs,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# What trains is asked as `tangram train VERB`, and in short as `tangram VERB`.
TRAINING: dict[str, Callable[..., None]] = {
    "plan": plan.command,
    "estimate": played.estimate,
    "simulate": played.simulate,
    "explain": explain.command,
    "compare": compare.command,
    "what-if": what_if.command,
    "purchase": purchase.command,
    "goodput": goodput.command,
    "export": export.command,
    "stragglers": stragglers.command,
}
_TRAIN, _OTHERS, _DATA, _TRUST = (
    *("Train (also: tangram train VERB)", "Serve, post-train, ask again"),
    *("Hardware, clusters, models", "Accuracy and calibration"),
)
train = typer.Typer(
    help="Train a model: plan, estimate, simulate, explain, buy for it and start it.", no_args_is_help=True
)
for verb, asked in TRAINING.items():
    app.command(verb, rich_help_panel=_TRAIN)(asked)
    train.command(verb)(asked)
train.command("replay")(replay.command)
app.command("replay-trace", hidden=True)(renamed(replay.command, "replay-trace", "train replay"))
app.add_typer(train, name="train", rich_help_panel=_TRAIN)
app.add_typer(serving.app, name="serve", rich_help_panel=_OTHERS)
app.add_typer(rl.app, name="rl", rich_help_panel=_OTHERS)
app.command("run", context_settings=run.SETTINGS, rich_help_panel=_OTHERS)(run.command)
app.command("web", rich_help_panel=_OTHERS)(web.command)
hardware.app.command("topology")(interconnect.topology)
app.add_typer(hardware.app, name="hw", rich_help_panel=_DATA)
app.add_typer(cluster.app, name="cluster", rich_help_panel=_DATA)
app.command("islands", rich_help_panel=_DATA)(islands.command)
app.add_typer(interconnect.app, name="collectives", rich_help_panel=_DATA)
app.add_typer(models.app, name="models", rich_help_panel=_DATA)
app.add_typer(trace.app, name="trace", rich_help_panel=_DATA)
for name, what in (
    ("validate", "Hold predictions against measurements."),
    ("calibrate", "Shift and narrow predictions by what was measured."),
):
    app.add_typer(plugins.group_of(what), name=name, rich_help_panel=_TRUST)
bounds.hold(app)
offered.offer(app)
grouped_help.offer(app)


@dataclass(frozen=True, slots=True)
class Version:
    """The option to print the version instead of running a verb."""

    version: bool = option(False, "Print the version and leave.")


@app.callback(invoke_without_command=True)
@derived
def root(context: typer.Context, asked: Version) -> None:
    """Plan, predict and buy for training, serving and post-training of language models on unequal GPUs.

    \b
    I have GPUs and a model:      tangram plan llama3-8b H100x8:4+A100-80GBx8:6
    I have a layout in mind:      tangram estimate llama3-8b H100x8:4 --tp 4 --pp 2
    I want to start that plan:    tangram export plan.json --to megatron
    I can buy or rent:            tangram what-if llama3-8b H100x8:4 --add H100x8:2
    I want to serve a model:      tangram serve estimate llama3-8b --gpu H100 --rate 5
    I would rather use a page:    tangram web
    """
    if asked.version:
        from tangram_sim import __version__

        typer.echo(f"tangram-sim {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


# Put together once: it takes as long as many a verb.
_COMMAND = typer.main.get_command(app)


def main() -> None:
    """Run a command. Exits with 2 and one message if it cannot be met; `| head` is no error."""
    open_closed_streams()
    # Nothing is left to save: the interpreter's last looks for garbage among all that a search has made take
    # half a CPU second.
    atexit.register(gc.freeze)
    # Names out of files reach both streams: neither passes on what would steer a terminal.
    out, err = (cast(TextIO, PrintableStream(*of)) for of in ((sys.stdout, 0), (sys.stderr, LONGEST)))
    # What a verb imports is most of what a short one does, and makes many objects that all stay.
    with redirect_stdout(out), redirect_stderr(err), collecting_rarely():
        try:
            with command_clock.since(command_clock.process_start_s()):
                code = _run()
            sys.stdout.flush()
        except BrokenPipeError:
            code = _reader_left()
        except OSError as error:
            code = 2
            if error.filename is not None:  # a path of the user's that the system refuses, like one too long
                say_error(f"{error.filename}: {error.strerror}")
            else:  # standard output is a full disk
                say_error(f"standard output cannot be written: {error.strerror}")
                _reader_left()
    sys.exit(code)


def run_verb(words: Sequence[str], report: Listener) -> int:
    """Run one verb in this process and return its exit code; `report` is called with its progress."""
    with listening(report), command_clock.since(time.monotonic(), time.process_time()):
        return _run(words)


def _run(words: Sequence[str] | None = None) -> int:
    """Run the command in `words` (None: that of `sys.argv`) and return its exit code."""
    try:
        with _changed_files_told():
            _COMMAND(args=words, prog_name="tangram")
    except TangramError as error:
        say_error(as_options(str(error)))
        return 2
    except SystemExit as leave:
        # Typer ends a command whose reader has left with exit code 1; for us that is a good end.
        cause = leave.__context__
        if isinstance(cause, OSError) and cause.errno == errno.EPIPE:
            return _reader_left()
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    return 0


@contextmanager
def _changed_files_told() -> Iterator[None]:
    """Context that reports on standard error, once each, files that were changed since they were written."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, ChangedFileWarning):
                sys.stderr.write(f"warning: {message}\n")
            else:
                others(message, category, filename, lineno, file, line)

        warnings.simplefilter("once", ChangedFileWarning)
        warnings.showwarning = show
        yield


def _reader_left() -> int:
    """Point standard output at the null device after its reader closed the pipe. Returns exit code 0."""
    point_at_nothing(sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return 0


if __name__ == "__main__":
    main()
