"""Goodput: closed forms against published figures, against brute force and against sampled failures."""

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.elastic.reliability import effective_training_ratio
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.reliability import periods
from tangram_sim.reliability.checkpointing import (
    Checkpointing,
    CheckpointTier,
    RecoveryTimes,
    load_checkpointing,
)
from tangram_sim.reliability.failures import load_failures, presets
from tangram_sim.reliability.goodput import Regime, Struck, accounts_of, regime_of
from tangram_sim.reliability.sampling import sample_share
from tangram_sim.studies.goodput import goodput_document
from tangram_sim.studies.goodput_settings import FailureFreeRate, GoodputSetting, setting_of_model
from tests.commands import CLUSTER, MODEL, tangram
from tests.places import SHARED

FIGURES = SHARED / "data" / "elastic" / "elastic_figures.csv"
HOUR = 3600.0


def answer(line: str) -> Any:
    finished = tangram(*line.split(), "--json")
    assert finished.code == 0, finished.err
    return finished.json


def figures(group: str) -> list[dict[str, str]]:
    if not FIGURES.is_file():
        pytest.skip("the published figures (../shared/data/elastic) are not here")
    with FIGURES.open() as file:
        return [row for row in csv.DictReader(file) if row["group"] == group]


def regime(*struck: Struck, tiers: tuple[CheckpointTier, ...]) -> Regime:
    return regime_of(struck, Checkpointing(tiers, RecoveryTimes()))


def single(mtbf_s: float, block_s: float, downtime_s: float, start_s: float, period_s: float) -> Regime:
    tier = CheckpointTier("disk", block_s, period_s=period_s)
    return regime(Struck("any", 1 / mtbf_s, "node", downtime_s, 0.0, start_s), tiers=(tier,))


def test_the_published_periods_are_met() -> None:
    found = []
    for row in figures("checkpoint period"):
        match = re.search(r"MTBF (\d+)", row["setting"])
        assert match
        mtbf_s = float(match[1])
        period = {
            "young": periods.young_s(mtbf_s, 600),
            "daly": periods.daly_s(mtbf_s, 600, 60, 600),
            "rfo": periods.refined_s(mtbf_s, 600, 60, 600),
            "optimal": periods.best_period_s(mtbf_s, 600),
        }[row["metric"]]
        found.append(abs(period / float(row["value"]) - 1))
    assert len(found) >= 28
    assert max(found) <= 0.002


@given(
    mtbf_s=st.floats(600, 1e6),
    cost=st.floats(1e-4, 0.5),
    downtime_s=st.floats(0, 600),
    recovery_s=st.floats(0, 600),
    other=st.floats(0.05, 20),
)
def test_no_other_period_leaves_more(
    mtbf_s: float, cost: float, downtime_s: float, recovery_s: float, other: float
) -> None:
    checkpoint_s = cost * mtbf_s
    best = periods.best_period_s(mtbf_s, checkpoint_s)
    given = (checkpoint_s, downtime_s, recovery_s)
    assert periods.useful_share(mtbf_s, best, *given) >= periods.useful_share(
        mtbf_s, max(other * best, checkpoint_s), *given
    ) * (1 - 1e-12)


@given(
    mtbf_s=st.floats(1e3, 1e6), period_s=st.floats(100, 1e4), block_s=st.floats(0, 90), more=st.floats(1, 3)
)
def test_more_failures_longer_constants_never_help(
    mtbf_s: float, period_s: float, block_s: float, more: float
) -> None:
    base = periods.useful_share(mtbf_s, period_s, block_s, 30, 60)
    for worse in (
        periods.useful_share(mtbf_s / more, period_s, block_s, 30, 60),
        periods.useful_share(mtbf_s, period_s, block_s * more, 30, 60) if block_s * more < period_s else 0.0,
        periods.useful_share(mtbf_s, period_s, block_s, 30 * more, 60),
        periods.useful_share(mtbf_s, period_s, block_s, 30, 60 * more),
    ):
        assert worse <= base * (1 + 1e-12)


def test_a_history_of_more_windows_than_can_be_looked_at_is_refused() -> None:
    """Found by fuzzing, as seeds below zero: repairs of 10^20 s asked for 78 PiB. Half seconds here."""
    with pytest.raises(BadInputError, match=r"1,000,000 at most are looked at"):
        sample_share(single(3 * HOUR, 60, 60, 300, 600.0), 100, 0.5)
    with pytest.raises(BadInputError, match=r"`seed=-1`: .*zero or more"):
        sample_share(single(3 * HOUR, 60, 60, 300, 600.0), 100, HOUR, -1)


@pytest.mark.parametrize("period_s", [600.0, 1200.0, 2400.0, 4800.0, math.nan])
def test_the_exact_formula_is_what_sampled_failures_leave(period_s: float) -> None:
    found = single(3 * HOUR, 60, 60, 300, period_s)
    sampled = sample_share(found, 40_000, 30 * 86400)
    assert abs(sampled.useful_share - found.share()) <= 3 * sampled.standard_error


def test_several_classes_with_their_own_recovery_are_exact() -> None:
    found = regime(
        Struck("process", 1 / (3 * HOUR), "process", 10, 0, 100),
        Struck("node", 1 / (9 * HOUR), "node", 60, 300, 900),
        Struck("hang", 1 / (2 * HOUR), "none", 45, 0, 0),
        tiers=(CheckpointTier("disk", 20, 0.0, 60.0, "all", 1500.0),),
    )
    sampled = sample_share(found, 40_000, 30 * 86400)
    assert abs(sampled.useful_share - found.share()) <= 3 * sampled.standard_error


def test_a_near_tier_pays_and_the_formula_is_near_the_simulation() -> None:
    struck = (
        Struck("process", 1 / (3 * HOUR), "process", 10, 0, 100),
        Struck("node", 1 / (10 * HOUR), "node", 30, 60, 300),
    )
    near = CheckpointTier("memory", 2, 10, 5, "process")
    far = CheckpointTier("disk", 30, 60, 60, "all")
    both, item = regime(*struck, tiers=(near, far)), regime(*struck, tiers=(far,))
    assert both.share() > item.share()
    assert both.multiples[1] > 1
    sampled = sample_share(both, 40_000, 30 * 86400)
    assert sampled.useful_share == pytest.approx(both.share(), abs=0.005)


def test_saving_in_the_background_costs_what_is_lost_until_saved() -> None:
    quick, slow = (
        regime(
            Struck("any", 1 / (6 * HOUR), "node", 0, 0, 60),
            tiers=(CheckpointTier("disk", 5, save_s),),
        )
        for save_s in (0.0, 900.0)
    )
    assert slow.base_s >= 900.0
    assert slow.share() < quick.share()
    sampled = sample_share(slow, 40_000, 30 * 86400)
    assert sampled.useful_share == pytest.approx(slow.share(), abs=0.003)


@settings(max_examples=50)
@given(
    rates=st.lists(st.floats(1e-7, 1e-4), min_size=1, max_size=4),
    takes=st.lists(st.sampled_from(["none", "process", "node", "leaf"]), min_size=4, max_size=4),
    block_s=st.floats(0.1, 100),
    save_s=st.floats(0, 300),
)
def test_accounts_sum_to_wall_time(
    rates: list[float], takes: list[str], block_s: float, save_s: float
) -> None:
    struck = tuple(
        Struck(f"class {k}", rate, takes[k], 10.0 * k, 20.0, 60.0)  # type: ignore[arg-type]
        for k, rate in enumerate(rates)
    )
    found = regime(
        *struck,
        tiers=(
            CheckpointTier("memory", block_s / 10, save_s, 1.0, "process"),
            CheckpointTier("disk", block_s, save_s, 30.0, "all"),
        ),
    )
    accounts = accounts_of(found)
    assert sum(accounts.values()) == pytest.approx(1.0, abs=1e-12)
    assert min(accounts.values()) >= 0
    assert accounts["useful"] == pytest.approx(found.share(), rel=1e-12)


def test_nothing_that_fails_and_no_checkpoint_is_all_useful() -> None:
    found = regime(tiers=(CheckpointTier("disk", 30),))
    assert found.share() == 1.0
    assert accounts_of(found)["useful"] == 1.0


def test_state_without_a_tier_that_survives_is_an_answer_with_its_reason() -> None:
    with pytest.raises(InfeasibleError, match="survives: leaf"):
        regime(Struck("switch", 1e-6, "leaf", 0, 0, 0), tiers=(CheckpointTier("memory", 1, survives="node"),))


def test_published_reliability_figures() -> None:
    for row in figures("reliability"):
        if "write 5 min" in row["setting"]:
            rate = float(re.search(r"rf ([\d.]+)", row["setting"])[1])  # type: ignore[index]
            found = effective_training_ratio(1500 * rate / 1000 / 86400, 300, 300)
            assert found == pytest.approx(float(row["value"]), abs=0.01)
        if row["metric"] == "effective time, restart":
            assert pytest.approx(float(row["value"]), abs=0.01) == (18 - 10) / 18
            assert periods.elastic_share(18 * 60, 12, 180, 420) > (18 - 10) / 18


def test_spares_are_the_fewest_that_are_enough() -> None:
    for mean in (0.1, 1.0, 7.5, 40.0):
        count = periods.spares(100, mean / 100 / HOUR, HOUR, 0.99)

        def enough(k: int, mean: float = mean) -> float:
            return sum(math.exp(-mean) * mean**j / math.factorial(j) for j in range(k + 1))

        assert enough(count) >= 0.99
        assert count == 0 or enough(count - 1) < 0.99


def test_presets_say_their_rate_and_source() -> None:
    assert presets() == ["ft-hsdp-32k", "llama3", "rsc-1", "rsc-2"]
    for name, rate in (("llama3", 3.789), ("rsc-1", 6.5), ("rsc-2", 2.34), ("ft-hsdp-32k", 2.3)):
        model = load_failures(name)
        assert model.per_1000_node_days({"H100": 64}) == pytest.approx(rate, rel=1e-3)
        assert "arXiv" in model.source
    assert load_failures("llama3").mtbf_s({"H100": 2048}) / HOUR == pytest.approx(3.09, rel=0.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("classes: []", "classes"),
        ("classes: [{name: a}]", "per_1000_node_days"),
        ("classes: [{name: a, per_1000_node_days: -1}]", "greater than or equal to 0"),
        ("classes: [{name: a, per_1000_node_days: 1, takes: rack}]", "takes"),
        ("classes: [{name: a, per_1000_node_days: 1}, {name: a, per_1000_node_days: 2}]", "2 times"),
    ],
)
def test_malformed_failure_files_say_what_is_wrong(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "failures.yaml"
    path.write_text(text)
    with pytest.raises(BadInputError, match=said):
        load_failures(str(path))


def test_the_command_answers_with_the_agreed_keys() -> None:
    found = answer("goodput --mtbf-s 7519 --checkpoint-s 600 --downtime-s 60 --recovery-s 600 --sample 2000")
    assert found["mtbf_s"] == pytest.approx(7519)
    assert list(found["periods_s"]) == ["young", "daly", "refined", "exact"]
    assert found["best_period_s"] == pytest.approx(3218, rel=1e-3)
    assert max(found["useful_share"].values()) == found["useful_share"]["exact"]
    assert sum(found["accounts"].values()) == pytest.approx(1)
    assert found["interval"][0] < found["goodput"] < found["interval"][1]
    assert found["tokens_per_s"] is None


def test_restarts_that_take_no_time_are_said_to() -> None:
    asked = ("goodput", "--mtbf-s", 7519, "--checkpoint-s", 45)
    assert "no time" in tangram(*asked).out and "--downtime-s and --recovery-s" in tangram(*asked).out
    for stated in ("--downtime-s", "--recovery-s"):
        assert "no time" not in tangram(*asked, stated, 60).out


def test_a_checkpoint_that_never_ends_is_an_answer() -> None:
    found = answer("goodput --mtbf-s 10 --checkpoint-s 600")
    assert found["goodput"] < 1e-6
    assert "no progress" in found["notes"][-1]
    assert sum(found["accounts"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--checkpoint-s 10 --period-s 5", "no work is left in it; longer periods"),
        ("--checkpoint-s 10 --period-s 1e9", "shorter periods"),
        ("--checkpoint-s 999999", "none ends before the next failure"),
        ("--checkpoint-s 10 --recovery-s 1e7", "struck again and again"),
    ],
)
def test_no_progress_has_its_own_reason(line: str, said: str) -> None:
    found = answer(f"goodput --mtbf-s 10000 {line}")
    assert found["goodput"] < 1e-6
    assert said in " ".join(found["notes"])


def test_no_period_is_shorter_than_saving_a_checkpoint_takes() -> None:
    found = answer("goodput --mtbf-s 10000 --checkpoint-s 10 --save-s 2000")
    assert max(found["useful_share"].values()) == found["useful_share"]["exact"] == found["goodput"]
    assert found["periods_s"]["young"] < found["best_period_s"] == pytest.approx(2000)
    assert "saved after 2000 s" in " ".join(found["notes"])


def test_a_second_less_is_worth_what_it_brings_under_the_policy_asked_about() -> None:
    """Elastic replicas lose no work to a later checkpoint: a second less of saving brings nothing."""
    tier = CheckpointTier("file system", 10.0, 300.0, 60.0)
    struck = (Struck("node", 1e-5, "node", 60.0, 120.0, 90.0),)
    question = GoodputSetting(
        struck, Checkpointing((tier,), RecoveryTimes(notice_s=30.0)), "made up", replicas=4, repair_s=3600.0
    )
    found = {p: goodput_document(question, FailureFreeRate(), policy=p) for p in ("restart", "shrink")}
    worth = {p: {item.constant: item.gain for item in found[p].worth} for p in found}
    assert worth["restart"]["saving, file system"] > 0
    assert worth["shrink"]["saving, file system"] == 0
    assert worth["shrink"]["waiting for nodes"] == pytest.approx(1e-5 / 4, rel=1e-6)
    assert all(any("notice of 30 s" in note for note in goodput.notes) for goodput in found.values())


def test_a_rate_of_zero_is_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "failures.yaml"
    path.write_text("classes: [{name: a, per_1000_node_days: 0}]")
    question = setting_of_model(
        load_failures(str(path)), {"T4": 4}, Checkpointing((CheckpointTier("a", 5.0),), RecoveryTimes()), 1
    )
    found = goodput_document(question, FailureFreeRate())
    assert found.goodput == 1
    assert any("nothing fails" in note for note in found.notes)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--mtbf-s 0 --checkpoint-s 5", "--mtbf-s 0: give seconds, above zero"),
        ("--mtbf-s 100 --checkpoint-s 5 --days 0", "--days 0: give days"),
        ("--mtbf-s 100", "--checkpoint"),
        ("--failures llama3 --checkpoint-s 5", "need a plan"),
        ("--mtbf-s 100 --checkpoint-s 5 --policy wait", "unknown policy 'wait'"),
        ("--mtbf-s 100 --checkpoint-s 5 --sample 3", "--sample 3"),
        ("--mtbf-s 100 --checkpoint-s 5 --policy shrink", "two replicas"),
    ],
)
def test_bad_questions_are_refused_in_words(line: str, said: str) -> None:
    finished = tangram("goodput", *line.split())
    assert finished.code == 2
    assert said in finished.err
    assert not finished.out


def test_files_without_keys_are_refused_by_the_keys_they_lack(tmp_path: Path) -> None:
    empty, listed = tmp_path / "empty.yaml", tmp_path / "listed.yaml"
    empty.write_text("")
    listed.write_text("[1, 2]\n")
    with pytest.raises(BadInputError, match=r"nothing is in it; .*`checkpoint`"):
        load_checkpointing(empty, 1, 1.0, 1.0, 1.0)
    with pytest.raises(BadInputError, match=r"\[1, 2\] is in it; .*`classes`"):
        load_failures(str(listed))


def test_a_plan_under_a_failure_file(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.yaml"
    checkpoint.write_text(
        json.dumps(
            {
                "checkpoint": [
                    {
                        "name": "partner",
                        "block_s": 2,
                        "save_s": 20,
                        "load_bytes_per_s": 1e10,
                        "survives": "node",
                    },
                    {
                        "name": "files",
                        "block_bytes_per_s": 1e9,
                        "load_bytes_per_s": 2e9,
                        "every": 86400,
                    },
                ],
                "recovery": {"detect_s": 60, "allocate_s": 120, "init_s": {"base": 60, "per_node": 0.07}},
            }
        )
    )
    plan = tmp_path / "plan.json"
    model, cluster = tmp_path / "model.yaml", tmp_path / "cluster.yaml"
    model.write_text(MODEL)
    cluster.write_text(CLUSTER)
    answer(f"estimate {model} {cluster} --dp 12 --global-batch 24 -o {plan}")
    found = answer(f"goodput {plan} --failures rsc-1 --checkpoint {checkpoint}")
    assert found["per_1000_node_days"] == pytest.approx(6.5)
    assert [tier["name"] for tier in found["tiers"]] == ["partner", "files"]
    whole = json.loads(plan.read_text())["tokens_per_s"]
    assert found["tokens_per_s"] == pytest.approx(whole * found["goodput"])
    shrunk = answer(f"goodput {plan} --failures rsc-1 --checkpoint {checkpoint} --policy shrink")
    assert shrunk["accounts"]["degraded"] > 0
    assert shrunk["goodput"] > 0.9
    alone = answer(f"goodput {plan}")  # the usual failures, seconds from the plan's own bytes
    same = answer(f"goodput {plan} --failures llama3")
    assert alone["goodput"] == same["goodput"] and alone["per_1000_node_days"] == same["per_1000_node_days"]
    (tier,) = alone["tiers"]
    assert tier["block_s"] > 0 and any("assumed" in note for note in alone["notes"])
    stated = answer(f"goodput {plan} --checkpoint-s {tier['block_s']}")
    assert stated["tiers"][0]["block_s"] == pytest.approx(tier["block_s"])
    assert not any("assumed: every node writes" in note for note in stated["notes"])
