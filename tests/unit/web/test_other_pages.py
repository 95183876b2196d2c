"""The other pages of `tangram web` in a real browser: estimate, buy, serve, rl, slow ranks, months."""

from tests.unit.reliability.traces import rows_of, written
from tests.unit.web.looks import cut_tables, faint, pressed_in_print
from tests.unit.web.test_page import SHOTS, click, drop, page, put, says, served

__all__ = ["drop", "page", "served"]  # fixtures


def go(page, key):
    """Open the page of that tab."""
    page.evaluate(f"document.querySelector('nav [data-page={key}]').click()")
    assert page.wait_for(f"document.getElementById('page').dataset.ready === '{key}'")


def seen(page, name):
    """Keep what a page looks like, on a desk and on a phone, and see that it fits both, eyes and paper."""
    page.screenshot(SHOTS / f"{name}.png")
    assert faint(page) == [], name
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert faint(page) == [], f"{name} in the dark"
    page.send("Emulation.setEmulatedMedia", features=[])
    assert pressed_in_print(page) == [], name
    page.resize(390, 844, mobile=True)
    assert page.wait_for("document.documentElement.scrollWidth <= 391"), name
    assert cut_tables(page) == [], name
    page.screenshot(SHOTS / f"{name}-phone.png")
    page.resize(1300, 900)
    assert page.problems == []


class TestOtherPages:
    def test_a_knob_moves_the_estimate_at_once(self, page, drop):
        put(page, "cluster-from", "file")
        put(page, "global-batch", "24")
        put(page, "seq", "1024")
        page.choose_file("fieldset:nth-of-type(1) input[type=file]", drop[0])
        page.choose_file("fieldset:nth-of-type(2) input[type=file]", drop[1])
        assert says(page, "tiny.yaml") and says(page, "lab.yaml")
        go(page, "estimate")
        assert says(page, "A step takes")
        slider = "document.querySelector('[name=pp]')"
        page.evaluate(
            "window.took = null; { const begun = performance.now(), from = document.querySelector('.lead');"
            f"{slider}.value = 0; {slider}.dispatchEvent(new Event('input', {{bubbles: true}}));"
            "const look = () => document.querySelector('.lead') === from ? requestAnimationFrame(look)"
            " : window.took = performance.now() - begun; look(); }"
        )
        assert page.wait_for("window.took !== null")
        assert page.evaluate("document.querySelectorAll('.stage').length") == 1
        seen(page, "estimate")

    def test_candidates_stand_on_a_front_and_a_click_shows_the_plan(self, page, tmp_path):
        prices = tmp_path / "prices.yaml"
        prices.write_text("economics: {pue: 1.3, usd_per_kwh: 0.1, date: 2026-11-01, source: finance}\n")
        go(page, "buy")
        page.evaluate("document.querySelector('[aria-label=\"remove this offer\"]').click()")
        put(page, "offer", "p3.2xlarge")
        put(page, "many", "1")
        page.evaluate("document.querySelector('form > details').open = true")
        page.choose_file("form > details input[type=file]", prices)
        assert says(page, "prices.yaml")
        field = "document.querySelector('form > details .drop')"
        page.evaluate(f"{field}.querySelector('button').click()")
        assert "prices.yaml" not in page.evaluate(f"{field}.innerText")
        page.choose_file("form > details input[type=file]", prices)
        assert says(page, "prices.yaml")
        click(page, "Compare")
        assert says(page, "Throughput against cost"), page.evaluate("document.body.innerText")
        assert page.evaluate("document.querySelectorAll('.point').length") == 2
        seen(page, "buy")
        page.evaluate("document.querySelectorAll('.point')[1].dispatchEvent(new Event('click'))")
        assert says(page, "Why not otherwise")
        assert page.problems == []

    def test_a_service_is_planned_with_the_gpus_of_a_cluster(self, page):
        go(page, "serve")
        put(page, "cluster", "b200-h100")
        put(page, "service-requests", "200")
        click(page, "Plan a service")
        assert says(page, "One kind of GPU alone"), page.evaluate("document.body.innerText")
        assert "99 % within" in page.evaluate("document.getElementById('content').innerText")
        seen(page, "service")

    def test_a_replica_is_estimated(self, page):
        go(page, "serve")
        click(page, "Estimate")
        assert says(page, "A token every"), page.evaluate("document.body.innerText")
        seen(page, "serve")

    def test_roles_of_post_training_are_placed(self, page):
        go(page, "rl")
        put(page, "model", "qwen2.5-1.5b")
        put(page, "cluster", "b200-h100")
        put(page, "rl-prompts", "16")
        put(page, "rl-response-tokens", "512")
        put(page, "rl-cap", "1024")
        click(page, "Place roles")
        assert says(page, "A step takes"), page.evaluate("document.body.innerText")
        shown = page.evaluate("document.getElementById('content').innerText")
        assert "trained tokens a second" in shown and "What each kind is best at" in shown
        assert "--prompts=16" in shown or "--prompts 16" in shown
        seen(page, "rl")

    def test_a_measured_run_shows_its_slow_rank(self, page, tmp_path):
        trace = written(rows_of(dp=2, slow={(1, 1): 2.0}), tmp_path / "trace.csv")
        go(page, "slow")
        page.choose_file("input[type=file]", trace)
        assert says(page, "trace.csv")
        click(page, "Find slow ranks")
        assert says(page, "Slow ranks make a step"), page.evaluate("document.body.innerText")
        assert page.evaluate("document.querySelectorAll('.cell').length") == 6
        seen(page, "slow")

    def test_failures_and_checkpoints_leave_a_share_of_the_time(self, page):
        go(page, "goodput")
        click(page, "Goodput")
        assert says(page, "of the time is useful"), page.evaluate("document.body.innerText")
        gained = page.evaluate(
            "[...document.querySelectorAll('td[data-head=\\'share gained\\']')].map((one) => one.innerText)"
        )
        assert gained and all(float(item.removesuffix(" %")) for item in gained), (
            "however small, none is 0.000 %"
        )
        seen(page, "goodput")
