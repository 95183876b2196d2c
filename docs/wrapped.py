"""Prose of pages in lines of at most 100 columns: `python -m docs.wrapped PAGE.md...` wraps what is longer.

Code blocks (fenced or indented), tables, headings, HTML and equations stay as they are; so does every
paragraph whose lines are short enough. A code span, a link or an equation is never broken.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
_FENCE = re.compile(r"^\s*(```|~~~|\$\$)")
_STAYS = re.compile(r"^\s*(\||#|<|!!!|\?\?\?|\[[^\]]+\]:|:::|---|$)")
_ITEM = re.compile(r"^(\s*)([-*+]|\d+[.)])\s+")
_CODE = re.compile(r"^( {4}|\t)")  # code where it follows no prose and stands in no list
# What is kept on one line, and a word that would begin another block at the beginning of a line.
_WHOLE = re.compile(r"`[^`]*`|\$[^$\n]+\$|!?\[[^\]]*\]\([^)\s]*\)")
_BEGINS_BLOCK = re.compile(r"^([-*+]|\d+[.)]|#+|>|\|.*|[=-]+)$")


def paragraphs(text: str) -> Iterator[tuple[bool, list[str]]]:
    """(whether it is prose, lines): the text in order, a list item being a paragraph of its own."""
    prose: list[str] = []
    fence, in_list = "", False
    for line in text.splitlines():
        opened = _FENCE.match(line)
        code = bool(_CODE.match(line)) and not prose and not in_list
        if line.strip() and not code and not fence:
            in_list = bool(_ITEM.match(line)) or (in_list and line.startswith((" ", "\t")))
        if fence or opened or code or _STAYS.match(line):
            if prose:
                yield True, prose
                prose = []
            yield False, [line]
            if fence and line.strip().startswith(fence):
                fence = ""
            elif not fence and opened and not (opened[1] == "$$" and line.strip() != "$$"):
                fence = opened[1]
            continue
        if prose and _ITEM.match(line):
            yield True, prose
            prose = []
        prose.append(line)
    if prose:
        yield True, prose


def _words(text: str) -> list[str]:
    """Words of a paragraph, with what must not be broken as one."""
    hidden = _WHOLE.sub(lambda found: found[0].replace(" ", "\0"), text)
    words: list[str] = []
    for word in hidden.split():
        if words and _BEGINS_BLOCK.match(word):
            words[-1] += f"\0{word}"
        else:
            words.append(word)
    return [word.replace("\0", " ") for word in words]


def wrapped_paragraph(lines: list[str]) -> list[str]:
    """A paragraph or list item in lines of WIDTH, where words allow; as it was if it is short enough."""
    if all(len(line) <= WIDTH for line in lines):
        return lines
    item = _ITEM.match(lines[0])
    first = item[0] if item else re.match(r"\s*", lines[0])[0]  # type: ignore[index]  # matches always
    # Continuation lines keep the indentation that they have; a new one is as deep as the item's text.
    deeper = re.match(r"\s*", lines[1])[0] if len(lines) > 1 else ""  # type: ignore[index]
    rest = deeper if len(lines) > 1 else " " * len(first)
    body = " ".join([lines[0][len(first) :], *lines[1:]])
    out, line = list[str](), first
    begun = False
    for word in _words(body):
        if begun and len(line) + 1 + len(word) > WIDTH:
            out.append(line)
            line, begun = rest, False
        line += f" {word}" if begun else word
        begun = True
    return [*out, line]


def wrapped(text: str) -> str:
    """A page with its prose in lines of at most WIDTH columns, where words allow."""
    lines = [
        line for prose, some in paragraphs(text) for line in (wrapped_paragraph(some) if prose else some)
    ]
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def main(pages: list[str]) -> None:
    """Wrap pages where they stand."""
    for page in map(Path, pages):
        page.write_text(wrapped(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
