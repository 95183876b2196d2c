"""What a reader does with an answer or an error: launch lines of a service, the field that an error names."""

import pytest

from tests.browser import browser
from tests.unit.web.live import live_page
from tests.unit.web.test_other_pages import go, seen
from tests.unit.web.test_page import SHOTS, click, put, says


@pytest.fixture(scope="module")
def page():
    SHOTS.mkdir(parents=True, exist_ok=True)
    with live_page("--at-once", "2") as served, browser() as found:
        mine = found.another(served.home)
        mine.resize(1300, 900)
        mine.open(served.address)
        assert mine.wait_for("document.getElementById('page').dataset.ready === 'plan'", 60)
        yield mine


MARKED = "[...document.querySelectorAll('[aria-invalid=true]')].map(e => e.name)"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("model", "no-such-model", "unknown model"), ("cluster", "no-such-cluster", "unknown cluster")],
)
def test_an_error_marks_the_field_that_it_names_until_it_is_changed(page, field, value, said):
    go(page, "plan")
    before = page.evaluate(f"document.querySelector('[name={field}]').value")
    put(page, field, value)
    click(page, "Plan")
    assert says(page, said, 60), page.evaluate("document.body.innerText")
    assert page.wait_for(f"{MARKED}.length === 1", 5)
    assert page.evaluate(MARKED) == [field]
    assert page.evaluate("document.activeElement.name") == field
    put(page, field, before)
    assert page.evaluate(MARKED) == []


def test_an_error_of_an_option_that_is_folded_away_opens_and_marks_it(page):
    go(page, "plan")
    put(page, "model", "gpt3-125m")
    put(page, "cluster", "azure-c1")
    put(page, "exclude", "no-such-group")
    click(page, "Plan")
    assert page.wait_for(f"{MARKED}.includes('exclude')", 60), page.evaluate("document.body.innerText")
    assert page.evaluate("document.activeElement.checkVisibility()")
    put(page, "exclude", "")


def test_a_service_is_planned_and_its_launch_lines_are_a_press_away(page):
    go(page, "serve")
    put(page, "model", "llama3-8b")
    put(page, "cluster", "H100x8:1")
    put(page, "service-requests", "200")
    click(page, "Plan a service")
    assert says(page, "One kind of GPU alone"), page.evaluate("document.body.innerText")
    click(page, "Launch files")
    assert says(page, "Download the launch folder", 60), page.evaluate("document.body.innerText")
    assert page.evaluate("document.querySelector('[name=engine]').value") == "vllm"
    assert "vllm serve" in page.evaluate("document.getElementById('content').textContent")
    seen(page, "service-launched")
