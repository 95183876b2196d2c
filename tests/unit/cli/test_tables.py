"""Tables in windows: what is shown is whole, what goes is the least important, and nothing is too wide."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.cli.tables import GAP, ConsoleTable

CELL = st.text(st.sampled_from("ab1. "), min_size=1, max_size=60).map(str.strip).filter(bool)
FIGURES = ConsoleTable(
    ("plan", "step", "MFU", "gap"),
    [("first", "12.5 s", "41 %", "3 %"), ("b", "9 s", "7 %", "-")],
    right=(1, 2, 3),
)


@st.composite
def tables(draw: st.DrawFn) -> ConsoleTable:
    width = draw(st.integers(1, 6))
    row = st.lists(CELL, min_size=width, max_size=width)
    places = st.lists(st.integers(0, width - 1), unique=True)
    return ConsoleTable(
        draw(row), draw(st.lists(row, min_size=1, max_size=4)), draw(places), tuple(draw(places))
    )


def widest(table: ConsoleTable) -> int:
    cells = (table.columns, *table.rows)
    columns = zip(*cells, strict=True)
    return sum(max(len(line) for cell in column for line in cell.split("\n")) + GAP for column in columns)


@given(tables(), st.integers(10, 200))
def test_a_fitted_table_fits_and_loses_no_figure_it_shows(table: ConsoleTable, room: int) -> None:
    fitted, left_out = table.fitted(room)
    assert widest(fitted) <= max(room, 2 * GAP)
    assert len(fitted.columns) + len(left_out) == len(table.columns)
    assert len(fitted.rows) == len(table.rows)
    if "…" in "".join(fitted.columns) + "".join(map("".join, fitted.rows)):
        assert len(fitted.columns) <= 1  # cut only where a single column is too wide
        return
    kept = iter(zip(table.columns, *table.rows, strict=True))
    for column in zip(fitted.columns, *fitted.rows, strict=True):
        words = ["".join(cell.split()) for cell in column]
        assert any(["".join(cell.split()) for cell in item] == words for item in kept)


@given(tables())
def test_with_room_nothing_changes(table: ConsoleTable) -> None:
    fitted, left_out = table.fitted(table.natural_width())
    assert (fitted.columns, fitted.rows, left_out) == (table.columns, table.rows, [])


def test_columns_go_in_the_order_that_is_given() -> None:
    def seen(table: ConsoleTable) -> list[list[str]]:
        left = [table.fitted(room)[1] for room in range(table.natural_width(), 12, -1)]
        return [item for place, item in enumerate(left) if place == 0 or item != left[place - 1]]

    assert seen(FIGURES) == [[], ["gap"], ["MFU", "gap"], ["step", "MFU", "gap"]]
    ranked = replace(FIGURES, leaves=(1, 3))
    assert seen(ranked)[:3] == [[], ["step"], ["step", "gap"]]


def test_prose_wraps_before_a_figure_goes() -> None:
    table = ConsoleTable(
        ("row", "why", "n"), [("1", "the words of a reason that is long enough to wrap", "7")], (2,)
    )
    fitted, left_out = table.fitted(50)
    assert not left_out
    assert fitted.rows[0][1].count("\n") == 1
    assert fitted.rows[0][2] == "7"


def test_a_heading_wraps_before_a_column_goes() -> None:
    table = ConsoleTable(("plan", "share of the time"), [("a", "7 %")], (1,))
    fitted, left_out = table.fitted(17)
    assert (fitted.columns[1], left_out) == ("share\nof\nthe\ntime", [])
