"""`what-if` and `purchase` with --serve and --share: pure cases, figures that belong together, bad input."""

from pathlib import Path

import pytest

from tests.commands import tangram

FLEET = """\
name: pair
nodes:
  - {count: 1, gpu: A100-SXM4-40GB, gpus: 4, intra_link: NVLink3, nic_gbps: 200, usd_per_hour: 4}
  - {count: 1, gpu: L40S, gpus: 4, intra_link: PCIe4x16, nic_gbps: 200, usd_per_hour: 3}
"""
SERVED = ("--serve", "300:40:0.5,800:100:0.5", "--rate", 40, "--slo", "ttft=2,tpot=0.06", "--requests", 100)
TRAINED = ("--global-batch", 256, "--seq", 1024)
MONTH_H = 365.25 / 12


@pytest.fixture
def shop_of_two(shop: Path) -> Path:
    (shop / "pair.yaml").write_text(FLEET)
    for label, without in (("g0", 3), ("g1", 2)):
        lines = FLEET.splitlines()
        (shop / f"without_{label}.yaml").write_text("\n".join([*lines[:2], lines[without]]))
    return shop


def asked(verb: str, shop: Path, kept: Path, *more: object, fleet: str = "pair") -> tuple[object, ...]:
    return (
        *(verb, shop / "tiny.yaml", shop / f"{fleet}.yaml", *TRAINED, *SERVED, "--json", "--jobs", 1),
        *("--cache", kept, "--prices", shop / "prices.yaml", *more),
    )


def test_hours_of_serving_reduce_to_the_pure_cases(shop_of_two: Path, kept: Path) -> None:
    days = {
        hours: tangram(*asked("what-if", shop_of_two, kept, "--share", hours)).json["candidates"][0]
        for hours in (0, 12, 24)
    }
    none, half, whole = days[0], days[12], days[24]
    assert none["serving_nodes"] == {} and none["served_tokens_per_day"] == 0
    assert none["shared"] == none["apart"] | {
        "usd_per_million_trained": none["shared"]["usd_per_million_trained"]
    }
    assert whole["shared"] == whole["apart"] and not whole["changes_over"]
    assert whole["served_tokens_per_day"] == pytest.approx(2 * half["served_tokens_per_day"], rel=1e-6)
    assert half["changes_over"] and half["gain"] > 0
    mean = (none["shared"]["trained_tokens_per_day"] + whole["shared"]["trained_tokens_per_day"]) / 2
    trained = half["shared"]["trained_tokens_per_day"]
    assert trained + half["lost_tokens_per_day"] == pytest.approx(mean)
    assert trained >= half["apart"]["trained_tokens_per_day"]
    (node,) = half["serving_nodes"]
    # Either node could serve: the one does that leaves more to train.
    alone = {
        label: tangram(*asked("what-if", shop_of_two, kept, "--share", 0, fleet=f"without_{label}")).json[
            "candidates"
        ][0]["shared"]["trained_tokens_per_day"]
        for label in ("g0", "g1")
    }
    assert half["apart"]["trained_tokens_per_day"] == pytest.approx(max(alone.values()), rel=1e-6)
    assert alone[node] == max(alone.values()) > min(alone.values())
    # All is rented: kept apart, the node that serves is given back for half the day.
    rent = {"g0": 4, "g1": 3}[node]
    assert half["shared"]["usd_per_month"] == pytest.approx(24 * 7 * MONTH_H)
    assert half["apart"]["usd_per_month"] == pytest.approx((24 * 7 - 12 * rent) * MONTH_H)
    served_usd = 12 * rent / half["served_tokens_per_day"] * 1e6
    assert half["usd_per_million_served"] == pytest.approx(served_usd)


def test_more_nodes_train_no_less_and_the_front_rises(shop_of_two: Path, kept: Path) -> None:
    (shop_of_two / "one.yaml").write_text("offers: [{node: T4x4.yaml, most: 1}]\n")
    catalogue = ("--catalogue", shop_of_two / "one.yaml")
    told = tangram(*asked("purchase", shop_of_two, kept, "--share", 12, *catalogue)).json
    assert told["mixes"] == len(told["days"]) + told["bounded_away"] and not told["not_looked_at"]
    usd = [item["shared"]["usd_per_month"] for item in told["front"]]
    trained = [item["shared"]["trained_tokens_per_day"] for item in told["front"]]
    assert usd == sorted(usd) and trained == sorted(trained)
    nothing = next(item for item in told["days"] if item["name"] == "nothing")
    assert all(
        item["shared"]["trained_tokens_per_day"] >= nothing["shared"]["trained_tokens_per_day"]
        for item in told["days"]
    )


def test_all_day_serving_is_paid_by_nodes(shop_of_two: Path, kept: Path) -> None:
    now, more = tangram(*asked("what-if", shop_of_two, kept, "--add", shop_of_two / "T4x4.yaml:1")).json[
        "candidates"
    ]
    assert (now["usd_per_hour"], more["usd_per_hour"]) == (pytest.approx(7), pytest.approx(8.5))
    assert more["good_rps"] >= now["good_rps"] > 0
    a_million = 7 / (now["good_output_tok_s"] * 3600) * 1e6
    assert now["usd_per_million_tokens"] == pytest.approx(a_million)
    catalogue = ("--catalogue", shop_of_two / "catalogue.yaml", "--max-nodes", 1)
    page = shop_of_two / "page.html"
    told = tangram(*asked("purchase", shop_of_two, kept, *catalogue, "-o", page)).json
    rates = [item["good_rps"] for item in told["front"]]
    assert rates == sorted(rates) and told["front"][0]["name"] == "nothing"
    assert told["front"][0]["good_rps"] == pytest.approx(now["good_rps"])
    assert "tokens are cheapest" in page.read_text().lower()


def test_a_service_too_large_says_what_all_nodes_serve(shop_of_two: Path, kept: Path) -> None:
    told = tangram(*asked("what-if", shop_of_two, kept, "--share", 12, "--rate", 1e5)).json["candidates"][0]
    assert told["reason"] and told["shared"] is None
    assert 0 < told["most_rps"] < 1e5


@pytest.mark.parametrize(
    ("verb", "options", "words"),
    [
        ("what-if", ("--share", 25), "0 to 24"),
        ("what-if", ("--share", "nan"), "finite"),
        ("what-if", ("--share", 12, "--load-s", -1), "load-s"),
        ("what-if", ("--share", 12, "--sensitivity"), "--sensitivity"),
        ("what-if", ("--share", 12, "-o", "plans"), "report.html"),
        ("what-if", ("--serve-model", "no-such-model"), "no-such-model"),
        ("purchase", ("--cost", "outlay"), "--serve"),
    ],
)
def test_bad_options_are_named(
    shop_of_two: Path, kept: Path, verb: str, options: tuple[object, ...], words: str
) -> None:
    more = ("--catalogue", shop_of_two / "catalogue.yaml") if verb == "purchase" else ()
    shown = tangram(*asked(verb, shop_of_two, kept, *more, *options))
    assert (shown.code, words in shown.err) == (2, True), shown.err


def test_options_of_serving_need_what_is_served(shop_of_two: Path) -> None:
    shown = tangram("what-if", shop_of_two / "tiny.yaml", shop_of_two / "pair.yaml", "--share", 12)
    assert (shown.code, "--serve WORKLOAD" in shown.err) == (2, True), shown.err
