"""What the README says of itself; that it prints what it shows is in test_docs.py."""

import re

from docs.snippets import blocks
from tests.places import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_form_has_five_lines() -> None:
    """The short form stays short."""
    form = next(block for block in blocks(README) if block.language == "python")
    assert len([line for line in form.text.splitlines() if line.strip()]) == 5


def test_the_make_targets_it_names_exist() -> None:
    """Every `make TARGET` of the README is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z-]+)\b", README))
    assert {"plan", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.M), f"the README says `make {target}`"
