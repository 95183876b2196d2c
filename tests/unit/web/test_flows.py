"""Longer flows of `tangram web` in a real browser: a search of mixes, a played fleet, a replayed history."""

import json

import pytest

from tests.places import ROOT
from tests.unit.web.test_other_pages import go, seen
from tests.unit.web.test_page import SHOTS, click, drop, page, put, says, served

__all__ = ["drop", "page", "served"]  # fixtures

PAGES = ROOT / "docs" / "how-to"
TRIES = 3
TURNS = 12  # of a slider: beside other tests on the same cores most answers wait for a turn


def block(name, file):
    """A file as a how-to page shows it."""
    text = (PAGES / f"{name}.md").read_text()
    return text.split(f"file={file}\n")[1].split("```")[0]


def choose(page, place, path):
    """Choose a file in a file field of the last form."""
    page.choose_file(f"form:last-of-type label.drop:nth-of-type({place}) input[type=file]", path)
    assert says(page, path.name)


@pytest.fixture(scope="module")
def seconds():
    """Seconds measured here, kept beside the screenshots."""
    found: dict[str, float] = {}
    yield found
    (SHOTS / "seconds.json").write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture(scope="module")
def mine(page, drop):
    """The page with a model and a cluster of one's own in it."""
    put(page, "cluster-from", "file")
    put(page, "global-batch", "96")
    put(page, "seq", "1024")
    page.choose_file("fieldset:nth-of-type(1) input[type=file]", drop[0])
    page.choose_file("fieldset:nth-of-type(2) input[type=file]", drop[1])
    assert says(page, "tiny.yaml") and says(page, "lab.yaml")
    return page


class TestSpeed:
    """What takes how long is written down, not judged: it is the machine's affair, too."""

    def test_a_visitor_without_a_cache_gets_a_page_that_is_ready(self, page, served, seconds):
        """The least of a few loads by somebody new: what the page takes, not what else the machine does."""
        took = []
        for _ in range(TRIES):
            visitor = page.another(served.home)
            visitor.open(served.address)
            assert visitor.wait_for("document.getElementById('page').dataset.ready === 'plan'")
            took.append(visitor.evaluate("performance.getEntriesByName('ready')[0].startTime") / 1000)
        assert all(item > 0 for item in took)
        seconds["ready_s"] = min(took)

    def test_every_turn_of_a_slider_asks_once_and_changes_the_answer(self, mine, seconds):
        go(mine, "estimate")
        assert says(mine, "A step takes")
        mine.evaluate(
            "window.asked = 0; window.usual = window.fetch;"
            "window.fetch = (...given) => { window.asked += 1; return window.usual(...given); }"
        )
        slider, took = "document.querySelector('[name=pp]')", []
        for turn in range(TURNS):
            mine.evaluate(
                "window.took = null;"
                "{ const begun = performance.now(), from = document.querySelector('.lead');"
                f"{slider}.value = {turn % 2}; {slider}.dispatchEvent(new Event('input', {{bubbles: true}}));"
                "const look = () => document.querySelector('.lead') === from ? requestAnimationFrame(look)"
                " : window.took = performance.now() - begun; look(); }"
            )
            assert mine.wait_for("window.took !== null")
            took.append(mine.evaluate("window.took") / 1000)
        seconds["slider_s"] = min(took)
        assert mine.evaluate("window.asked") == TURNS
        mine.evaluate("window.fetch = window.usual")


class TestFlows:
    def test_mixes_are_searched_with_fronts_on_the_way_and_a_click_shows_the_plan(self, mine):
        go(mine, "buy")
        mine.evaluate("document.querySelector('[aria-label=\"remove this offer\"]').click()")
        put(mine, "question", "purchase")
        put(mine, "offer", "p4d.24xlarge")
        put(mine, "many", "1")
        mine.evaluate(
            "window.fronts = 0; new MutationObserver(() => {"
            " window.fronts += document.body.innerText.includes('The front so far'); })"
            ".observe(document.getElementById('content'), {childList: true})"
        )
        click(mine, "Compare")
        assert says(mine, "The front of 2 mixes"), mine.evaluate("document.body.innerText")
        assert mine.evaluate("window.fronts") >= 1
        assert mine.evaluate("document.querySelectorAll('.point').length") == 2
        seen(mine, "purchase")
        mine.evaluate("document.querySelectorAll('.point')[1].dispatchEvent(new Event('click'))")
        assert says(mine, "Why not otherwise")
        assert mine.problems == []

    def test_a_fleet_that_serves_is_played(self, page, tmp_path):
        fleet = tmp_path / "fleet.yaml"
        fleet.write_text(block("simulate-a-service", "fleet.yaml"))
        go(page, "serve")
        click(page, "Play")
        assert says(page, "drop a fleet file first")
        choose(page, 1, fleet)
        click(page, "Play")
        assert says(page, "500 of 500 requests served"), page.evaluate("document.body.innerText")
        assert page.evaluate("document.querySelectorAll('table tr').length") >= 5
        seen(page, "serve-played")

    def test_a_history_of_nodes_is_replayed_under_every_policy(self, page, tmp_path):
        go(page, "goodput")
        for place, name in ((1, "trace.csv"), (2, "speeds.csv")):
            (tmp_path / name).write_text(block("plan-on-spot", name))
            choose(page, place, tmp_path / name)
        click(page, "Replay")
        assert says(page, "Best on this history"), page.evaluate("document.body.innerText")
        assert page.evaluate("document.querySelectorAll('table tbody tr').length") >= 4
        seen(page, "replayed")

    def test_a_plan_goes_into_a_report_and_with_its_reader_to_other_pages(self, mine):
        """Played with something slow in it, and over months."""
        go(mine, "plan")
        put(mine, "effort", "quick")
        click(mine, "Plan")
        assert says(mine, "Why not otherwise"), mine.evaluate("document.body.innerText")
        click(mine, "Report")
        assert says(mine, "writing the report")
        assert mine.wait_for("!document.body.innerText.includes('writing the report')", 60)
        assert mine.evaluate("document.querySelector('.error')") is None
        go(mine, "slow")
        put(mine, "slow", "g0=1.5")
        click(mine, "Play the last plan so")
        assert says(mine, "Without anything slow it takes"), mine.evaluate("document.body.innerText")
        seen(mine, "slow-plan")
        go(mine, "goodput")
        put(mine, "goodput-of", "plan")
        click(mine, "Goodput")
        assert says(mine, "tokens a second are left"), mine.evaluate("document.body.innerText")
        seen(mine, "goodput-plan")
