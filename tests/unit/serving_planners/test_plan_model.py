"""Plans of a model on GPUs on offer: what they promise holds when played, and is read back as a fleet."""

from math import exp
from pathlib import Path

import pytest

from tangram_sim.hwdb import Hwdb
from tangram_sim.questions.requests import PlannedRequests
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.units import percent
from tests.commands import tangram

OFFERS = """\
gpus:
  A100-SXM4-80GB: {price_per_hour: 1.75, available: 4}
  L40S: {price_per_hour: 0.9, available: 4}
"""
MIX = "800:200:0.6,300:40:0.4"


@pytest.fixture
def offers(tmp_path: Path) -> Path:
    file = tmp_path / "offers.yaml"
    file.write_text(OFFERS)
    return file


def test_a_batch_takes_as_long_as_promised_and_the_plan_is_a_fleet(offers: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    asked = (
        "serve",
        "plan",
        "llama3-8b",
        "--fleet",
        offers,
        "--workload",
        MIX,
        "--requests",
        3000,
        "--budget",
        4,
    )
    told = tangram(*asked, "--json", "-o", plan).json
    assert told["status"] == "optimal"
    assert told["cost_per_hour"] <= 4
    assert abs(told["replay"]["error"]) < 0.1
    spread = CalibrationTable.load(Hwdb.load()).fit("vllm").residuals["residual_burst_output_tok_s"]
    reach = exp(1.6449 * spread)  # a batch is a burst; nothing is added for kinds and models never run
    makespan_s = told["makespan_s"]
    assert told["interval"] == pytest.approx([makespan_s / reach, makespan_s * reach])
    alone = min(item["value"] for item in told["rivals"] if item["capped"] and item["value"])
    assert told["makespan_s"] <= alone
    again = tangram("serve", "simulate", plan, "--rate", 5, "--mix", MIX, "--requests", 500, "--json").json
    assert again["router"] == "weighted"
    assert {item["name"].partition(": ")[2] for item in again["replicas"]} == {
        item["configuration"] for item in told["replicas"]
    }


def test_least_cost_of_a_rate_carries_it(offers: Path) -> None:
    asked = (
        "serve",
        "plan",
        "llama3-8b",
        "--fleet",
        offers,
        "--workload",
        MIX,
        "--rate",
        12,
        "--objective",
        "cost",
    )
    told = tangram(*asked, "--requests", 2000, "--slo", "ttft=1,tpot=0.06", "--json").json
    assert told["status"] == "optimal"
    assert told["replay"]["error"] > -0.1
    assert told["replay"]["good_share"] > 0.8


def test_goodput_is_in_requests_a_second(offers: Path) -> None:
    asked = (
        "serve",
        "plan",
        "llama3-8b",
        "--fleet",
        offers,
        "--workload",
        MIX,
        "--rate",
        1,
        "--objective",
        "goodput",
    )
    told = tangram(*asked, "--budget", 4, "--slo", "tpot=0.06", "--json").json
    assert told["objective"] == "goodput"
    assert told["throughput_rps"] <= told["bound"] * (1 + 1e-9)
    assert abs(told["replay"]["error"]) < 0.03
    few = tangram(*asked, "--budget", 4, "--slo", "tpot=0.06", "--requests", 150, "--json").json
    assert few["replay"]["played"] == pytest.approx(told["replay"]["played"], rel=0.15)
    assert all(
        item["value"] is None or item["value"] <= told["bound"] * (1 + 1e-9)
        for item in told["rivals"]
        if item["capped"]
    )


def test_two_models_share_the_gpus_and_the_plan_serves_both(offers: Path, tmp_path: Path) -> None:
    plan, mix = tmp_path / "plan.json", "llama3-8b=800:200:0.6,qwen3-8b=300:40:0.4"
    asked = ("serve", "plan", "llama3-8b,qwen3-8b", "--fleet", offers, "--workload", mix)
    told = tangram(*asked, "--requests", 600, "--budget", 6, "--json", "-o", plan).json
    assert [item["model"] for item in told["types"]] == ["llama3-8b", "qwen3-8b"]
    assert abs(told["replay"]["error"]) < 0.1
    for name, shares in told["shares"].items():
        other = 1 if name.startswith("llama3-8b") else 0
        assert shares[other] == 0
    play = ("serve", "simulate", plan, "--rate", 5, "--requests", 200)
    again = tangram(*play, "--mix", mix, "--router", "least_outstanding", "--json").json
    assert again["requests"]["completed"] == 200
    for mix, words in (("800:200", "must say which"), ("llama2-7b=800:200", "unknown model")):
        refused = tangram(*play, "--mix", mix)
        assert (refused.code, words in refused.err) == (2, True)


def test_a_draw_is_held_against_what_was_asked() -> None:
    made = PlannedRequests(workload=f"{MIX},300:40:1", rate=5.0, requests=400, seed=3).made("cost")
    long = (made.input_tokens == 800).mean()
    (note,) = made.notes
    assert "asked: 5 requests/s, 800:200 30.0 %, 300:40 70.0 %;" in note
    shares = f"{percent(long, 1)}, {percent(1 - long, 1)}"
    assert f"drawn and planned for: {made.rate_rps:.4g} requests/s, {shares} (400 " in note
    assert "requests/s" not in PlannedRequests(workload=MIX, rate=5.0, requests=9).made("makespan").notes[0]
    assert PlannedRequests(workload="800:200", requests=9).made("makespan").notes == ()
    named = PlannedRequests(workload="a=800:200:3,b=800:200:1", requests=100).made("makespan")
    mine = float((named.model == 0).mean())
    assert (
        f"b 800:200 25.0 %; drawn and planned for: {percent(mine, 1)}, {percent(1 - mine, 1)}"
        in named.notes[0]
    )


@pytest.mark.parametrize("requests", [60, 300])
def test_a_short_batch_takes_as_long_as_promised(requests: int, offers: Path) -> None:
    """Replicas fill and empty for most of it: what that costs is in the promise, the bound and the rivals."""
    asked = ("serve", "plan", "llama3-8b", "--fleet", offers, "--workload", MIX, "--requests", requests)
    told = tangram(*asked, "--budget", 4, "--json").json
    assert abs(told["replay"]["error"]) < 0.05
    assert told["bound"] <= told["makespan_s"] * (1 + 1e-9)
    alone = min(item["value"] for item in told["rivals"] if item["capped"] and item["value"])
    assert told["bound"] <= told["makespan_s"] <= alone * (1 + 1e-9)


def test_the_tail_of_latencies_keeps_the_objective(offers: Path) -> None:
    """Replicas that keep it on average do not at the 99th percentile: the plan is derated until they do."""
    asked = ("serve", "plan", "llama3-8b", "--fleet", offers, "--workload", MIX, "--rate", 8)
    told = tangram(*asked, "--objective", "cost", "--slo", "tpot=0.035", "--json").json
    kept = told["replay"]["tpot_p99_s"] <= 0.035
    assert kept or "no plan tried reaches 99 %" in told["notes"][0]
    assert told["replay"]["good_share"] > 0.95


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--workload", MIX, "--objective", "speed"), "makespan"),
        (("--workload", MIX, "--objective", "cost"), "give --rate R"),
        (("--workload", "800"), "in:out"),
        ((), "no requests"),
        (("--workload", MIX, "--budget", "0"), "--budget"),
        (("--workload", "llama3-8b=800:200,300:40"), "name it in all"),
        (("--workload", MIX, "--slo", "tpot=fast"), "seconds above 0"),
        (("--workload", MIX, "--rate", "4", "--objective", "makespan"), "--objective cost (the least"),
        (("--workload", MIX, "--slo", "tpot=0.000001"), "no replica of"),
    ],
)
def test_bad_options_are_refused_in_words(options: tuple[str, ...], words: str, offers: Path) -> None:
    shown = tangram("serve", "plan", "llama3-8b", "--fleet", offers, *options)
    assert shown.code == 2
    assert words in shown.err
