"""What a plan of models must also bear: kinds lost, more requests, other prices."""

from pathlib import Path
from typing import Any

import pytest

from tangram_sim.studies import serving_scenarios
from tangram_sim.studies.serving_plan import ServePlanDocument
from tests.commands import tangram

BOTH = """\
gpus:
  A100-SXM4-80GB: {price_per_hour: 1.75, available: 8}
  L40S: {price_per_hour: 0.3, available: 8}
"""
ASKED = ("--workload", "800:200:0.6,300:40:0.4", "--rate", 12, "--objective", "cost", "--requests", 300)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    file = tmp_path / "offers.yaml"
    file.write_text(BOTH)
    return file


def planned(fleet: Path, *more: object) -> Any:
    return tangram("serve", "plan", "llama3-8b", "--fleet", fleet, *ASKED, *more, "--json").json


def test_without_a_kind_the_others_carry_what_must_be_covered(fleet: Path, tmp_path: Path) -> None:
    """Whatever L40S do beside them, A100 must carry everything alone: the cost is that of A100 alone."""
    free, bearing = planned(fleet), planned(fleet, "--scenario", "lost=L40S")
    alone = tmp_path / "alone.yaml"
    alone.write_text("\n".join(line for line in BOTH.splitlines() if "L40S" not in line))
    assert free["gpus_used"]["A100-SXM4-80GB"] == 0
    assert bearing["cost_per_hour"] == pytest.approx(planned(alone)["cost_per_hour"])
    assert free["cost_per_hour"] < bearing["cost_per_hour"]
    (told,) = bearing["assumptions"]["scenarios"]
    assert told["name"] == "lost=L40S" and all("L40S" in name for name in told["lost"])


def test_the_plan_is_played_in_every_scenario_with_what_is_left_of_it(fleet: Path) -> None:
    bear = [
        word
        for item in ("lost=L40S,coverage=0.5", "rate=1.5", "price=L40S:2")
        for word in ("--scenario", item)
    ]
    told = planned(fleet, *bear, "--budget", 12)
    lost, busy, dear = told["scenario_replays"]
    replicas = sum(item["count"] for item in told["replicas"])
    without = sum(item["count"] for item in told["replicas"] if "L40S" not in item["gpus"])
    assert (lost["replicas"], busy["replicas"], dear["replicas"]) == (without, replicas, replicas)
    rate = told["replay"]["promised"]
    assert [item["promised"] / rate for item in (lost, busy, dear)] == pytest.approx([0.5, 1.5, 1.0])
    for item in (lost, busy, dear):
        assert item["error"] > -0.05, "the program promised that what is left carries it"
    shown = tangram("serve", "plan", "llama3-8b", "--fleet", fleet, *ASKED, "--scenario", "rate=1.5")
    assert "in rate=1.5: " in shown.out and "of what is wanted" in shown.out


def test_what_is_left_that_cannot_serve_is_noted(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares that no search found in time, say: the plan is shown, without a replay of that scenario."""
    none = ServePlanDocument(status="infeasible", objective="makespan", reason="no plan was found in time")
    monkeypatch.setattr(serving_scenarios, "plan_problem", lambda *_, **__: none)
    told = planned(fleet, "--scenario", "rate=1.5")
    assert told["status"] == "optimal" and told["scenario_replays"] == []
    assert "not replayed in rate=1.5: no plan was found in time" in told["notes"]


def test_the_rate_is_carried_when_any_node_is_lost(tmp_path: Path) -> None:
    """As the simulator plays what the worst loss leaves; a cluster of one node leaves nothing."""
    asked = ("--workload", "800:200:0.6,300:40:0.4", "--rate", 40, "--slo", "ttft=2,tpot=0.05")
    more = ("--requests", 300, "--scenario", "lost=node", "--json")
    told = tangram("serve", "plan", "llama3-8b", "H100x8:2+L40Sx8:1", *asked, *more).json
    placed = {replica["configuration"]: 0 for replica in told["replicas"]}
    for host in told["hosts"]:
        for name, count in host["replicas"].items():
            placed[name] += host["count"] * count
    assert all(placed[replica["configuration"]] >= replica["count"] for replica in told["replicas"])
    (played,) = told["scenario_replays"]
    lost = sum(played["lost"].values())
    assert lost >= 1 and played["replicas"] == sum(item["count"] for item in told["replicas"]) - lost
    assert played["error"] > -0.05 and played["good_share"] >= 0.99
    alone = tangram("serve", "plan", "llama3-8b", "H100x8:1", *asked, *more)
    assert (alone.code, alone.json["status"]) == (2, "infeasible")
    assert "what any one lost node leaves 0 of the" in alone.json["reason"]


def test_a_batch_keeps_its_makespan_for_the_part_that_is_covered(fleet: Path) -> None:
    asked = ("serve", "plan", "llama3-8b", "--fleet", fleet, "--workload", "800:200:0.6,300:40:0.4")
    told = tangram(*asked, "--requests", 400, "--scenario", "lost=L40S,coverage=0.5", "--json").json
    (played,) = told["scenario_replays"]
    assert played["promised"] == told["makespan_s"]
    assert played["error"] < 0.15


def test_more_requests_and_dearer_kinds_cost_no_less(fleet: Path) -> None:
    free, busy = planned(fleet), planned(fleet, "--scenario", "rate=2.5")
    assert free["cost_per_hour"] < busy["cost_per_hour"]
    assert busy["cost_per_hour"] <= planned(fleet, "--scenario", "rate=4")["cost_per_hour"]
    # At ten times the price of L40S, whatever is taken must be within the budget still.
    dear = planned(fleet, "--budget", 4, "--scenario", "price=L40S:10")
    used = dear["gpus_used"]
    assert 1.75 * used["A100-SXM4-80GB"] + 3.0 * used["L40S"] <= 4 + 1e-9


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("lost=L41S", "unknown GPU"),
        ("lost=H100", "unknown GPU or configuration lost"),
        ("foo=1", "lost=L40S,coverage=0.8"),
        ("lost", "has no value"),
        ("coverage=1.5", "at most 1"),
        ("rate=-1", "above 0"),
        ("rate=1", "nothing happens"),
        ("price=3", "whose price"),
        ("price=L40S:2", "budget"),
    ],
)
def test_scenarios_that_mean_nothing_are_named(fleet: Path, scenario: str, words: str) -> None:
    shown = tangram("serve", "plan", "llama3-8b", "--fleet", fleet, *ASKED, "--scenario", scenario)
    assert (shown.code, words in shown.err) == (2, True), shown.err
