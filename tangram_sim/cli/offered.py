"""Options that every verb with an answer has: `--quiet`, `--verbose` and `--memory-limit`."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from tangram_sim.cli.derived import with_options
from tangram_sim.cli.verbosity import Verbosity, saying
from tangram_sim.errors import BadInputError
from tangram_sim.fields import LIMITS, OUTPUT, option
from tangram_sim.memory_limit import bytes_of, watched


@dataclass(frozen=True, slots=True)
class Offered:
    """Options for how much a verb prints, and how much memory it may use."""

    quiet: bool = option(False, "Print the answer and its table, no notes.", group=OUTPUT)
    verbose: bool = option(
        False, "Print every note, and every column however narrow the window.", group=OUTPUT
    )
    memory_limit: str | None = option(
        None,
        "Memory of this command and its processes, e.g. 4G: a search ends there with the best plan so far.",
        unset="nine tenths of what is free",
        group=LIMITS,
    )

    @property
    def verbosity(self) -> Verbosity:
        """How much is printed. Raises BadInputError for options that contradict each other."""
        if self.quiet and self.verbose:
            raise BadInputError("--quiet and --verbose contradict each other: give one of them")
        return Verbosity.QUIET if self.quiet else Verbosity.VERBOSE if self.verbose else Verbosity.NORMAL


def offer(app: typer.Typer) -> None:
    """Add these options to every verb of `app` and its subgroups that has --json."""
    for verb in app.registered_commands:
        if verb.callback is not None and "as_json" in inspect.signature(verb.callback).parameters:
            verb.callback = _offering(verb.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            offer(group.typer_instance)


def _offering(command: Callable[..., None]) -> Callable[..., None]:
    """The verb with the options added; unchanged if it has them already."""
    if "quiet" in inspect.signature(command).parameters:
        return command

    @functools.wraps(command)
    def run(*, quiet: bool, verbose: bool, memory_limit: str | None, **options: Any) -> None:
        offered = Offered(quiet, verbose, memory_limit)
        limit = bytes_of(memory_limit) if memory_limit is not None else None
        with saying(offered.verbosity), watched(limit):
            command(**options)

    return with_options(run, Offered)
