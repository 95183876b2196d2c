"""The verbs of `tangram rl`: answers, files between them, what is refused."""

import json
from pathlib import Path

import pytest

import tangram_sim as ts
from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tests.commands import tangram

FLEET = "H800x8:1+H20x8:1"
SMALL = ("--prompts", "16", "--samples", "4", "--response-tokens", "400", "--cap", "1600")
STEP = {"prompts": 16, "samples": 4, "response_tokens": 400.0, "cap": 1600}


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rl") / "plan.json"
    found = tangram(
        "rl", "plan", "qwen2.5-7b", FLEET, *SMALL, "--price", "H800=5", "--price", "H20=1.7", "-o", path
    )
    assert not found.code, found.err
    return path


def test_a_plan_says_who_generates_what_it_costs_and_what_it_rests_on(plan_file: Path) -> None:
    found = json.loads(plan_file.read_text())
    assert found["step_s_low"] < found["step_s"] < found["step_s_high"]
    assert found["lower_bound_s"] <= found["step_s"] and found["gap"] >= 0
    assert {item["gpu"] for item in found["kinds"]} == {"H800-SXM5-80GB", "H20-96GB"}
    assert found["usd_per_million_trained_tokens"] > 0
    assert sum(found["phases_s"].values()) >= found["step_s"] * 0.99
    assert any("tokens in the mean" in item for item in found["assumptions"])


def test_a_plan_file_is_played_again_to_the_same_step(plan_file: Path) -> None:
    found = json.loads(plan_file.read_text())
    again = ts.rl.simulate(plan_file, seeds=1)
    assert again.step_s["mean"] == pytest.approx(found["step_s"], rel=1e-9)
    longer = ts.rl.simulate(plan_file, seeds=1, response_tokens=800.0)
    assert longer.step_s["mean"] > again.step_s["mean"]


def test_both_players_play_a_plan_alike(plan_file: Path) -> None:
    fast, reference = (ts.rl.simulate(plan_file, seeds=2, player=item) for item in ("fast", "reference"))
    assert reference.step_s["mean"] == pytest.approx(fast.step_s["mean"], rel=1e-9)


def test_the_spread_of_steps_narrows_with_the_draws(plan_file: Path) -> None:
    few, many = (ts.rl.simulate(plan_file, seeds=seeds).step_s["standard_error"] for seeds in (8, 72))
    assert many == pytest.approx(few / 3, rel=0.6)


def test_the_question_of_a_plan_asks_it_again(plan_file: Path) -> None:
    found = tangram("run", plan_file, "--json")
    assert found.json["step_s"] == json.loads(plan_file.read_text())["step_s"]


def test_no_rule_is_faster_than_the_plan() -> None:
    found = ts.rl.compare("qwen2.5-7b", FLEET, **STEP)
    assert found.rules[0].rule == "tangram"
    assert all(rule.slower_by is None or rule.slower_by >= -1e-9 for rule in found.rules)
    assert {"all-colocated", "areal-hex", "hetrl"} <= {rule.rule for rule in found.rules}


def test_added_nodes_are_ranked_by_the_price_of_tokens() -> None:
    found = ts.rl.what_if(
        "qwen2.5-7b", FLEET, ["H20x8:1", "L40Sx8:1"], price=["H800=5", "H20=1.7", "L40S=1"], **STEP
    )
    costs = [offer.usd_per_million_trained_tokens for offer in found.offers]
    assert costs == sorted(costs) and all(offer.faster_by >= -1e-9 for offer in found.offers)
    assert all(
        offer.pays == (offer.usd_per_million_trained_tokens < found.usd_per_million_trained_tokens)
        for offer in found.offers
    )


def test_a_fleet_that_holds_nothing_alone_may_hold_a_plan_with_more() -> None:
    found = ts.rl.what_if("qwen2.5-7b", "L40Sx1:1", ["H800x8:1", "L40Sx1:1"], **STEP)
    assert found.step_s is None and [offer.added for offer in found.offers] == ["H800x8:1"]
    assert found.offers[0].faster_by is None and "no placement fits" in found.infeasible["L40Sx1:1"]
    shown = tangram("rl", "purchase", "qwen2.5-7b", "L40Sx1:1", "--offer", "H800x8", "--most", "1", *SMALL)
    assert not shown.code and "without: no placement fits" in shown.out
    with pytest.raises(InfeasibleError):
        ts.rl.purchase("qwen2.5-7b", "L40Sx1:1", ["L40Sx1"], most=1, **STEP)


def test_additions_that_no_time_was_left_for_are_not_called_infeasible() -> None:
    found = ts.rl.what_if("qwen2.5-7b", FLEET, ["H20x8:1"], time_limit=0.001, **STEP)
    assert found.step_s and found.not_planned == ["H20x8:1"] and not found.infeasible
    step = ("--add", "H20x8:1", "--time-limit", "0.001", *SMALL)
    shown = tangram("rl", "what-if", "qwen2.5-7b", FLEET, *step)
    assert "not planned, the time limit was over: H20x8:1" in shown.out


def test_gpus_without_a_role_are_named() -> None:
    found = ts.rl.plan("qwen2.5-7b", "H800x8:1+L40Sx1:1", placement="colocated", **STEP)
    assert found.idle_gpus == {"L40S": 1}
    step = ("--placement", "colocated", *SMALL)
    assert "idle: 1 L40S" in tangram("rl", "plan", "qwen2.5-7b", "H800x8:1+L40Sx1:1", *step).out


@pytest.mark.parametrize(
    "change",
    [
        {"training_nodes": [5, 0]},
        {"training_nodes": [0, 0]},
        {"training_nodes": [-1, 1]},
        {"pack_tokens": -5},
        {"layout": {"tp": 0}},
        {"layout": {"recompute": "x"}},
        {"rollout": {"count": 500}},
    ],
)
def test_an_edited_plan_that_cannot_be_is_refused(plan_file: Path, tmp_path: Path, change: dict) -> None:
    found = json.loads(plan_file.read_text())
    decisions = found["decisions"]
    for name, value in change.items():
        if name == "layout":
            decisions[name] |= value
        elif name == "rollout":
            decisions[name][0] |= value
        else:
            decisions[name] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(found))
    with pytest.raises(BadInputError):
        ts.rl.simulate(path, seeds=1)


def test_kinds_without_a_price_are_named() -> None:
    found = ts.rl.purchase("qwen2.5-7b", "H800x8:1", ["RTX-4090x8"], most=1, **STEP)
    assert [offer.added for offer in found.offers] == ["RTX-4090x8:1"]
    assert (found.offers[0].usd_per_million_trained_tokens is None) == bool(found.unpriced)


def test_an_estimate_takes_the_pools_that_are_given() -> None:
    found = ts.rl.estimate("qwen2.5-7b", "H800x8:1", rollout="H20x8:1", tp=2, gen_tp=2, **STEP)
    assert [pool.gpus for pool in found.pools] == [8, 8] and found.decisions.mode == "one-step-off"
    assert found.decisions.layout.zero_stage == 1
    alone = ts.rl.estimate("qwen2.5-7b", "H800x8:1", tp=2, gen_tp=2, **STEP)
    assert alone.decisions.placement == "colocated" and alone.phases_s["switch"] > 0


def test_overheads_of_an_overlay_reach_the_step(tmp_path: Path) -> None:
    (tmp_path / "post_training").mkdir()
    rows = "parameter,value,n,date,source\nupdate_scale,12.3,50,,own log\n"
    (tmp_path / "post_training" / "overheads.csv").write_text(rows)
    shipped, mine = (
        ts.rl.estimate("qwen2.5-7b", "H800x8:1", tp=2, hwdb=folders, **STEP).phases_s["update"]
        for folders in ([], [tmp_path])
    )
    assert mine == pytest.approx(10 * shipped)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "qwen2.5-7b", FLEET, "--cap", "100"), "--cap"),
        (("plan", "qwen2.5-7b", FLEET, "--price", "H20"), "GPU=USD"),
        (("plan", "qwen2.5-7b", "T4x1:1", "--dtype", "fp16", "--rollout-precision", "fp16"), "GPUs"),
        (("plan", "nobody", FLEET), "nobody"),
        (("what-if", "qwen2.5-7b", FLEET), "--add"),
        (("estimate", "qwen2.5-7b", "H800x8:1", "--gen-tp", "3"), "--gen-tp"),
        (("plan", "qwen2.5-7b", FLEET, "--train-batch-sequences", "9999999"), "--train-batch-sequences"),
    ],
)
def test_what_cannot_be_says_what_to_type(words: tuple[str, ...], said: str) -> None:
    found = tangram("rl", *words)
    assert found.code == 2 and said in found.err


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    with pytest.raises(BadInputError, match="rl plan -o"):
        ts.rl.simulate(path)
    with pytest.raises(UnknownNameError, match="sampels"):
        ts.rl.plan("qwen2.5-7b", FLEET, sampels=3)


def test_observed_lengths_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("tokens\n100\n200\n300\n")
    found = tangram("rl", "estimate", "qwen2.5-7b", "H800x8:1", "--tp", "2", "--lengths", path, "--json")
    assert any("200 tokens in the mean" in item for item in found.json["assumptions"])
    path.write_text("100\nmany\n")
    found = tangram("rl", "estimate", "qwen2.5-7b", "H800x8:1", "--lengths", path)
    assert found.code == 2 and "line 2" in found.err


def test_observed_lengths_are_not_cut_where_no_cap_is_given(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("1000\n20000\n")
    ask = ("rl", "estimate", "qwen2.5-7b", "H800x8:1", "--tp", "2", "--prompts", "4", "--samples", "2")
    found = tangram(*ask, "--lengths", path, "--json")
    assert any("10,500 tokens in the mean, at most 20,000" in item for item in found.json["assumptions"])
    cut = tangram(*ask, "--lengths", path, "--cap", "4000", "--json")
    assert any("2,500 tokens in the mean, at most 4,000" in item for item in cut.json["assumptions"])
    both = tangram(*ask, "--lengths", path, "--response-tokens", "400")
    assert both.code == 2 and "--response-tokens" in both.err


def test_another_mean_is_not_played_beside_observed_lengths(tmp_path: Path) -> None:
    lengths, plan = tmp_path / "lengths.csv", tmp_path / "plan.json"
    lengths.write_text("100\n300\n")
    step = ("--prompts", "8", "--samples", "2", "--lengths", lengths)
    made = tangram("rl", "plan", "qwen2.5-7b", "H800x8:1", *step, "-o", plan)
    assert not made.code, made.err
    with pytest.raises(BadInputError, match="response_tokens=2048"):
        ts.rl.simulate(plan, response_tokens=2048.0)
