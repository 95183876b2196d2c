"""The reference of every verb, from the command line's own help."""

from collections.abc import Iterator

import click
import typer

from tangram_sim.cli.main import app


def page() -> str:
    """Markdown: one heading per verb, its arguments and options as tables."""
    root = typer.main.get_command(app)
    parts = [
        "# Commands\n\nEvery verb takes `--help`, most take `--json`; bad input ends with exit code 2.\n"
    ]
    parts += [_section(path, command) for path, command in _leaves((), root)]
    return "\n".join(parts)


def _leaves(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            if not inner.hidden:
                yield from _leaves((*path, name), inner)
    else:
        yield path, command


def _section(path: tuple[str, ...], command: click.Command) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    words = " ".join(argument.make_metavar(click.Context(command)) for argument in arguments)
    lines = [f"## {' '.join(path)}", "", f"`tangram {' '.join(path)} {words}`".rstrip(), ""]
    lines += [_cell(command.help or "").replace("<br>", " "), ""]
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    rows = [(argument.name or "", getattr(argument, "help", "") or "", None) for argument in arguments]
    rows += [
        (", ".join([*option.opts, *option.secondary_opts]), option.help or "", _default(option))
        for option in options
    ]
    if rows:
        lines += ["| what | meaning | default |", "|---|---|---|"]
        lines += [f"| `{name}` | {_cell(text)} | {default or ''} |" for name, text, default in rows]
    return "\n".join([*lines, ""])


def _default(option: click.Option) -> str:
    value = option.default() if callable(option.default) else option.default
    return (
        f"`{value}`"
        if isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
        else ""
    )


def _cell(text: str) -> str:
    """Text that stays one cell of a table and means what it says."""
    return (
        " ".join(text.split())
        .replace("|", "\\|")
        .replace("<", "&lt;")
        .replace("*", "\\*")
        .replace("_", "\\_")
    )
