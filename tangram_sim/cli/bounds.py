"""Range checks on the numeric options of every verb.

Zero is allowed. Other values must be between LEAST and MOST in size: anything outside is taken for a typing
error, and calculations with it could overflow or underflow a float.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, get_args

import typer

from tangram_sim.errors import BadInputError

LEAST, MOST = 1e-15, 1e18  # of a float, as columns of the hardware tables
MOST_WHOLE = 10**15  # of a whole number


def hold(app: typer.Typer) -> None:
    """Make every verb of `app` and of its subgroups refuse numbers outside the allowed range."""
    for verb in app.registered_commands:
        if verb.callback is not None:
            verb.callback = _held(verb.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            hold(group.typer_instance)


def _held(command: Callable[..., None]) -> Callable[..., None]:
    parameters = inspect.signature(command).parameters

    @functools.wraps(command)
    def run(*given: Any, **options: Any) -> None:
        for name, value in options.items():
            _require(name, value, parameters)
        command(*given, **options)

    return run


def _require(name: str, value: object, parameters: Any) -> None:
    """Raise BadInputError for a number outside the allowed range or NaN; each verb checks infinity itself."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if isinstance(value, int):
        if abs(value) > MOST_WHOLE:
            raise BadInputError(f"{_option(name, parameters)} {value}: at most {MOST_WHOLE} can be meant")
    elif math.isnan(value):
        raise BadInputError(f"{_option(name, parameters)} nan: give a finite number")
    elif math.isfinite(value) and value and not LEAST <= abs(value) <= MOST:
        raise BadInputError(
            f"{_option(name, parameters)} {value:g}: zero, or {LEAST:g} to {MOST:g} can be meant"
        )


def _option(name: str, parameters: Any) -> str:
    """The option that sets a parameter."""
    for part in get_args(parameters[name].annotation):
        for declared in getattr(part, "param_decls", None) or ():
            if declared.startswith("--"):
                return str(declared)
    return f"--{name.replace('_', '-')}"
