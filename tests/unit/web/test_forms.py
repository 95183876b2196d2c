"""Forms of `tangram web` in a real browser: what is typed stays, prices and services are asked about."""

import json

from tests.unit.web.test_flows import block, choose
from tests.unit.web.test_other_pages import go, seen
from tests.unit.web.test_page import click, drop, page, put, says, served

__all__ = ["drop", "page", "served"]  # fixtures


def value(page, name):
    """What stands in the field of that name."""
    return page.evaluate(f"document.querySelector('[name={name}]').value")


def command(page):
    """The command line that the page shows."""
    return page.evaluate("document.querySelector('code.command').textContent")


def loaded(page, key):
    """Load the page again and wait until it is ready."""
    page.evaluate("document.getElementById('page').dataset.ready = ''")
    page.send("Page.reload")
    assert page.wait_for(f"document.getElementById('page')?.dataset.ready === '{key}'")


class TestForms:
    def test_what_was_typed_and_dropped_is_there_when_the_page_is_loaded_again(self, page, drop):
        put(page, "cluster-from", "built")
        page.evaluate("document.querySelector('[aria-label^=remove]').click()")
        click(page, "Add a kind of node")
        put(page, "kind", "T4")
        put(page, "nodes", "3")
        put(page, "nic", "25")
        put(page, "global-batch", "96")
        page.choose_file("fieldset:nth-of-type(1) input[type=file]", drop[0])
        assert says(page, "tiny.yaml")
        go(page, "buy")
        put(page, "offer", "p3.2xlarge")
        put(page, "capital", "9000")
        loaded(page, "buy")
        assert value(page, "offer") == "p3.2xlarge" and value(page, "capital") == "9000"
        assert value(page, "global-batch") == "96" and value(page, "model") == "model.yaml"
        assert says(page, "tiny.yaml"), "a file that was dropped is there, too"
        assert [value(page, name) for name in ("cluster-from", "kind", "nodes", "nic")] == [
            "built",
            "T4",
            "3",
            "25",
        ]
        assert page.evaluate("document.querySelectorAll('.setup [name=kind]').length") == 2
        click(page, "Start over")
        assert page.wait_for("document.querySelector('[name=global-batch]')?.value === '256'")
        assert page.problems == []

    def test_prices_are_typed_and_the_comparison_goes_into_a_report(self, page, drop):
        assert page.wait_for("document.getElementById('page')?.dataset.ready === 'buy'")
        put(page, "cluster-from", "file")
        page.choose_file("fieldset:nth-of-type(1) input[type=file]", drop[0])
        page.choose_file("fieldset:nth-of-type(2) input[type=file]", drop[1])
        assert says(page, "tiny.yaml") and says(page, "lab.yaml")
        put(page, "global-batch", "8")
        put(page, "seq", "1024")
        page.evaluate("document.querySelector('[aria-label=\"remove this offer\"]').click()")
        put(page, "offer", "p3.2xlarge")
        put(page, "many", "1")
        put(page, "capital", "9000")
        put(page, "years", "4")
        put(page, "kwh", "0.1")
        put(page, "pue", "1.3")
        click(page, "Compare")
        assert says(page, "In figures"), page.evaluate("document.body.innerText")
        assert "$9,000" in page.evaluate("document.body.innerText").replace("$9000", "$9,000")
        assert "--prices=prices.yaml" in command(page)
        put(page, "capital", "1")
        put(page, "pue", "2")
        loaded(page, "buy")
        assert page.wait_for("document.querySelector('[name=capital]')?.value === '9000'", 60)
        asked = {"offer": "p3.2xlarge", "many": "1", "kwh": "0.1", "pue": "1.3", "years": "4", "seq": "1024"}
        assert {name: value(page, name) for name in asked} == asked and says(page, "In figures")
        click(page, "Report")
        assert says(page, "the report is written"), page.evaluate("document.body.innerText")
        seen(page, "buy-prices")

    def test_fleets_are_compared_by_what_they_serve(self, page):
        put(page, "buy-rate", "2")
        click(page, "Compare")
        assert says(page, "what is served?", 10)
        put(page, "buy-serve", "256:32:1")
        put(page, "buy-slo", "ttft=5,tpot=0.5")
        click(page, "Compare")
        assert says(page, "What the fleets serve"), page.evaluate("document.body.innerText")
        assert page.evaluate("document.querySelectorAll('table tbody tr').length") == 2
        assert "--serve=256:32:1" in command(page)
        seen(page, "buy-served")

    def test_a_replay_takes_what_restarts_and_checkpoints_cost(self, page, tmp_path):
        go(page, "goodput")
        for place, name in ((1, "trace.csv"), (2, "speeds.csv")):
            (tmp_path / name).write_text(block("plan-on-spot", name))
            choose(page, place, tmp_path / name)
        useful = []
        for restart in ("0", "900"):
            put(page, "replay-restart-s", restart)
            put(page, "replay-checkpoint-s", "30")
            put(page, "replay-checkpoint-every", "100")
            click(page, "Replay")
            assert says(page, f"--restart-s={restart}"), page.evaluate("document.body.innerText")
            rows = page.evaluate("[...document.querySelectorAll('tbody tr')].map(e => e.innerText)")
            useful.append(json.dumps(rows))
        assert "--checkpoint-s=30" in command(page) and "--checkpoint-every=100" in command(page)
        assert useful[0] != useful[1]
        page.evaluate("history.back()")
        assert page.wait_for("document.querySelector('[name=replay-restart-s]').value === '0'", 60)
        assert value(page, "replay-checkpoint-s") == "30" and says(page, "speeds.csv")
        assert page.problems == []
