"""The page of `tangram web` in a real browser, and what its server refuses: one server, one browser."""

import json
import time
from pathlib import Path
from stat import S_IMODE
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest

from tangram_sim.web.redirect import redirect_page
from tests.browser import browser
from tests.commands import files, tangram
from tests.places import ROOT
from tests.unit.web.live import live_page
from tests.unit.web.looks import cut_tables, faint, pressed_in_print

SHOTS = ROOT / "build" / "screenshots"
LONG = {"verb": "plan", "arguments": ["llama3-405b", "sailor-a512-v512"], "options": {"effort": "exhaustive"}}


@pytest.fixture(scope="module")
def served():
    SHOTS.mkdir(parents=True, exist_ok=True)
    with live_page("--at-once", "2") as found:
        yield found


@pytest.fixture(scope="module")
def drop(tmp_path_factory):
    """(model file, cluster file) to drop into the page."""
    return files(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def page(served):
    with browser() as found:
        mine = found.another(served.home)
        mine.resize(1300, 900)
        mine.open(served.address)
        assert mine.wait_for("document.getElementById('page').dataset.ready === 'plan'")
        yield mine


def put(page, name, value):
    """Type into the field of that name."""
    page.evaluate(
        f"(() => {{ const e = document.querySelector('[name={name}]'); e.value = {json.dumps(value)};"
        "e.dispatchEvent(new Event('input', {bubbles: true}));"
        "e.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def click(page, words):
    """Press the button that says so."""
    page.evaluate(
        "[...document.querySelectorAll('button')]"
        f".find(e => e.checkVisibility() && e.textContent.trim() === {json.dumps(words)}).click()"
    )


def says(page, words, patience_s=120.0):
    return page.wait_for(f"document.body.innerText.includes({json.dumps(words)})", patience_s)


class TestTheDoor:
    def test_the_file_that_is_opened_leads_to_the_page_and_no_command_line_has_the_token(self, page, served):
        """Other users see command lines of processes; this file is its owner's alone."""
        with redirect_page(served.address) as door:
            path = Path(url2pathname(urlparse(door).path))
            assert served.token not in door and served.token in path.read_text()
            assert S_IMODE(path.stat().st_mode) == 0o600
            visitor = page.another(served.home)
            visitor.open(door)
            assert visitor.wait_for("location.protocol === 'http:'")
            assert visitor.wait_for("document.getElementById('page')?.dataset.ready === 'plan'")
        assert not path.exists()

    def test_only_the_empty_page_may_be_come_to_from_elsewhere(self, served):
        come = {"sec_fetch_site": "cross-site", "sec_fetch_dest": "document"}
        assert served.ask("/", **come)[0] == 200
        assert served.ask("/api/choices", **come)[0] == 403
        assert served.ask("/", b"{}", **come)[0] == 403
        assert served.ask("/", sec_fetch_site="cross-site", sec_fetch_dest="script")[0] == 403


class TestWhoMayAsk:
    def test_the_token_host_and_origin_are_checked(self, served):
        assert served.ask("/api/choices")[0] == 200
        assert served.ask("/api/choices", x_tangram_token="wrong")[0] == 401
        assert served.ask("/api/choices", host="evil.example:80")[0] == 421
        assert served.ask("/api/choices", origin="http://evil.example")[0] == 403
        assert served.ask("/api/choices", sec_fetch_site="cross-site")[0] == 403
        assert served.ask("/", x_tangram_token="")[0] == 200, "the page itself holds no secret"
        assert served.ask("/../pyproject.toml")[0] == 404

    def test_sizes_and_requests_that_make_no_sense_are_refused_in_words(self, served):
        assert served.ask("/api/run", b"", content_length=str(1 << 40))[0] == 413
        assert served.ask("/api/run", b"{}")[0] == 400
        status, text = served.ask(
            "/api/run", json.dumps({"verb": "plan", "arguments": ["/etc/passwd"]}).encode()
        )
        assert (status, "a plain word is wanted" in text) == (400, True)

    def test_files_of_a_request_lead_nowhere_else(self, served, tmp_path):
        (tmp_path / "node.yaml").write_text("{name: n, gpu: T4, gpus: 1, nic_gbps: 10}")
        catalogue = json.dumps({"offers": [{"node": str(tmp_path / "node.yaml"), "most": 1}]})
        found = served.run(
            verb="purchase", arguments=["gpt3-125m", "azure-c1"], options={"catalogue": "catalogue.yaml"},
            files={"catalogue.yaml": catalogue},
        )  # fmt: skip
        assert found["code"] == 2
        assert "not a file of this request" in found["error"]

    def test_errors_of_a_verb_come_back_as_it_says_them(self, served):
        found = served.run(verb="islands", arguments=["no-such-cluster"])
        assert (found["code"], found["document"]) == (2, None)
        assert "unknown cluster 'no-such-cluster'" in found["error"]

    def test_runs_are_limited_and_end_with_their_request(self, served):
        """Two run, sixteen wait, the next is refused; when all have hung up, there is room again."""
        long, short = json.dumps(LONG).encode(), {"verb": "islands", "arguments": ["azure-c1"]}
        lines = [served.begin("/api/run", long) for _ in range(18)]
        answers = [line.getresponse() for line in lines]
        firsts = [answer.readline() + answer.readline() for answer in answers]
        assert sum(b"searching" in first for first in firsts) == 2
        assert sum(b"waiting" in first for first in firsts) == 16
        status, text = served.ask("/api/run", json.dumps(short).encode())
        assert (status, "16 more wait" in text) == (429, True)
        for line, answer in zip(lines, answers, strict=True):
            answer.close()
            line.close()
        until = time.monotonic() + 20
        while served.ask("/api/run", json.dumps(short).encode())[0] == 429:
            assert time.monotonic() < until, "a run goes on though nobody waits for it"
            time.sleep(0.1)
        assert served.run(**short)["code"] == 0


class TestPlan:
    def test_own_files_are_planned_drawn_and_the_command_line_does_the_same(
        self, page, drop, tmp_path, monkeypatch
    ):
        model, cluster = drop
        put(page, "cluster-from", "file")
        page.choose_file("fieldset:nth-of-type(1) input[type=file]", model)
        page.choose_file("fieldset:nth-of-type(2) input[type=file]", cluster)
        assert says(page, "tiny.yaml") and says(page, "lab.yaml")
        put(page, "global-batch", "8")
        put(page, "seq", "1024")
        put(page, "effort", "quick")
        put(page, "global-batch", "")
        click(page, "Plan")
        assert says(page, "Sequences a step: empty; give a number", 10), "128 must not be taken silently"
        put(page, "global-batch", "8")
        click(page, "Plan")
        assert says(page, "Why not otherwise"), page.evaluate("document.body.innerText")
        assert page.wait_for("document.querySelectorAll('.op').length >= 3")
        assert page.evaluate("document.querySelectorAll('.stage').length") >= 1
        said = page.evaluate("document.querySelector('code.command').textContent").split(" ")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "model.yaml").write_text(model.read_text())
        (tmp_path / "cluster.yaml").write_text(cluster.read_text())
        again = tangram(*said[1:], "--json").json
        shown = page.evaluate("document.querySelector('.facts dd').firstChild.textContent")
        assert float(shown.split(" ")[0]) == pytest.approx(
            again["step_s"] * (1000 if shown.endswith("ms") else 1), rel=6e-3
        )
        page.screenshot(SHOTS / "plan.png")
        assert page.problems == []

    def test_the_timeline_zooms_by_keyboard_and_button(self, page):
        ends = "[...document.querySelectorAll('.zoom + svg text.soft')].pop().textContent"
        whole = page.evaluate(ends)
        page.evaluate("document.querySelector('.zoom + svg').focus()")
        for _ in range(3):
            page.send("Input.dispatchKeyEvent", type="keyDown", key="+", text="+")
            page.send("Input.dispatchKeyEvent", type="keyUp", key="+")
        assert page.evaluate(ends) != whole
        page.evaluate("document.querySelector('.zoom button:last-child').click()")
        assert page.evaluate(ends) == whole

    def test_launch_files_are_shown_to_download(self, page):
        put(page, "framework", "rankmap")
        click(page, "Launch files")
        assert says(page, "rankmap.json"), page.evaluate("document.body.innerText")
        assert page.problems == []

    def test_it_fits_a_phone_and_the_dark(self, page):
        page.resize(390, 844, mobile=True)
        assert page.wait_for("document.documentElement.scrollWidth <= 391")
        assert cut_tables(page) == []
        page.screenshot(SHOTS / "plan-phone.png")
        page.resize(1300, 900)
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
        page.screenshot(SHOTS / "plan-dark.png")
        assert faint(page) == []
        page.send("Emulation.setEmulatedMedia", features=[])
        assert faint(page) == [] and pressed_in_print(page) == []
        assert page.problems == []

    def test_a_second_person_plans_on_nodes_of_the_tables_while_the_first_waits(self, page, served):
        """Two at once: one search is cancelled, the other's answer is its own."""
        put(page, "cluster-from", "shipped")
        put(page, "model", "llama3-405b")
        put(page, "cluster", "sailor-a512-v512")
        click(page, "Plan")
        assert says(page, "searching")
        other = page.another(served.home)
        other.open(served.address)
        assert other.wait_for("document.getElementById('page').dataset.ready === 'plan'")
        put(other, "model", "gpt3-125m")
        put(other, "cluster-from", "built")
        other.evaluate("document.querySelector('[aria-label^=remove]').click()")
        put(other, "kind", "T4")
        put(other, "nodes", "1")
        put(other, "gpus", "2")
        put(other, "global-batch", "4")
        put(other, "seq", "512")
        put(other, "effort", "quick")
        click(other, "Plan")
        assert says(other, "Why not otherwise"), other.evaluate("document.body.innerText")
        assert "2 of 2" in other.evaluate("document.querySelector('.facts').innerText")
        click(page, "Cancel")
        assert says(page, "cancelled")
        assert "tiny on lab" in page.evaluate("document.body.innerText"), "what was there stays"
        assert page.problems == other.problems == []
