"""A shell script with one command for every group of identical replicas, written and read."""

import re
import shlex
from collections.abc import Mapping, Sequence

from tangram_sim.errors import BadInputError
from tangram_sim.export.quoting import comment, word, words
from tangram_sim.export.service.commands import command, parsed
from tangram_sim.export.service.groups import ServedGroup, ServiceLaunch

FILE = "launch.sh"
_HEAD = """\
#!/bin/sh
# Replicas of a plan under {engine}: `sh {file} GROUP` starts one replica of that group here.
set -eu
case "${{1:?give the number of a group, 0 to {last}}}" in
"""
_GROUP = """\
  {number}) # {count} x {name} | {model} {precision} {kv} | {stages}
    {line} ;;
"""
_TAIL = """\
  *) echo "group $1: there are 0 to {last}" >&2; exit 2 ;;
esac
"""
_READ = re.compile(r"^  \d+\) #.*\n    (?P<line>.*) ;;$", re.MULTILINE)


def write(service: ServiceLaunch, engine: str, weights: Mapping[str, str]) -> tuple[str, list[str]]:
    """(the script, notes); `weights` by model: a path or the name on a hub. Raises CannotExportError."""
    last, notes, lines = len(service.groups) - 1, list[str](), list[str]()
    for number, group in enumerate(service.groups):
        launch_command = command(group, engine, weights.get(group.model, group.model))
        notes += launch_command.notes
        told = [f"{name}={word(value)}" for name, value in launch_command.environment]
        start = " ".join([*told, "exec", words(launch_command.arguments)])
        lines.append(
            _GROUP.format(
                number=number,
                count=group.count,
                name=comment(group.name),
                model=comment(group.model),
                precision=comment(group.precision),
                kv=comment(group.kv_precision),
                stages=comment(" ".join(f"{kind}:{tp}:{layers}" for kind, tp, layers in group.stages)),
                line=start,
            )
        )
    text = "".join([_HEAD.format(engine=engine, file=FILE, last=last), *lines, _TAIL.format(last=last)])
    return text, notes


def read(text: str, engine: str, planned: Sequence[ServedGroup]) -> tuple[ServedGroup, ...]:
    """The groups that a script starts; what no command states (names, counts) comes from `planned`.

    Raises BadInputError for another script.
    """
    lines = [shlex.split(match["line"]) for match in _READ.finditer(text)]
    if len(lines) != len(planned) or any("exec" not in line for line in lines):
        raise BadInputError(f"{FILE}: not a launch script of `tangram serve export`, or groups are missing")
    groups = []
    for line, group in zip(lines, planned, strict=True):
        at = line.index("exec")
        groups.append(
            parsed(
                engine,
                dict(entry.split("=", 1) for entry in line[:at]),
                line[at + 1 :],
                group.stages,
                name=group.name,
                model=group.model,
                count=group.count,
                precision=group.precision,
                kv_precision=group.kv_precision,
            )
        )
    return tuple(groups)
