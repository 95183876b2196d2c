"""`python -m tests.fuzz.corruptions [--cases N] [--seed N]`: damaged caches and plan files, used.

An answer from a damaged file must be the answer of the sound one, or an error, or stand beside words that say
what was damaged. What is counted is the rest: other figures with nothing said, and tracebacks.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.commands import Finished, files, tangram

JOB = ("--global-batch", "8", "--seq", "1024")
OF_PLANS: tuple[tuple[str, ...], ...] = (
    ("simulate", "PLAN", "--json"),
    ("explain", "PLAN", "--json"),
    ("explain", "PLAN", "--lost", "n0", "--json"),
    ("export", "PLAN", "--to", "rankmap"),
    ("goodput", "PLAN", "--mtbf-s", "40000", "--checkpoint-s", "30", "--json"),
    ("estimate", "PLAN", "PLAN", "--pp", "2", "--dp", "2", *JOB, "--json"),
    ("compare", "PLAN", "PLAN", "--planners", "uniform", *JOB, "--json"),
)
OF_CACHES: tuple[tuple[str, ...], ...] = (
    ("what-if", "MODEL", "CLUSTER", *JOB, "--add", "p4d.24xlarge:1", "--jobs", "1", "--json"),
    (
        "purchase",
        "MODEL",
        "CLUSTER",
        *JOB,
        "--catalogue",
        "SHOP",
        "--prices",
        "PRICES",
        "--max-nodes",
        "1",
        "--jobs",
        "1",
        "--json",
    ),
)
SHOP = "offers: [{node: p4d.24xlarge, most: 1}, {node: g6e.12xlarge, most: 1}]\n"
PRICES = """\
nodes:
  p4d.24xlarge: {rent_usd_per_hour: 22, date: 2026-11-01, source: invented}
  g6e.12xlarge: {rent_usd_per_hour: 10, date: 2026-11-01, source: invented}
"""
SAID = re.compile(r"damaged|changed since|was changed|do not replay|its decisions take|re-priced", re.I)
_OF_THE_RUN = re.compile(r'"(planning_s|planning_cpu_s|cpu_s|wall_s)": [^,\n}]+|"digest": "\w*"')


@dataclass(frozen=True)
class Damaged:
    """What one corruption led to."""

    how: str
    command: str
    outcome: str  # same, said, refused, silent, traceback


def digit(text: str, random: Random) -> str:
    """One digit changed."""
    spot = random.choice([*re.finditer(r"\d", text)])
    other = random.choice([item for item in "0123456789" if item != spot.group()])
    return text[: spot.start()] + other + text[spot.end() :]


def cut(text: str, random: Random) -> str:
    """The end lost."""
    return text[: random.randrange(len(text) - 2)]


def renamed(text: str, random: Random) -> str:
    """One key with another letter."""
    data = json.loads(text)
    holder, key = random.choice([(at, name) for at in _mappings(data) for name in at])
    holder[f"{key[:-1]}x" if key[-1:] != "x" else f"{key}y"] = holder.pop(key)
    return json.dumps(data, indent=1)


def swapped(text: str, random: Random) -> str:
    """Two values of one kind exchanged."""
    data = json.loads(text)
    spots = [(at, name) for at in _mappings(data) for name in at if isinstance(at[name], int | float | str)]
    for _ in range(1000):
        (item, name), (other, word) = random.sample(spots, 2)
        if type(item[name]) is type(other[word]) and item[name] != other[word]:
            item[name], other[word] = other[word], item[name]
            return json.dumps(data, indent=1)
    return cut(text, random)


HOW: dict[str, Callable[[str, Random], str]] = {
    "digit changed": digit,
    "key renamed": renamed,
    "values swapped": swapped,
    "truncated": cut,
}


def _mappings(data: Any) -> list[dict[str, Any]]:
    if isinstance(data, dict):
        return [data, *(inner for value in data.values() for inner in _mappings(value))]
    return [inner for value in data for inner in _mappings(value)] if isinstance(data, list) else []


class Bench:
    """Sound files and answers, and what is made of them once damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        model, cluster = files(folder)
        (folder / "shop.yaml").write_text(SHOP)
        (folder / "prices.yaml").write_text(PRICES)
        self.plan, self.cache, self.kept = folder / "plan.json", folder / "cache", folder / "kept"
        self.places = {"MODEL": model, "CLUSTER": cluster, "SHOP": folder / "shop.yaml", "PLAN": self.plan}
        self.places["PRICES"] = folder / "prices.yaml"
        made = tangram("plan", model, cluster, *JOB, "-o", self.plan)
        if made.code:
            raise RuntimeError(made.err)
        self.sound_plan = self.plan.read_text()
        self.sound = {command: self._run(command) for command in (*OF_CACHES, *OF_PLANS)}
        for command, finished in self.sound.items():
            if finished.code or SAID.search(finished.out + finished.err):
                raise RuntimeError(f"{' '.join(command)} is not sound: {finished.err or finished.out}")
        shutil.copytree(self.cache, self.kept)
        self.entries = sorted(path.relative_to(self.kept) for path in self.kept.rglob("*.json"))

    def _run(self, command: tuple[str, ...]) -> Finished:
        words = [str(self.places.get(word, word)) for word in command]
        return tangram(*words, *(("--cache", self.cache) if command in OF_CACHES else ()))

    def case(self, number: int, seed: int) -> Damaged:
        """One corruption of a kept answer or the plan file, and one verb that reads it."""
        random = Random(f"{seed}/{number}")
        how = random.choice(sorted(HOW))
        if number % 2:
            command, path, sound = random.choice(OF_PLANS), self.plan, self.sound_plan
        else:
            command, entry = random.choice(OF_CACHES), random.choice(self.entries)
            shutil.rmtree(self.cache)
            shutil.copytree(self.kept, self.cache)
            path, sound = self.cache / entry, (self.kept / entry).read_text()
        path.write_text(HOW[how](sound, random))
        try:
            outcome = self._judged(command)
        finally:
            self.plan.write_text(self.sound_plan)
        return Damaged(how, command[0], outcome)

    def _judged(self, command: tuple[str, ...]) -> str:
        try:
            found = self._run(command)
        except Exception as error:  # what a user would see as a traceback
            return f"traceback {type(error).__name__}: {error}"
        if found.code == 2 and found.err.startswith("error: ") and not found.out:
            return "refused"
        if SAID.search(found.out + found.err):
            return "said"
        alike = _OF_THE_RUN.sub("", found.out) == _OF_THE_RUN.sub("", self.sound[command].out)
        return "same" if found.code == 0 and alike else "silent"


def main() -> int:
    """Print a table of outcomes by command and kind of damage; 1 where anything was silent or a traceback."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.corruptions", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="which corruptions the numbers mean")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        bench, counts = Bench(Path(made)), Counter[tuple[str, str]]()
        for number in range(given.cases):
            found = bench.case(number, given.seed)
            counts[found.command, found.outcome.split()[0]] += 1
            if found.outcome.startswith(("silent", "traceback")):
                sys.stdout.write(f"{number}: {found.how}, tangram {found.command}: {found.outcome}\n")
    for (command, outcome), count in sorted(counts.items()):
        sys.stdout.write(f"{command:10} {outcome:10} {count:5}\n")
    wrong = sum(count for (_, outcome), count in counts.items() if outcome in ("silent", "traceback"))
    sys.stdout.write(f"{given.cases} corruptions of seed {given.seed}: {wrong} silent or with a traceback\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
