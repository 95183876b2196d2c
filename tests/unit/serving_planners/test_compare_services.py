"""Planners of a service side by side under one simulator."""

import json
from pathlib import Path

import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.prices import assumed_rent, gpu_rent
from tangram_sim.serving_planners.offer_file import load_offers
from tangram_sim.studies.serving_whatif import GpuPurchase, with_purchase
from tests.commands import tangram
from tests.unit.serving_planners.test_plan_problem import PAPER, planned

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


def test_every_planner_is_played_and_the_program_promises_most(offers: Path) -> None:
    asked = ("serve", "compare", "llama3-8b", "--fleet", offers, "--workload", MIX, "--rate", 1)
    told = tangram(*asked, "--requests", 1000, "--budget", 6, "--objective", "goodput", "--json").json
    planners = told["planners"]
    assert set(planners) == {"milp", "hexgen", "melange", "A100-SXM4-80GB", "L40S"}
    for planner in planners.values():
        assert planner["cost_per_hour"] <= 6
        assert planner["promised"] <= planners["milp"]["promised"] * (1 + 1e-6)
        assert planner["played"] > 0


def test_planners_of_a_problem_are_held_to_its_throughputs(tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    file.write_text(json.dumps(PAPER))
    told = tangram("serve", "compare", file, "--json").json["planners"]
    assert told["milp"]["played"] == pytest.approx(28.431373, rel=1e-6)
    assert (told["t1"]["played"], told["t2"]["played"]) == (
        pytest.approx(48.333, abs=1e-3),
        pytest.approx(46.667, abs=1e-3),
    )
    assert set(told) == {"milp", "melange", "t1", "t2", "t3"}
    for item in told.values():
        assert item["cost_per_hour"] <= 8
        assert item["played"] >= told["milp"]["played"] * (1 - 1e-9)
    assert "28.431 s" in tangram("serve", "compare", file, "--planners", "milp,t1").out
    refused = tangram("serve", "compare", file, "--planners", "hexgen")
    assert (refused.code, "unknown planner" in refused.err) == (2, True)


def test_planners_without_a_plan_say_why(offers: Path) -> None:
    asked = ("serve", "compare", "llama3-70b", "--fleet", offers, "--workload", MIX, "--requests", 200)
    shown = tangram(*asked, "--planners", "L40S,hexgen", "--budget", 1)
    assert (shown.code, shown.out) == (2, "")  # nobody has one
    assert shown.err.count("cannot answer") == 2
    assert tangram(*asked, "--planners", "gurobi").code == 2


def test_at_most_so_many_replicas_of_a_configuration() -> None:
    """Without the two-GPU configuration of the worked example its second half is made of others."""
    configurations = [dict(item) for item in PAPER["configurations"]]
    configurations[3]["most"] = 0
    found = planned(PAPER | {"configurations": configurations})
    assert all(replica.configuration != "c4" for replica in found.replicas)
    assert found.makespan_s is not None
    assert found.makespan_s > 28.44


def test_files_options_and_keys_that_mean_nothing_are_named(tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    file.write_text(json.dumps(PAPER | {"colour": "red"}))
    for verb in ("plan", "compare"):
        missing = tangram("serve", verb, "llama3-8b")
        assert (missing.code, "needs --fleet and --workload" in missing.err) == (2, True)
        for option, words in ((("--budget", 4), "`budget_per_hour`"), (("--engine", "sglang"), "are given")):
            refused = tangram("serve", verb, file, *option)
            assert (refused.code, words in refused.err) == (2, True), refused.err
        assert any("colour" in note for note in tangram("serve", verb, file, "--json").json["notes"])
    assert "colour" in tangram("serve", "compare", file).out


def test_costs_of_kinds_without_a_price_rest_on_the_one_that_a_note_says_is_assumed(tmp_path: Path) -> None:
    hwdb = Hwdb.load()
    kind = next(
        name
        for name in ("RTX-3090", *hwdb.gpu_names())
        if name in hwdb.gpu_names() and not gpu_rent(hwdb, name)[0]
    )
    (tmp_path / "free.yaml").write_text(f"gpus: {{{kind}: {{available: 8}}}}\n")
    asked = ("llama3-8b", "--fleet", tmp_path / "free.yaml", "--workload", MIX)
    for how in (("--requests", 50), ("--rate", 1)):
        told = tangram("serve", "plan", *asked, *how, "--json").json
        gpus = sum(item["gpus"][kind] * item["count"] for item in told["replicas"])
        assert told["cost_per_hour"] == pytest.approx(gpus * assumed_rent(hwdb, kind))
        assert any("is assumed" in note and kind in note for note in told["notes"])
        assert " USD/h" in tangram("serve", "plan", *asked, *how).out
    with pytest.raises(BadInputError, match="No price is known"):
        with_purchase(
            load_offers(tmp_path / "free.yaml", hwdb, priced=False),
            [GpuPurchase(hwdb.gpu(kind).name, 2, 1.0)],
        )
