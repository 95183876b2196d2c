"""The HTML of a report: one page, styles and scripts inside, nothing fetched (its own policy forbids it)."""

from collections.abc import Sequence
from html import escape

from tangram_sim.reports.ledger import Cell, Ledger

# A browser that meets this refuses any address; `unsafe-inline` is what a single file needs.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; worker-src blob:"
)
_STYLE = """
:root { color-scheme: light; --line: #d0d7de; --soft: #57606a; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2328;
  margin: 0 auto; max-width: 70rem; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
.lead { color: var(--soft); margin: 0 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .5rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0969da; }
th[aria-sort=ascending] button::after { content: " \\25b2"; }
th[aria-sort=descending] button::after { content: " \\25bc"; }
tr.chosen td { background: #fff8c5; }
.figure { width: 100%; break-inside: avoid; }
.caption { color: var(--soft); font-size: .875rem; margin: 0 0 1rem; }
td sup { display: block; line-height: 1.1; }
sup a { color: #0969da; text-decoration: none; font-size: .7rem; }
#sources li { overflow-wrap: anywhere; font-size: .875rem; }
#sources .kind { color: var(--soft); }
@media screen and (max-width: 40rem) {  /* a phone: a card for each row, its figures under one another */
  body { padding: .5rem; font-size: 15px; }
  table, tbody, tbody tr, tbody td { display: block; }
  thead tr { display: flex; flex-wrap: wrap; gap: .2rem .8rem; }
  thead th { border: 0; padding: 0; }
  tbody tr { border-bottom: 2px solid var(--line); padding: .4rem; }
  tbody td, tbody td.text { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem;
    border: 0; padding: .1rem 0; text-align: right; overflow-wrap: anywhere; }
  tbody td::before { content: attr(data-head); color: var(--soft); text-align: left; }
  tbody td:first-child { font-weight: 600; } tbody td:first-child::before { content: none; }
  tbody td sup { flex-basis: 100%; }
}
@page { size: landscape; margin: 12mm; }
@media print {
  body { max-width: none; font-size: 10pt; }
  .wide { overflow: visible; }
  table { font-size: 7pt; table-layout: fixed; width: 100%; }
  th, td { padding: .1rem .2rem; overflow-wrap: anywhere; } th:first-child { width: 16%; }
  tr, .figure { break-inside: avoid; } h2 { break-after: avoid; }
}
"""
_SORT = """
for (const head of document.querySelectorAll("table.sortable th button")) {
  head.addEventListener("click", () => {
    const cell = head.parentElement, table = cell.closest("table"), body = table.tBodies[0];
    const down = cell.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => {
      const found = row.cells[cell.cellIndex];
      return "sort" in found.dataset ? Number(found.dataset.sort) : found.textContent;
    };
    const order = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
      : typeof a !== typeof b ? (typeof a === "number" ? -1 : 1) : a.localeCompare(b);
    const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b)));
    body.append(...rows);
  });
}
const resize = () => {
  for (const one of document.querySelectorAll(".js-plotly-plot")) Plotly.Plots.resize(one);
};
window.addEventListener("beforeprint", resize);
window.addEventListener("afterprint", resize);
"""


def name(text: str) -> str:
    """A name, whose digits are no figures."""
    return f"<span data-name>{escape(text)}</span>"


def figure_of(text: str, sources: Sequence[str]) -> str:
    """A figure in running text, with links to its sources."""
    return f'<span data-source="{" ".join(sources)}">{escape(text)}{_links(sources)}</span>'


def _links(sources: Sequence[str]) -> str:
    return "<sup>" + ", ".join(f'<a href="#{one}">{one[1:]}</a>' for one in sources) + "</sup>"


def section(title: str, *parts: str) -> str:
    """A heading and what stands under it."""
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def caption(text: str) -> str:
    """A line under a table or plot; `text` is HTML."""
    return f'<p class="caption">{text}</p>'


def table(
    key: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    chosen: int = -1,
    *,
    names: Sequence[int] = (),
) -> str:
    """A table that sorts on a click on a heading. Columns in `names` hold words; `chosen` is a row marked."""
    head = "".join(f'<th scope="col"><button type="button">{escape(one)}</button></th>' for one in heads)
    body = []
    for number, row in enumerate(rows):
        cells = "".join(
            _cell(cell, head, column in names)
            for column, (cell, head) in enumerate(zip(row, heads, strict=True))
        )
        body.append(f"<tr{' class=chosen' if number == chosen else ''}>{cells}</tr>")
    return (
        f'<div class="wide"><table class="sortable" id="{key}"><thead><tr>{head}</tr></thead>\n<tbody>'
        + "\n".join(body)
        + "</tbody></table></div>"
    )


def _cell(cell: Cell, head: str, text: bool) -> str:
    sort = "" if cell.sort is None else f' data-sort="{cell.sort:.12g}"'
    kind = f' data-head="{escape(head)}"' + (' class="text"' if text else "")
    if cell.is_name:
        return f"<td{kind}{sort} data-name>{escape(cell.text)}</td>"
    sources = " ".join(cell.sources)
    return f'<td{kind}{sort} data-source="{sources}">{escape(cell.text)}{_links(cell.sources)}</td>'


def plot(markup: str, sources: Sequence[str]) -> str:
    """A plot with the sources of what it shows."""
    return f'<div class="figure" data-source="{" ".join(sources)}">{markup}</div>'


def page(title: str, lead: str, sections: Sequence[str], ledger: Ledger, script: str) -> str:
    """The whole page; `lead` and `sections` are HTML, `script` is the plotting library."""
    listed = "\n".join(
        f'<li id="{key}"><span class="kind">{escape(source.kind)}:</span> {escape(source.text)}</li>'
        for key, source in ledger.listed()
    )
    sources = section("Every figure and where it comes from", f'<ol id="sources">{listed}</ol>')
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{escape(title)}</title>
<style>{_STYLE}</style><script>{script}</script></head><body>
<h1>{name(title)}</h1>
<p class="lead">{lead}</p>
{"".join(sections)}
{sources}
<script>{_SORT}</script></body></html>
"""
