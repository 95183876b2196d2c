"""Damage: bytes, lines, cells and values of files, values of options. Drawn from a seeded generator."""

import csv
import io
import json
import re
from random import Random
from typing import Any

import yaml

# Values that break something where a program does not look: none, negative, huge, tiny, of another kind,
# endless, steering the terminal.
NUMBERS = (0, -1, 1, 2, 3, 7, 10**9, 10**30, 1e308, 1e-308, 5e-324, -1e308, 0.1, 1e20)
_DEEPEST = 12  # levels of a file
VALUES = (*NUMBERS, True, None, "", "8", "nan", "\x1b[31m\u202e\x07", "x" * 3000, [], {}, [1, 2], {"a": []})
WORDS = (
    "",
    "0",
    "-1",
    "1",
    "3",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "1e-308",
    "5e-324",
    "9" * 30,
    "x" * 3000,
    "é",
)
ODD = (
    *WORDS,
    "\x1b[31m\u202e\x07",
    "g0",
    "g0,g0",
    "n0=1.5",
    "tp=2",
    "a=b",
    ",",
    "=",
    "none",
    "all",
    "[]",
    "..",
)
TOKENS = (
    "!!timestamp x",
    "!!int ''",
    "&a [*a]",
    "{? [a] : b}",
    "2020-99-99",
    "0x1F",
    "1_000",
    "~",
    "'",
    "!!map x",
)


def damaged(name: str, text: str, random: Random) -> bytes:
    """The content of a file with one to three things wrong, mostly inside its structure."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        how = random.random()
        if how < 0.6:
            text = _in_structure(name, text, random)
        elif how < 0.8:
            text = _in_lines(text, random)
        else:
            return _in_bytes(text.encode(), random)
    return text.encode("utf-8", "surrogatepass")


def changed(name: str, text: str, random: Random) -> bytes:
    """The content of a file with one number another one of its kind: it mostly gets past the readers."""
    spots = [*re.finditer(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", text)]
    if not spots:
        return damaged(name, text, random)
    spot = random.choice(spots)
    number = spot[0]
    factor = random.choice((0, 0.01, 0.1, 0.5, 2, 3, 10))
    other = f"{float(number) * factor:.6g}" if "." in number else f"{int(int(number) * factor)}"
    return f"{text[: spot.start()]}{other}{text[spot.end() :]}".encode()


def _in_structure(name: str, text: str, random: Random) -> str:
    """One value replaced, or one key or entry left out or added twice, in the file's own format."""
    if name.endswith(".csv"):
        return _in_cells(text, random)
    if not name.endswith((".json", ".yaml")):
        return _in_lines(text, random)
    try:
        data = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, yaml.YAMLError):
        # What an earlier change left: PyYAML itself trips over tokens like an empty `!!int`.
        return _in_lines(text, random)
    places = list(_places(data))
    if not places:
        return _in_lines(text, random)
    holder, key = random.choice(places)
    change = random.random()
    if change < 0.75:
        old = holder[key]
        scaled = isinstance(old, int | float) and not isinstance(old, bool) and random.random() < 0.3
        holder[key] = old * random.choice((-1, 0, 2, 1e3, 1e-9, 1e200)) if scaled else random.choice(VALUES)
    elif isinstance(holder, dict):
        holder[f"{key}x"] = holder[key] if change < 0.85 else holder.pop(key)
    else:
        holder.extend([holder[key]] * random.choice((1, 2, 50)))
    if name.endswith(".json"):
        return json.dumps(data)
    written: str = yaml.safe_dump(data)
    return written


def _places(node: Any, depth: int = 0) -> Any:
    """(holder, key) of every value of a tree; of one that holds itself, as an anchor can have it, the top."""
    if depth > _DEEPEST:
        return
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from _places(node[key], depth + 1)


def _in_cells(text: str, random: Random) -> str:
    rows = list(csv.reader(io.StringIO(text.replace("\r", " "), newline="")))
    if len(rows) < 2:
        return _in_lines(text, random)
    row = random.choice(rows if random.random() < 0.1 else rows[1:])
    if row:
        row[random.randrange(len(row))] = random.choice(ODD)
    if random.random() < 0.1:
        rows.append(random.choice(rows))
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


def _in_lines(text: str, random: Random) -> str:
    lines = text.split("\n")
    place = random.randrange(len(lines))
    change = random.randrange(4)
    if change == 0:
        del lines[place]
    elif change == 1:
        lines.insert(place, random.choice(lines))
    elif change == 2:
        head, colon, _ = lines[place].partition(":")
        lines[place] = f"{head}{colon} {random.choice(TOKENS)}"
    else:
        words = lines[place].split(" ")
        words[random.randrange(len(words))] = random.choice(ODD)
        lines[place] = " ".join(words)
    return "\n".join(lines)


def _in_bytes(data: bytes, random: Random) -> bytes:
    changed = bytearray(data or b"x")
    for _ in range(random.choice((1, 2, 5))):
        place = random.randrange(len(changed))
        changed[place : place + random.randrange(4)] = bytes(
            random.randrange(256) for _ in range(random.randrange(4))
        )
        changed = changed or bytearray(b"x")
    return bytes(changed)
