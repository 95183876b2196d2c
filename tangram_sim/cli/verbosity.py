"""How much a verb says: `--quiet` and `--verbose`, offered by every verb that prints a table."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Annotated, Any

import typer

from tangram_sim.errors import BadInputError


class Verbosity(Enum):
    """How much is printed beside the answer; JSON and files are never touched."""

    QUIET = "quiet"  # the answer and its table
    NORMAL = "normal"  # the gravest notes, and what fits the window
    VERBOSE = "verbose"  # every note and every column


_CHOSEN: ContextVar[Verbosity] = ContextVar("verbosity", default=Verbosity.NORMAL)

Quiet = Annotated[bool, typer.Option("--quiet", help="Print the answer and its table, no notes.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Print every note, and every column however narrow the window.")
]


def chosen() -> Verbosity:
    """How much the running verb should print."""
    return _CHOSEN.get()


@contextmanager
def saying(verbosity: Verbosity) -> Iterator[None]:
    """Set how much is printed inside the block."""
    before = _CHOSEN.set(verbosity)
    try:
        yield
    finally:
        _CHOSEN.reset(before)


def offer(app: typer.Typer) -> None:
    """Add --quiet and --verbose to every verb of `app` and its subgroups that has --json."""
    for verb in app.registered_commands:
        if verb.callback is not None and "as_json" in inspect.signature(verb.callback).parameters:
            verb.callback = _offering(verb.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            offer(group.typer_instance)


def _offering(command: Callable[..., None]) -> Callable[..., None]:
    """The verb with --quiet and --verbose added; unchanged if it has them already."""
    signature = inspect.signature(command)
    if "quiet" in signature.parameters:
        return command

    @functools.wraps(command)
    def run(*, quiet: bool = False, verbose: bool = False, **options: Any) -> None:
        if quiet and verbose:
            raise BadInputError("--quiet and --verbose contradict each other: give one of them")
        asked = Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL
        with saying(asked):
            command(**options)

    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("quiet", Quiet), ("verbose", Verbose))
    ]
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {**command.__annotations__, "quiet": Quiet, "verbose": Verbose}
    return run
