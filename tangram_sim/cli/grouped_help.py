"""Help of a verb in groups: what most people need first, the rest by subject under Advanced."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tangram_sim.fields import OUTPUT, Leaf


class GroupedCommand(TyperCommand):
    """A command whose help shows options in groups; one without described fields shows one list."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of arguments and options."""
        found: dict[str, Leaf] = getattr(self.callback, "leaves", {})
        if not found:
            super().format_options(ctx, formatter)
            return
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            leaf = found.get(parameter.name or "")
            if parameter.param_type_name == "argument":
                title = "Arguments"
            elif parameter.name == "help":
                title = OUTPUT
            elif leaf is None or leaf.about.basic:
                title = "Options"
            else:
                title = leaf.about.group if leaf.about.group == OUTPUT else f"Advanced: {leaf.about.group}"
            sections.setdefault(title, []).append(record)
        sections[OUTPUT] = sections.pop(OUTPUT, [])  # last
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class GroupedVerbs(TyperGroup):
    """A command group whose verbs are listed in sections, by the help panel of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of verbs."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            verb: Any = self.get_command(ctx, name)
            if verb is not None and not verb.hidden:
                title = verb.rich_help_panel if isinstance(verb.rich_help_panel, str) else "Commands"
                sections.setdefault(title, []).append((name, verb.get_short_help_str(limit=200)))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def offer(app: typer.Typer) -> None:
    """Show the help of every verb of `app` and its subgroups in groups."""
    for verb in app.registered_commands:
        verb.cls = GroupedCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            if not isinstance(group.typer_instance.info.cls, type):
                group.typer_instance.info.cls = GroupedVerbs
            offer(group.typer_instance)
