"""The HTML of a report: one file with styles and scripts inside; its content policy forbids any download."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from tangram_sim.naming import printable
from tangram_sim.reports.columns import Sources, ViewColumn
from tangram_sim.reports.ledger import Cell, Ledger

# A browser that meets this refuses any address; `unsafe-inline` is what a single file needs.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_PROSE = 60  # characters from which a cell holds a sentence, not a figure


@cache
def _asset(file: str) -> str:
    return files("tangram_sim.reports").joinpath("assets", file).read_text(encoding="utf-8")


def name(text: str) -> str:
    """HTML of a name; digits in it are not treated as figures that need a source."""
    return f"<span data-name>{escape(text)}</span>"


def figure_of(text: str, sources: Sequence[str]) -> str:
    """HTML of a figure in running text; hovering shows its sources, listed at the end of the page."""
    return f'<span data-source="{" ".join(sources)}">{escape(text)}</span>'


def section(title: str, *parts: str) -> str:
    """HTML of a section: a heading and its content."""
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def folded(title: str, *parts: str) -> str:
    """HTML of a collapsed section that opens on a click, and in print."""
    return f"<details><summary>{escape(title)}</summary>\n" + "\n".join(parts) + "\n</details>"


def caption(text: str) -> str:
    """HTML of a line under a table or chart; `text` is HTML."""
    return f'<p class="caption">{text}</p>'


def note_list(notes: Sequence[str], source: str = "") -> str:
    """HTML of a section of notes; empty if there are none. `source`: what figures in them rest on."""
    items = "".join(f"<li>{figure_of(note, (source,)) if source else name(note)}</li>" for note in notes)
    return section("Notes", f"<ul>{items}</ul>") if items else ""


def verdict(sentences: Sequence[str]) -> str:
    """HTML of the conclusions, one paragraph per sentence (HTML); empty if there is none."""
    lines = "".join(f"<p>{sentence}</p>" for sentence in sentences)
    return f'<div class="verdict">{lines}</div>' if lines else ""


def table(
    key: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    chosen: int = -1,
    *,
    names: Sequence[int] = (),
    first: int = 0,
) -> str:
    """HTML of a table that can be sorted by clicking a heading; the row `chosen` is marked.

    Columns in `names` hold words. A phone shows the `first` columns of a row until the reader asks for all;
    0: all columns.
    """
    head = "".join(
        f'<th scope="col"{" class=text" if column in names else ""}>'
        f'<button type="button">{escape(item)}</button></th>'
        for column, item in enumerate(heads)
    )
    body = []
    for number, row in enumerate(rows):
        cells = "".join(
            _cell(
                cell,
                head,
                [*(("text",) if column in names else ()), *(("more",) if 0 < first <= column else ())],
            )
            for column, (cell, head) in enumerate(zip(row, heads, strict=True))
        )
        body.append(f"<tr{' class=chosen' if number == chosen else ''}>{cells}</tr>")
    return (
        f'<div class="wide"><table class="sortable" id="{key}"><thead><tr>{head}</tr></thead>\n<tbody>'
        + "\n".join(body)
        + "</tbody></table></div>"
    )


def view(
    key: str,
    columns: Sequence[ViewColumn],
    rows: Sequence[Any],
    sources: Sources | Callable[[Any], Sources],
    chosen: int = -1,
    *,
    names: Sequence[int] = (),
    first: int = 0,
) -> str:
    """HTML of a table of described columns; `sources`, by the keys that columns name, may hang on the row."""
    of = sources if callable(sources) else lambda _: sources
    cells = [[column.cell(row, of(row)) for column in columns] for row in rows]
    return table(key, [column.head for column in columns], cells, chosen, names=names, first=first)


def kept_together(text: str) -> str:
    """`text` with no-break spaces between number and unit: breaks before brackets, after commas only."""
    if len(text) > _PROSE:
        return text
    return re.sub(r"(?<!,) (?!\()", "\N{NO-BREAK SPACE}", text)


def _cell(cell: Cell, head: str, classes: Sequence[str]) -> str:
    sort = "" if cell.sort is None else f' data-sort="{cell.sort:.12g}"'
    kind = f' data-head="{escape(head)}"' + (f' class="{" ".join(classes)}"' if classes else "")
    if cell.is_name:
        return f"<td{kind}{sort} data-name>{escape(cell.text)}</td>"
    text = escape(kept_together(cell.text))
    return f'<td{kind}{sort} data-source="{" ".join(cell.sources)}">{text}</td>'


def chart(key: str, drawn: Mapping[str, Any], sources: Sequence[str]) -> str:
    """HTML of a chart from `charts`, with the sources of its data."""
    # Inside a script "</script" would end it, and "<!--<script" let it swallow the rest of the page.
    text = json.dumps(drawn, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<div class="figure" id="{key}" data-source="{" ".join(sources)}"><div></div>'
        f'<script type="application/json">{text}</script></div>'
    )


def page(title: str, job: str, answer: str, sections: Sequence[str], ledger: Ledger) -> str:
    """The whole page as HTML: the request (`job`), the `answer` in a sentence or two, then sections."""
    listed = "\n".join(
        f'<li id="{key}"><span class="kind">{escape(source.kind)}:</span> {escape(source.text)}</li>'
        for key, source in ledger.listed()
    )
    sources = folded("Every figure and where it comes from", f'<ol id="sources">{listed}</ol>')
    return printable(f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{escape(title)}</title>
<style>{_asset("charts.css")}{_asset("report.css")}</style></head><body>
<h1>{name(title)}</h1>
<p class="job">{job}</p>
<p class="answer">{answer}</p>
{"".join(sections)}
{sources}
<div id="told" role="tooltip" hidden></div>
<script type="module">{_asset("charts.js")}
{_asset("report.js")}</script></body></html>
""")
