"""What budgets buy for a service: within the budget, never less for more, figures belong together."""

import json
from pathlib import Path

import pytest

from tests.commands import tangram

OFFERS = "gpus:\n  A100-SXM4-80GB: {price_per_hour: 1.75}\n  L40S: {price_per_hour: 0.9, available: 2}\n"


@pytest.fixture
def asked(tmp_path: Path) -> tuple[object, ...]:
    file = tmp_path / "offers.yaml"
    file.write_text(OFFERS)
    return (
        *("serve", "purchase", "llama3-8b", "--fleet", file, "--workload", "800:200:0.6,300:40:0.4"),
        *("--rate", 4, "--requests", 300, "--slo", "ttft=2,tpot=0.06"),
    )


def test_more_dollars_buy_no_fewer_good_tokens(asked: tuple[object, ...]) -> None:
    told = tangram(*asked, "--budgets", "4,0.5,1,2", "--json").json
    none, *front = told["front"]
    assert none["status"] == "infeasible" and "least that would do is 0.9" in none["reason"]
    assert [item["budget_usd_per_hour"] for item in front] == [1, 2, 4]
    prices = {"A100-SXM4-80GB": 1.75, "L40S": 0.9}
    for item in front:
        rented = sum(prices[gpu] * count for gpu, count in item["gpus_used"].items())
        assert item["usd_per_hour"] == pytest.approx(rented)
        assert rented <= item["budget_usd_per_hour"] and item["gpus_used"]["L40S"] <= 2
        a_million = item["usd_per_hour"] / (item["good_output_tok_s"] * 3600) * 1e6
        assert item["usd_per_million_tokens"] == pytest.approx(a_million)
    rates = [item["good_rps"] for item in front]
    assert rates == sorted(rates) and rates[0] < rates[-1]
    least = min(front, key=lambda item: item["usd_per_million_tokens"])
    assert told["cheapest_tokens"] == least["budget_usd_per_hour"]


def test_a_page_and_json_tell_what_the_table_tells(asked: tuple[object, ...], tmp_path: Path) -> None:
    page, answer = tmp_path / "report.html", tmp_path / "answer.json"
    told = tangram(*asked, "--budgets", "1,2", "--json", "-o", page).json
    text = page.read_text()
    for item in told["front"]:
        assert f"{item['good_rps']:.4g}" in text and item["name"] in text
    tangram(*asked, "--budgets", "1,2", "-o", answer)
    again = json.loads(answer.read_text())
    assert [item["good_rps"] for item in again["front"]] == [item["good_rps"] for item in told["front"]]
    assert tangram(*asked, "--budgets", "1", "-o", tmp_path / "plan.pdf").code == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--budgets", "0,3"), "above 0"),
        (("--budgets", "ten"), "like 10,20,40"),
        (("--budgets", "3", "--budget", 3), "Possible options: --budgets"),
    ],
)
def test_bad_budgets_are_named(asked: tuple[object, ...], options: tuple[object, ...], words: str) -> None:
    shown = tangram(*asked, *options)
    assert (shown.code, words in shown.err) == (2, True), shown.err
