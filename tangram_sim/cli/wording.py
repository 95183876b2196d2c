"""Rewrites the names of Python arguments in error messages as command-line options.

A message names an argument as Python writes it, `tp=3` or `global_batch=` in backticks; here that is --tp 3
and --global-batch.
"""

import re

_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)=([^`\n]*)`")

# Options whose names are not those of the arguments they set.
OPTIONS = {
    "every_candidate": "--candidates",
    "fixed": "--fix",
    "fleet_bound": "--bound",
    "frameworks": "--for",
    "time_limit_s": "--time-limit",
    "zero_stage": "--zero",
}


def option_of(argument: str) -> str:
    """The option that sets an argument."""
    return OPTIONS.get(argument, "--" + argument.replace("_", "-"))


def as_options(text: str) -> str:
    """`text` with every argument as its option; a flag that is set is the option alone."""

    def option(found: re.Match[str]) -> str:
        value = "" if found[2] in ("", "True") else f" {found[2]}"
        return f"{option_of(found[1])}{value}"

    return _ARGUMENT.sub(option, text)
