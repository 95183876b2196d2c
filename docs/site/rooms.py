"""The drawing of the rooms, from the layers contract and the files as they stand."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_WIDTH, _FLOOR, _GAP = 900, 44, 8


def floors() -> list[list[str]]:
    """Rooms by floor, top first, as pyproject.toml's first layers contract has them."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = data["tool"]["importlinter"]["contracts"][0]
    return [[room.strip() for room in layer.replace(":", "|").split("|")] for layer in contract["layers"]]


def lines_of(room: str) -> int:
    """Lines of Python of a room: a folder or one file of the package."""
    place = ROOT / "tangram_sim" / room
    files = place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files if file.exists())


def drawing() -> str:
    """SVG: a floor per layer, a box per room, each with its lines; imports go down only."""
    rows, boxes = floors(), []
    for number, rooms in enumerate(rows):
        width = (_WIDTH - _GAP * (len(rooms) - 1)) / len(rooms)
        for place, room in enumerate(rooms):
            x, y = place * (width + _GAP), number * (_FLOOR + _GAP)
            boxes.append(
                f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{_FLOOR}" rx="6" class="room"/>'
                f'<text x="{x + width / 2:.0f}" y="{y + 19}" text-anchor="middle">{room}</text>'
                f'<text x="{x + width / 2:.0f}" y="{y + 35}" text-anchor="middle" class="lines">'
                f"{lines_of(room):,} lines</text>"
            )
    height = len(rows) * (_FLOOR + _GAP)
    style = (
        ".rooms .room{fill:none;stroke:currentColor;stroke-opacity:.5}.rooms text{fill:currentColor;"
        "font:14px sans-serif}.rooms .lines{font-size:11px;opacity:.65}"
    )
    return (
        f'<svg class="rooms" viewBox="-1 -1 {_WIDTH + 2} {height}" width="100%" role="img" '
        f'aria-label="Rooms by floor; imports go down only"><style>{style}</style>{"".join(boxes)}</svg>'
    )
