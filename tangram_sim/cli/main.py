"""The `tangram` command: collects the verbs and turns errors into one message and exit code 2."""

import atexit
import errno
import gc
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO, cast

import typer

from tangram_sim.cli import (
    begun,
    bounds,
    calibrate,
    cluster,
    compare,
    estimate,
    explain,
    export,
    goodput,
    grouped_help,
    hardware,
    interconnect,
    models,
    offered,
    plan,
    purchase,
    replay_trace,
    run,
    simulate,
    stragglers,
    trace,
    validate,
    web,
    what_if,
)
from tangram_sim.cli.printable import LONGEST, PrintableStream
from tangram_sim.cli.progress import Listener, listening
from tangram_sim.cli.rl import app as rl
from tangram_sim.cli.serving import app as serving
from tangram_sim.cli.streams import open_closed_streams, point_at_nothing, say_error
from tangram_sim.cli.wording import as_options
from tangram_sim.digests import ChangedFileWarning
from tangram_sim.errors import TangramError
from tangram_sim.studies.collecting import collecting_rarely

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
app.command("compare")(compare.command)
app.command("replay-trace")(replay_trace.command)
app.command("simulate")(simulate.command)
app.command("explain")(explain.command)
app.command("stragglers")(stragglers.command)
app.command("export")(export.command)
app.command("goodput")(goodput.command)
app.command("what-if")(what_if.command)
app.command("purchase")(purchase.command)
app.command("run", context_settings=run.SETTINGS)(run.command)
app.command("islands")(hardware.islands)
app.command("web")(web.command)
hardware.app.command("topology")(interconnect.topology)
app.add_typer(hardware.app, name="hw")
app.add_typer(cluster.app, name="cluster")
app.add_typer(interconnect.app, name="collectives")
app.add_typer(models.app, name="models")
app.add_typer(trace.app, name="trace")
app.add_typer(validate.app, name="validate")
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(serving.app, name="serve")
app.add_typer(export.train_app, name="train")
app.add_typer(rl.app, name="rl")
bounds.hold(app)
offered.offer(app)
grouped_help.offer(app)


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    """Plan and simulate the training of large language models on clusters of unequal GPUs."""
    if version:
        from tangram_sim import __version__

        typer.echo(f"tangram-sim {__version__}")
        raise typer.Exit


# Put together once: it takes as long as many a verb.
_COMMAND = typer.main.get_command(app)


def main() -> None:
    """Run a command. Exit 2 with one message for requests that cannot be met; `| head` ends quietly."""
    open_closed_streams()
    # Nothing is left to save: the interpreter's last looks for garbage among all that a search has made take
    # half a CPU second.
    atexit.register(gc.freeze)
    # Names out of files reach both streams: neither passes on what would steer a terminal.
    out, err = (cast(TextIO, PrintableStream(*of)) for of in ((sys.stdout, 0), (sys.stderr, LONGEST)))
    # What a verb imports is most of what a short one does, and makes many objects that all stay.
    with redirect_stdout(out), redirect_stderr(err), collecting_rarely():
        try:
            with begun.since(begun.process_start_s()):
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
    with listening(report), begun.since(time.monotonic(), time.process_time()):
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
    """Say on standard error, once each, which files were changed since they were written."""
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
