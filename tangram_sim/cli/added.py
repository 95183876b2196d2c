"""Verbs that other packages add by entry point `tangram_sim.verbs`: "GROUP VERB" joins or makes a group."""

import typer

from tangram_sim.registry import verb, verb_names


def add_verbs(app: typer.Typer, groups: dict[str, typer.Typer]) -> None:
    """Add every registered verb to `app`; `groups` are the groups it has, by name.

    A verb's module is imported here, so it must be light; what it needs it imports when it runs.
    Raises TangramError naming the distribution when a verb cannot be imported.
    """
    known = dict(groups)
    for name in verb_names():
        group, _, last = name.rpartition(" ")
        target = app
        if group:
            if group not in known:
                known[group] = typer.Typer(help=_HELP.get(group, ""), no_args_is_help=True)
                known[group].callback()(_group)
                app.add_typer(known[group], name=group)
            target = known[group]
        target.command(last)(verb(name))


_HELP = {"calibrate": "Turn measurements into rows of the hardware database."}


def _group() -> None:
    """A group of verbs that other packages bring."""
