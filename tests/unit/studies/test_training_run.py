"""Days, dollars and megawatt hours of a plan: laws, prices of nodes, words on the terminal, plan files."""

import json
from dataclasses import replace

import pytest

import tangram_sim as ts
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.models import lora_share
from tangram_sim.studies.planfile import plan_keys
from tangram_sim.studies.training_run import training_run, wanted_run
from tests.commands import tangram

HWDB = Hwdb.load()
JOB = ts.Job(global_batch=32, seq=2048)


@pytest.fixture(scope="module")
def found():
    return ts.estimate(
        "gpt3-1.3b", "p4d.24xlarge:1", JOB, ts.Uniform(dp=8), tokens="20B", finish_within="14d"
    )


def test_days_follow_from_tokens_over_throughput_and_goodput(found):
    run = found.document.run
    rate = found.document.tokens_per_s * run.goodput
    assert run.days == pytest.approx(20e9 / rate / 86_400)
    assert run.days_low < run.days < run.days_high and 0.9 < run.goodput < 1
    assert run.in_time == (run.days <= 14)


def test_dollars_are_the_rent_of_all_nodes_for_that_time(found):
    run = found.document.run
    assert run.usd_per_hour == pytest.approx(21.957642)
    assert run.usd == pytest.approx(21.957642 * run.days * 24)
    assert run.usd_per_million_tokens == pytest.approx(run.usd / 20e3)
    assert run.usd_per_million_tokens_low < run.usd_per_million_tokens < run.usd_per_million_tokens_high
    assert any("21.957642" in line or "21.9576" in line for line in run.basis)


def test_energy_is_between_idle_and_the_limit_of_the_boards(found):
    run = found.document.run
    assert 8 * 0.05 < run.kw < 8 * 0.4 * 1.8
    assert run.mwh == pytest.approx(run.kw * run.days * 24 / 1e3)
    assert run.mwh_low < run.mwh < run.mwh_high


def test_twice_the_tokens_take_twice_of_everything(found):
    cluster = found.forecast.plan.cluster
    item, two = (training_run(found.document, cluster, HWDB, tokens) for tokens in (1e9, 2e9))
    for name in ("days", "usd", "mwh"):
        assert getattr(two, name) == pytest.approx(2 * getattr(item, name))
    assert two.usd_per_million_tokens == pytest.approx(item.usd_per_million_tokens)


def test_idle_nodes_are_paid_for_and_draw_power(found):
    cluster = found.forecast.plan.cluster
    group = cluster.groups[0]
    larger = replace(cluster, groups=(replace(group, count=2),))
    item, two = (training_run(found.document, each, HWDB, 1e9) for each in (cluster, larger))
    assert two.usd == pytest.approx(2 * item.usd) and item.mwh < two.mwh < 2 * item.mwh


def test_a_plan_made_without_tokens_says_nothing_of_a_run_in_its_file(found):
    plain = found.document.with_fields(run=None)
    assert "run" not in plan_keys(plain) and "run" in plan_keys(found.document)


@pytest.mark.parametrize(
    ("tokens", "within"), [("0", None), ("much", None), ("inf", None), (None, "3d"), ("1B", "soon")]
)
def test_other_amounts_and_times_are_refused_before_any_work(tokens, within):
    with pytest.raises(BadInputError):
        wanted_run(tokens, within)


def test_the_terminal_says_it_in_a_line_and_json_in_figures(tmp_path):
    asked = ("estimate", "gpt3-1.3b", "p4d.24xlarge:1", "--dp", 8, "--global-batch", 32, "--tokens", "20B")
    line = next(
        splitline
        for splitline in tangram(*asked).out.splitlines()
        if splitline.startswith("20 billion tokens")
    )
    for words in ("days", "of rent", "per million tokens", "MWh", "goodput"):
        assert words in line
    run = json.loads(tangram(*asked, "--json").out)["run"]
    assert run["tokens"] == 20e9 and run["usd"] > 0


def test_adapters_are_planned_where_the_whole_model_does_not_fit():
    share = lora_share(load_model("llama2-7b"), 16)
    options = ts.SearchOptions(effort="quick")
    job = ts.Job(global_batch=8, seq=2048)
    with pytest.raises(InfeasibleError):
        ts.plan("llama2-7b", "A100-SXM4-40GBx1:1", job, wishes=options)
    found = ts.plan("llama2-7b", "A100-SXM4-40GBx1:1", replace(job, trainable=share), wishes=options)
    assert found.document.feasible
