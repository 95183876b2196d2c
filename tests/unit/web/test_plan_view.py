"""A plan on the page: who holds what, what limits it, what launches it; by keyboard, at three widths."""

import json

import pytest

from tests.browser import browser
from tests.commands import tangram
from tests.unit.web.live import live_page
from tests.unit.web.looks import faint
from tests.unit.web.test_page import SHOTS, click, put, says

# No framework launches the fastest plan of this job, and Megatron-LM launches another.
ASKED = {"model": "gpt3-1.3b", "cluster": "A100-40GBx4:1+H100x4:1", "global-batch": "128", "seq": "1024"}


@pytest.fixture(scope="module")
def page():
    SHOTS.mkdir(parents=True, exist_ok=True)
    with live_page("--at-once", "2") as served, browser() as found:
        mine = found.another(served.home)
        mine.resize(1280, 900)
        mine.open(served.address)
        assert mine.wait_for("document.getElementById('page').dataset.ready === 'plan'", 60)
        yield mine


def press(page, key):
    """Press a key where the focus is."""
    text = {"Enter": "\r", "Space": " "}.get(key, "")
    code = {"Tab": 9, "Enter": 13, "Space": 32}[key]
    for kind in ("keyDown", "keyUp"):
        named = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        page.send("Input.dispatchKeyEvent", type=kind, text=text if kind == "keyDown" else "", **named)


def tab_to(page, words):
    """Move the focus with Tab alone until it is on the button or link that says so, and is seen to be."""
    for _ in range(200):
        press(page, "Tab")
        if page.evaluate(f"document.activeElement.textContent.trim() === {json.dumps(words)}"):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    raise AssertionError(f"Tab does not lead to {words}")


class TestPlanView:
    def test_a_plan_is_asked_for_by_keyboard_alone(self, page):
        for name, value in ASKED.items():
            page.evaluate(f"document.querySelector('[name={name}]').focus()")
            page.evaluate("document.activeElement.select()")
            page.send("Input.insertText", text=value)
        tab_to(page, "Constraints")
        press(page, "Enter")
        put(page, "effort", "quick")
        tab_to(page, "Plan")
        press(page, "Enter")
        assert says(page, "Why not otherwise"), page.evaluate("document.body.innerText")

    def test_the_limit_is_the_one_that_the_terminal_names(self, page):
        words = [ASKED["model"], ASKED["cluster"], "--global-batch=128", "--seq=1024", "--effort=quick"]
        said = next(
            line for line in tangram("plan", *words).out.splitlines() if line.startswith("limited by")
        )
        assert said.removeprefix("limited by ")[:40] in page.evaluate("document.body.innerText")

    def test_every_gpu_is_drawn_with_its_stage_in_its_colour_and_its_kind_as_a_shape(self, page):
        held = page.evaluate("[...document.querySelectorAll('.node')].map(e => e.getAttribute('aria-label'))")
        assert len(held) == 2 and all("stage " in one for one in held)
        shapes = "[...document.querySelectorAll('.node')].map(e => e.querySelector('.gpu').getAttribute('d'))"
        assert len(set(page.evaluate(shapes))) == 2
        assert page.evaluate("document.querySelectorAll('.node .gpu').length") == 8
        drawn = page.evaluate(
            "[...document.querySelectorAll('.node .gpu')].map(e => getComputedStyle(e).fill)"
        )
        boxes = page.evaluate(
            "[...document.querySelectorAll('.stage')].map(e => getComputedStyle(e).borderTopColor)"
        )
        assert set(drawn) == set(boxes)

    @pytest.mark.parametrize("width", [390, 1280, 2560])
    def test_the_whole_pipeline_is_seen_at_any_width(self, page, width):
        page.resize(width, 900, mobile=width == 390)
        assert page.wait_for(f"document.documentElement.scrollWidth <= {width + 1}")
        inside = (
            "[...document.querySelectorAll('.stage, .node')].every(e => "
            "e.getBoundingClientRect().left >= 0 && e.getBoundingClientRect().right <= innerWidth)"
        )
        assert page.wait_for(inside)
        assert faint(page) == []
        page.screenshot(SHOTS / f"plan-{width}.png")
        page.resize(1280, 900)

    def test_counters_of_the_search_are_folded_away(self, page):
        hidden = "!document.querySelector('#content > details').open"
        assert page.evaluate(hidden)
        assert "Searched:" in page.evaluate("document.querySelector('#content > details').textContent")
        assert "Searched:" not in page.evaluate("document.body.innerText")

    def test_the_fastest_launchable_plan_is_one_press_away_with_its_folder(self, page):
        assert says(page, "No framework launches this plan", 10)
        tab_to(page, "Plan for megatron")
        press(page, "Enter")
        assert says(page, "Can be launched with megatron"), page.evaluate("document.body.innerText")
        click(page, "Launch files")
        assert says(page, "Download the launch folder", 60)
        click(page, "Download the launch folder")
        assert page.problems == []
