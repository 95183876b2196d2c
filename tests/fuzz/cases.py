"""One case: a sound command, damaged, run in this process, and held to the rule for exit codes."""

import json
import os
import shlex
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from tests.commands import Finished, tangram
from tests.fuzz.inputs import COMMANDS
from tests.fuzz.mutations import ODD, changed, damaged

LIMIT_S = 10.0  # CPU seconds of one command on small files
COMPILING_S = 300.0  # of the first of its kind on a fresh machine, which compiles what it runs
# Options that start processes or draw, or that only say where a file goes: nothing to find, much to wait for.
_LEFT_ALONE = {"jobs", "dask", "plot", "help", "output", "cache", "requests_out", "timeline"}
_GENTLE = 0.5  # of the cases change a figure to another one that can be meant
# Values of options by the kind that they are declared as.
_FAIR = {
    "int": (0, 1, 2, 3, 4, 7, 8, 16, 64, 1000),
    "float": (0, 0.01, 0.1, 0.5, 1, 1.5, 4, 60, 1e4, 1e9),
}
# Steering characters that may appear in an answer: line ends.
_PLAIN = "\n\t"


class Hang(BaseException):
    """A command took more CPU seconds than small files may take; no handler of the program catches it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command line and the files that are damaged for it."""

    number: int
    words: tuple[str, ...]
    broken: tuple[tuple[str, bytes], ...]

    @property
    def verb(self) -> str:
        """The command's name."""
        return " ".join(word for word in self.words[:3] if word.isalpha() or "-" in word[1:-1])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case; `problem` is empty where the rule was kept."""

    case: Case
    code: int
    cpu_s: float
    problem: str


def case(number: int, seed: int, sound: dict[str, str]) -> Case:
    """Case `number` of a seed: the same everywhere. `sound` holds the texts of the files by name."""
    random = Random(f"{seed}/{number}")
    words = shlex.split(COMMANDS[number % len(COMMANDS)])
    named = [word for word in words if word in sound or any(name.startswith(f"{word}/") for name in sound)]
    broken: dict[str, bytes] = {}
    if random.random() < _GENTLE:
        if named and random.random() < 0.7:
            word = random.choice(named)
            name = random.choice([name for name in sound if name == word or name.startswith(f"{word}/")])
            broken[name] = changed(name, sound[name], random)
        else:
            words = _with_fair_option(words, random)
        return Case(number, tuple(words), tuple(sorted(broken.items())))
    for _ in range(random.choice((0, 1, 1, 1, 2))):
        if named:
            word = random.choice(named)
            name = random.choice([name for name in sound if name == word or name.startswith(f"{word}/")])
            broken[name] = damaged(name, sound[name], random)
    for _ in range(random.choice((0, 1, 2)) if broken else 1):
        words = _with_odd_option(words, random)
    return Case(number, tuple(words), tuple(sorted(broken.items())))


def _with_odd_option(words: list[str], random: Random) -> list[str]:
    """The command with an option of its verb given an odd value, given twice, or an argument replaced."""
    options = _options(tuple(words))
    if random.random() < 0.15 or not options:
        place = random.randrange(len(words))
        return [*words[:place], random.choice(ODD), *words[place + 1 :]]
    option, takes_value = random.choice(options)
    if not takes_value:
        return [*words, option]
    value = random.choice(ODD)
    if option in words and random.random() < 0.7:
        place = words.index(option)
        return [*words[: place + 1], value, *words[place + 2 :]]
    return [*words, option, value]


def _with_fair_option(words: list[str], random: Random) -> list[str]:
    """The command with an option of its verb given a value of the option's kind."""
    options = _options(tuple(words))
    if not options:
        return words
    option, kind = random.choice(options)
    values = _FAIR.get(kind)
    if not kind:
        return [*words, option]
    if values is None:
        return words
    value = str(random.choice(values))
    if option not in words:
        return [*words, option, value]
    place = words.index(option)
    return [*words[: place + 1], value, *words[place + 2 :]]


@cache
def _options(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """(option, kind of its value: `` for a switch) of the verb that a command line begins with."""
    import typer

    from tangram_sim.cli.main import app

    command: Any = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "commands"):
            break
        command = command.get_command(None, word)
    if command is None:  # the word was damaged
        return []
    return [
        (
            max(known.opts, key=len),
            "" if known.is_flag else getattr(known.type_descriptor.annotation, "__name__", "str"),
        )
        for known in command.params
        if known.param_type_name == "option" and known.name not in _LEFT_ALONE
    ]


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise Hang in the command when it has used so many CPU seconds."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def sound_case(number: int) -> Case:
    """A command as it stands in the list, nothing damaged."""
    return Case(number, tuple(shlex.split(COMMANDS[number])), ())


def run(one: Case, folder: Path, sound: dict[str, str], limit_s: float = LIMIT_S) -> Outcome:
    """Run a case in `folder`, which is left as it was found."""
    for name, data in one.broken:
        (folder / name).write_bytes(data)
    before = {path for path in folder.rglob("*") if path.is_file()}
    here, began = Path.cwd(), time.process_time()
    os.chdir(folder)
    finished, problem = Finished(-1, "", ""), ""
    try:
        with warnings.catch_warnings(), _limited(limit_s):
            warnings.simplefilter("error")
            finished = tangram(*one.words)
    except Hang:
        problem = f"more than {limit_s:g} CPU-s\n{_where(traceback.format_exc())}"
    except Exception:  # what no command may end with: this is what is looked for
        problem = traceback.format_exc()
    finally:
        os.chdir(here)
    made = {path for path in folder.rglob("*") if path.is_file()} - before
    problem = problem or broken_rule(finished, one.words, sorted(path.name for path in made))
    for path in made:
        path.unlink()
    for name, _ in one.broken:
        (folder / name).write_text(sound[name])
    return Outcome(one, finished.code, time.process_time() - began, problem)


def _where(trace: str) -> str:
    return "\n".join(trace.splitlines()[-12:])


def broken_rule(finished: Finished, words: tuple[str, ...], made: list[str]) -> str:
    """How a finished command breaks the rule for exit codes and output; empty where it does not."""
    checks: tuple[tuple[str, Callable[[], bool]], ...] = (
        (f"exit code {finished.code}", lambda: finished.code in (0, 2)),
        (
            "no answer, and something on standard output",
            lambda: finished.code != 2 or not finished.out or _says_infeasible(finished.out),
        ),
        ("no answer and no message", lambda: finished.code != 2 or bool(finished.err.strip())),
        ("an answer with an error", lambda: finished.code != 0 or not finished.err.startswith("error")),
        ("a message of thousands of characters", lambda: len(finished.err) < 4000),
        ("files written without an answer", lambda: finished.code != 2 or not made),
        ("a path blamed on standard output", lambda: "standard output cannot" not in finished.err),
        ("a partial file", lambda: not any(name.startswith(".") for name in made)),
        ("control characters", lambda: not _steers(finished.out + finished.err)),
        ("no JSON", lambda: _is_json_if_asked(finished, words)),
    )
    told = f"\nout: {finished.out[:300]!r}\nerr: {finished.err[:600]!r}\nfiles: {made}"
    return next((words + told for words, kept in checks if not kept()), "")


def _says_infeasible(out: str) -> bool:
    """Whether this is a document that says so itself: the answer of `serve plan --json`."""
    try:
        return bool(json.loads(out)["status"] == "infeasible")
    except (ValueError, KeyError, TypeError):
        return False


def _steers(text: str) -> bool:
    return any(
        (char < " " and char not in _PLAIN) or "\x7f" <= char < "\xa0" or char == "\u202e" for char in text
    )


def _is_json_if_asked(finished: Finished, words: tuple[str, ...]) -> bool:
    if finished.code != 0 or "--json" not in words or "--help" in words:
        return True
    try:
        json.loads(finished.out)
    except ValueError:
        return False
    return True
