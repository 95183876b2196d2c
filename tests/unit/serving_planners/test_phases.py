"""Prefill and decode apart: rates of either half as played, the link's limit, and plans that use it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import plain
from tangram_sim.serving_planners.offers import OfferPricer
from tangram_sim.serving_planners.phases import halves
from tangram_sim.studies.serving_simulation import simulate_service
from tests.commands import tangram

HWDB = Hwdb.load()
OFFERS = """\
gpus:
  H100-SXM5-80GB: {price_per_hour: 2.99, available: 8}
  L40S: {price_per_hour: 0.9, available: 8}
"""
ASKED = ("--workload", "6000:250", "--requests", 300, "--rate", 4, "--slo", "ttft=3,tpot=0.02")


@pytest.fixture
def offers(tmp_path: Path) -> Path:
    file = tmp_path / "offers.yaml"
    file.write_text(OFFERS)
    return file


def priced(slo: Slo) -> dict[str, float]:
    load = Load.of(np.array([2000.0]), np.array([300.0]))
    pricer = OfferPricer(load_model("llama3-8b"), HWDB, "vllm", "bf16", load, slo)
    stages = [[("A100-SXM4-80GB", 1, 32)], [("L40S", 1, 32)]]
    return {half.name: half.rps[0] for half in halves(pricer, stages)}


def played(prefill: int, decode: int) -> float:
    """Requests/s that so many A100 and L40S carry between the first and the last quarter of the answers."""
    replicas = [
        {"gpu": "A100-SXM4-80GB", "role": "prefill", "count": prefill},
        {"gpu": "L40S", "role": "decode", "count": decode},
    ]
    fleet = read_fleet({"model": "llama3-8b", "link_gb_per_s": 1000, "replicas": replicas}, HWDB)
    requests = 3000
    tokens = (np.full(requests, 2000), np.full(requests, 300))
    _, after = simulate_service(fleet, plain(np.zeros(requests), *tokens), router="round_robin")
    ends = np.sort(after.ledger.finish_s)
    return float(requests / 2 / (ends[requests * 3 // 4] - ends[requests // 4]))


def test_each_half_is_as_fast_as_played() -> None:
    """Few prefilling replicas limit the whole, or few decoding ones."""
    rates = priced(Slo())
    assert played(1, 40) == pytest.approx(rates["A100-SXM4-80GB tp1 prefill"], rel=0.05)
    assert played(12, 1) == pytest.approx(rates["L40S tp1 decode"], rel=0.15)


def test_an_objective_costs_throughput_of_its_own_half() -> None:
    free, tight = priced(Slo()), priced(Slo(ttft_s=0.3, tpot_s=0.03))
    for name, rate in tight.items():
        assert 0 < rate < free[name] if "decode" in name else rate <= free[name]
    assert not any("prefill" in name for name in priced(Slo(ttft_s=0.01)))


def plan(offers: Path, *more: Any) -> dict[str, Any]:
    return tangram(
        "serve", "plan", "llama3-8b", "--fleet", offers, *ASKED, "--objective", "cost", *more, "--json"
    ).json


def test_apart_over_a_fast_link_where_that_is_cheaper(offers: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    whole, apart = plan(offers), plan(offers, "--link-gb-per-s", 50, "-o", file)
    assert apart["cost_per_hour"] < whole["cost_per_hour"]
    assert apart["replay"]["error"] > -0.03
    assert apart["assumptions"]["prefill and decode"] == "apart"
    roles = {item["role"] for item in apart["fleet"]["replicas"]}
    assert roles == {"prefill", "decode"}
    assert apart["bound"] <= apart["cost_per_hour"] * (1 + 1e-9)
    again = tangram("serve", "simulate", file, "--rate", 3, "--mix", "6000:250", "--json").json
    assert again["requests"]["completed"] == again["requests"]["arrived"]
    written = tangram("serve", "export", file, "--to", "sglang")
    assert "--disaggregation-mode prefill" in written.out


def test_over_a_slow_link_they_stay_together(offers: Path) -> None:
    told = plan(offers, "--link-gb-per-s", 0.1)
    assert told["assumptions"]["prefill and decode"] == "together"
    assert all(item.get("role", "both") == "both" for item in told["fleet"]["replicas"])


def test_decoding_replicas_get_the_shares_of_the_plan() -> None:
    """Their pool comes after the prefilling one, and its requests in the order of their caches."""
    replicas = [
        {"name": "p", "gpu": "H100-SXM5-80GB", "role": "prefill", "count": 2, "shares": [1, 1]},
        {"name": "long", "gpu": "H100-SXM5-80GB", "role": "decode", "shares": [1, 0]},
        {"name": "short", "gpu": "L40S", "role": "decode", "shares": [0, 1]},
    ]
    fleet = {"model": "llama3-8b", "link_gb_per_s": 50, "types": [[900, 300], [500, 20]]}
    work = plain(np.arange(200) / 10, np.tile([900, 500], 100), np.tile([300, 20], 100))
    told, after = simulate_service(read_fleet({**fleet, "replicas": replicas}, HWDB), work, router="weighted")
    names = np.array([instance.given.name.partition(": ")[2] for instance in after.instances])
    assert (names[after.instance[::2]] == "long").all()
    assert (names[after.instance[1::2]] == "short").all()
    assert told.requests.completed == 200


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--objective", "makespan"), "objective cost or goodput"),
        (("--objective", "cost", "--link-gb-per-s", "0"), "give GB/s, above zero"),
    ],
)
def test_what_a_link_cannot_mean_is_refused(more: tuple[str, ...], words: str, offers: Path) -> None:
    shown = tangram("serve", "plan", "llama3-8b", "--fleet", offers, *ASKED, "--link-gb-per-s", 9, *more)
    assert (shown.code, words in shown.err) == (2, True)


def test_planners_of_whole_requests_refuse_a_link(offers: Path) -> None:
    asked = ("serve", "compare", "llama3-8b", "--fleet", offers, *ASKED, "--objective", "cost")
    shown = tangram(*asked, "--link-gb-per-s", 9, "--planners", "hexgen,melange")
    assert (shown.code, shown.err.count("plans whole requests")) == (2, 2)
    several = tangram("serve", "plan", "llama3-8b,qwen3-8b", *asked[3:], "--link-gb-per-s", 9)
    assert (several.code, "one model at a time" in several.err) == (2, True)
