"""Options that every verb with an answer has: `--quiet`, `--verbose` and `--memory-limit`."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tangram_sim.cli.verbosity import Quiet, Verbose, Verbosity, saying
from tangram_sim.errors import BadInputError
from tangram_sim.memory_limit import bytes_of, watched

MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        help="Memory of this command and its processes, e.g. 4G: a search ends there with the best plan so "
        "far.  [default: nine tenths of what is free]",
    ),
]


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
    signature = inspect.signature(command)
    if "quiet" in signature.parameters:
        return command

    @functools.wraps(command)
    def run(
        *, quiet: bool = False, verbose: bool = False, memory_limit: str | None = None, **options: Any
    ) -> None:
        if quiet and verbose:
            raise BadInputError("--quiet and --verbose contradict each other: give one of them")
        asked = Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL
        with saying(asked), watched(bytes_of(memory_limit) if memory_limit is not None else None):
            command(**options)

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()
    ]
    added = {"quiet": (False, Quiet), "verbose": (False, Verbose), "memory_limit": (None, MemoryLimit)}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *own,
            *(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
                for name, (default, kind) in added.items()
            ),
        ]
    )
    run.__annotations__ = command.__annotations__ | {name: kind for name, (_, kind) in added.items()}
    return run
