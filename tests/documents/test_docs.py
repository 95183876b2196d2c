"""What the documentation says is so: its commands run and print what it shows, its links lead somewhere."""

import re
from pathlib import Path

import pytest

from docs.site.order import QUESTIONS
from docs.snippets import FROZEN, blocks, frozen, frozen_hardware, matches, run_page
from tangram_sim.datafiles import shipped
from tangram_sim.hwdb import Hwdb
from tests.places import ROOT

PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))
README = ROOT / "README.md"
READ = [README, ROOT / "CONTRIBUTING.md", ROOT / "hwdb" / "README.md", *PAGES]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# Pages that plan for more than a few seconds.
SLOW = {
    "docs/how-to/add-a-model.md",
    "docs/how-to/buy-gpus.md",
    "docs/how-to/cookbook.md",
    "docs/how-to/find-slow-ranks.md",
    "docs/how-to/plan-a-service.md",
    "docs/how-to/plan-post-training.md",
    "docs/how-to/script-it.md",
    "docs/models/state.md",
    "docs/tutorial.md",
}
RUN = [
    pytest.param(page, marks=[pytest.mark.slow] if name(page) in SLOW else [], id=name(page))
    for page in [README, *PAGES]
    if blocks(page.read_text("utf-8"))
]


def test_slow_pages_are_pages() -> None:
    """A page that is renamed takes its mark along."""
    assert {name(page) for page in PAGES} >= SLOW


@pytest.mark.parametrize("page", RUN)
def test_marked_blocks_run_and_print_what_the_page_shows(page: Path) -> None:
    """Every command ends as it should, and shown output is the real one."""
    ran = list(run_page(page.read_text(encoding="utf-8"), frozen(page)))
    assert len(ran) >= (2 if page == README else 1), "the README shows a plan and its Python form"
    problems = [problem for item in ran if (problem := item.problem())]
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("page", READ, ids=name)
def test_relative_links_resolve(page: Path) -> None:
    """A link to a file of this repository leads to a file that is there, a `#part` to a heading of it."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, part = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), f"{name(page)} links to {target}"
        if part:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.M)
            anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert part in anchors, f"{name(page)} links to {target}; {file} has {anchors}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    """No page is an orphan: following links from the README visits all of docs/."""
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = (target.partition("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8")))
        ahead += [(page.parent / target).resolve() for target in targets if target and "://" not in target]
    assert not {name(page) for page in PAGES if page not in reached}


@pytest.mark.parametrize("page", READ, ids=name)
def test_every_shell_block_is_run(page: Path) -> None:
    """A console block that nothing runs rots; setting up a machine is told in `sh` blocks."""
    languages = re.findall(r"^```(console(?: .*)?)$", page.read_text(encoding="utf-8"), re.M)
    assert set(languages) <= {"console run"}


def test_the_comparison_can_fail() -> None:
    """Output that differs, is missing or in another order is noticed; skipped lines and seconds are not."""
    assert matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert matches("searched: 1 in 2.0 s\n", "searched: 3 in 4.0 s\n")
    assert matches("", "anything\n")
    assert not matches("a\nc\n", "a\nb\nc\n")
    assert not matches("a\n", "a\nb\n")
    assert not matches("b\n...\na\n", "a\nb\n")
    assert not matches("a\nb\n", "a\n")


def test_how_to_pages_read_the_frozen_hardware_data() -> None:
    """A calibration moves figures of the product, not of these pages; the copy holds every table."""
    with frozen_hardware():
        assert Hwdb.load().folders == (FROZEN,)
    assert Hwdb.load().folders == (shipped("hwdb"),)
    tables = {path.relative_to(FROZEN) for path in FROZEN.rglob("*.csv")}
    assert tables >= {path.relative_to(shipped("hwdb")) for path in shipped("hwdb").glob("*.csv")}


def test_pages_stand_in_one_order_by_workload_and_question() -> None:
    """Every how-to page stands under one heading of the site, and the page of contents follows that order."""
    listed = [name for names in QUESTIONS.values() for name in names]
    pages = {page.stem for page in (ROOT / "docs" / "how-to").glob("*.md")} - {"cookbook"}
    assert sorted(listed) == sorted(pages)
    contents = (ROOT / "docs" / "contents.md").read_text().split("## How to")[1].split("## ")[0]
    assert re.findall(r"^- \*\*(.+?)\*\*", contents, re.M) == list(QUESTIONS)
    assert [name for name in re.findall(r"how-to/([\w-]+)\.md", contents) if name != "cookbook"] == listed
