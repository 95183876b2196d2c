"""Verbs that other packages add to a command group, and the message for those that are not installed."""

from typing import Any

import typer

from tangram_sim import registry
from tangram_sim.cli import bounds, offered
from tangram_sim.cli.grouped_help import GroupedVerbs
from tangram_sim.errors import TangramError

# Verbs of the import package `tangram_validate` that need PyTorch: (group, verb) -> what it does.
ELSEWHERE = {
    ("calibrate", "kernels"): "Time kernels on this machine with PyTorch and distil efficiency rows.",
    ("validate", "testbed"): "Run plans for real with torch.distributed and compare.",
    ("validate", "device"): "Run training steps on one device and compare.",
}
INSTALL = (
    "it needs PyTorch and the package tangram_validate, which registers it under the entry-point group "
    f"{registry.VERBS}: `pip install 'tangram-sim[validate]'`, from a checkout `pip install -e '.[validate]'`"
)
_ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


class VerbGroup(GroupedVerbs):
    """A command group whose verbs may come from entry points; they are imported when they are called.

    Commands are `Any` here: which click they belong to depends on the version of typer.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the group's own verbs, then those of plug-ins, then those that could be installed."""
        own = super().list_commands(ctx)
        name = self.name or ""
        others = (*registry.verb_names(name), *(verb for group, verb in ELSEWHERE if group == name))
        return [*own, *dict.fromkeys(verb for verb in others if verb not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A built-in verb, a plug-in's, or a command that names the package to install."""
        found = super().get_command(ctx, cmd_name)
        name = self.name or ""
        if found is None and cmd_name in registry.verb_names(name):
            return as_command(registry.verb(name, cmd_name), cmd_name)
        if found is None and (name, cmd_name) in ELSEWHERE:
            return _absent(name, cmd_name)
        return found


def group_of(what: str) -> typer.Typer:
    """A command group whose verbs come from elsewhere alone; `what` is its help."""
    app = typer.Typer(cls=VerbGroup, help=what, no_args_is_help=True)
    app.callback(help=what)(lambda: None)
    return app


def as_command(plugin: Any, name: str) -> Any:
    """Turn a plug-in's object (a function with typer options, a typer app or a command) into a command.

    A function gets the same range checks and output options as built-in verbs. Raises TangramError for any
    other object.
    """
    if isinstance(plugin, typer.Typer):
        return typer.main.get_command(plugin)
    if callable(getattr(plugin, "invoke", None)):
        return plugin
    if not callable(plugin):
        raise TangramError(
            f"verb {name!r}: {type(plugin).__name__} is registered; register a function, a typer app or a "
            "command"
        )
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(plugin)
    bounds.hold(app)
    offered.offer(app)
    return typer.main.get_command(app)


def _absent(group: str, verb: str) -> Any:
    """A command that accepts any arguments and raises TangramError saying what to install."""
    app = typer.Typer(add_completion=False)
    what = ELSEWHERE[group, verb]

    @app.command(
        verb,
        help=f"{what} Not installed: {INSTALL}.",
        short_help=f"{what} (not installed)",
        context_settings=_ANY_ARGUMENTS,
    )
    def refuse(_context: typer.Context) -> None:
        raise TangramError(f"tangram {group} {verb} is not installed: {INSTALL}")

    return typer.main.get_command(app)
