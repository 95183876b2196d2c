"""Runs a notebook's code cells in this process, and refreshes the output they show.

    python -m docs.notebook examples/first_plan.ipynb

No kernel is started: cells are plain Python, the value of a cell's last line is shown as text. Pictures are
not kept in the file; opened in Jupyter, the notebook draws them.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run(notebook: dict[str, Any]) -> list[str]:
    """What each code cell prints and shows, in order. Raises whatever a cell raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_cell("".join(cell["source"]), names) for cell in _code(notebook)]


def shown(notebook: dict[str, Any]) -> list[str]:
    """What each code cell shows in the file."""
    return [_text(cell["outputs"]) for cell in _code(notebook)]


def refreshed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with its outputs as they are now."""
    for number, (cell, text) in enumerate(zip(_code(notebook), run(notebook), strict=True), 1):
        cell["execution_count"] = number
        lines = text.splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if text else []
    return notebook


def _code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _cell(source: str, names: dict[str, Any]) -> str:
    """Run one cell; the value of a last line is shown as text where it has no picture of its own."""
    body, printed = ast.parse(source).body, io.StringIO()
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            if value is not None and not hasattr(value, "_ipython_display_"):
                printed.write(f"{value}\n")
    return printed.getvalue()


def _text(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(output.get("text", [])) for output in outputs)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        found = refreshed(json.loads(Path(name).read_text(encoding="utf-8")))
        Path(name).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
