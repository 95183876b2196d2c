"""The notebook runs, and shows what it prints."""

import json

from docs.notebook import run, shown
from tests.places import ROOT

NOTEBOOK = ROOT / "examples" / "first_plan.ipynb"


def test_the_notebook_runs_and_shows_what_it_prints() -> None:
    """To refresh it: python -m docs.notebook examples/first_plan.ipynb"""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert any(shown(notebook))
    assert run(notebook) == shown(notebook)


def test_a_cell_shows_its_last_value_and_hides_pictures() -> None:
    cells = ["x = 2", "print('a')\nx + 1", "class P:\n    _ipython_display_ = 1\nP()"]
    notebook = {"cells": [{"cell_type": "code", "source": [text], "outputs": []} for text in cells]}
    assert run(notebook) == ["", "a\n3\n", ""]
