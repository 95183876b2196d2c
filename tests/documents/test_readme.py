"""The README's commands and its Python form print what it shows."""

import re

from docs.snippets import blocks, run_page
from tests.places import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_marked_blocks_print_what_the_readme_shows() -> None:
    """Run them; all but the line with the search's seconds is compared.

    To refresh the page: python -m docs.snippets README.md
    """
    ran = list(run_page(README))
    assert len(ran) >= 2, "the README shows a plan and its Python form"
    problems = [problem for one in ran if (problem := one.problem())]
    assert not problems, "\n\n".join(problems)


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
