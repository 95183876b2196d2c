"""A shell script with one command for every group of identical replicas, written and read."""

import re
import shlex
from collections.abc import Mapping

from tangram_sim.errors import BadInputError
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
_READ = re.compile(
    r"^  \d+\) # (?P<count>\d+) x (?P<name>.*) \| (?P<model>\S+) (?P<precision>\S+) (?P<kv>\S+) "
    r"\| (?P<stages>.*)\n    (?P<line>.*) ;;$",
    re.MULTILINE,
)


def write(service: ServiceLaunch, engine: str, weights: Mapping[str, str]) -> tuple[str, list[str]]:
    """(the script, notes); `weights` by model: a path or the name on a hub. Raises CannotExportError."""
    last, notes, lines = len(service.groups) - 1, list[str](), list[str]()
    for number, group in enumerate(service.groups):
        one = command(group, engine, weights.get(group.model, group.model))
        notes += one.notes
        told = [f"{name}={shlex.quote(value)}" for name, value in one.environment]
        start = " ".join([*told, "exec", *map(shlex.quote, one.arguments)])
        lines.append(
            _GROUP.format(
                number=number,
                count=group.count,
                name=group.name,
                model=group.model,
                precision=group.precision,
                kv=group.kv_precision,
                stages=" ".join(f"{kind}:{tp}:{layers}" for kind, tp, layers in group.stages),
                line=start,
            )
        )
    text = "".join([_HEAD.format(engine=engine, file=FILE, last=last), *lines, _TAIL.format(last=last)])
    return text, notes


def read(text: str, engine: str) -> tuple[ServedGroup, ...]:
    """The groups that a script starts. Raises BadInputError for another script."""
    groups = []
    for match in _READ.finditer(text):
        words = shlex.split(match["line"])
        at = words.index("exec")
        environment = dict(word.split("=", 1) for word in words[:at])
        groups.append(
            parsed(
                engine,
                environment,
                words[at + 1 :],
                stages_of(match["stages"]),
                name=match["name"],
                model=match["model"],
                count=int(match["count"]),
                precision=match["precision"],
                kv_precision=match["kv"],
            )
        )
    if not groups:
        raise BadInputError(f"{FILE}: not a launch script of `tangram serve export`")
    return tuple(groups)


def stages_of(text: str) -> list[tuple[str, int, int]]:
    """Parse `KIND:TP:LAYERS ...` into (GPU kind, tensor-parallel degree, layers)."""
    found = []
    for part in text.split():
        kind, tp, layers = part.split(":")
        found.append((kind, int(tp), int(layers)))
    return found
