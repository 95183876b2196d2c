"""Pages are read in editors, too: their prose stands in lines of at most 100 columns."""

from pathlib import Path

import pytest

from docs.wrapped import WIDTH, wrapped
from tests.documents.test_docs import READ, name


@pytest.mark.parametrize("page", READ, ids=name)
def test_prose_is_wrapped(page: Path) -> None:
    """What is longer can be wrapped by `python -m docs.wrapped`."""
    text = page.read_text(encoding="utf-8")
    long = [line for line in text.splitlines() if line not in wrapped(text).splitlines()]
    assert not long, f"python -m docs.wrapped {name(page)}"


LONG = "word " * 30
LINK = f"[{'two words ' * 3}](https://example.org/{'x' * 60})"


def test_a_paragraph_is_wrapped_with_spans_and_links_whole() -> None:
    text = f"{LONG}`a span of code` {LONG}$a + b$ {LINK} {LONG}\n"
    lines = wrapped(text).splitlines()
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert all(len(line) <= WIDTH or line == LINK for line in lines) and len(lines) > 4
    for whole in ("`a span of code`", "$a + b$", LINK):
        assert any(whole in line for line in lines)
    assert wrapped("\n".join(lines)) == "\n".join(lines)


def test_items_keep_their_depth_and_no_line_begins_another_block() -> None:
    text = f"- {LONG.strip()} - {LONG}\n  1. {LONG.strip()} 2. {LONG}\n\nshort\nlines\n"
    lines = wrapped(text).splitlines()
    assert [line for line in lines if line.startswith("- ")] == lines[:1]
    deeper = [line for line in lines if line.startswith("  1. ")]
    assert len(deeper) == 1 and lines[lines.index(deeper[0]) + 1].startswith("     word")
    assert lines[-2:] == ["short", "lines"]
    second = wrapped(f"- first\n\n    {LONG}").splitlines()
    assert len(second) > 3 and all(line.startswith("    word") for line in second[2:])


@pytest.mark.parametrize(
    "kept",
    [
        f"```\n{LONG}\n```",
        f"Then\n\n    T    {LONG}\n    1. {LONG}\n\n    S    {LONG}",
        f"- item\n\nno list\n\n    T    {LONG}",
        f"| {LONG} | {LONG} |",
        f"# {LONG}",
        f"<p>{LONG}</p>",
        f"$$\n{LONG}\n$$",
        "short\nlines",
    ],
)
def test_what_is_no_prose_stays(kept: str) -> None:
    assert wrapped(kept) == kept
