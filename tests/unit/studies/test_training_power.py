"""Training under power caps: laws of clocks, watts and objectives, and what the command line says."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tangram_sim as ts
from tangram_sim.cost.energy import LEAST_CLOCK, gpu_power
from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tangram_sim.hwdb import Hwdb, load_cluster
from tangram_sim.questions.estimate import EstimateQuestion
from tangram_sim.questions.plan import PlanQuestion
from tangram_sim.questions.power import PowerOptions
from tangram_sim.questions.shared_fields import Run
from tangram_sim.reports.plan_sections import plan_report
from tangram_sim.studies.training_power import (
    cap_at,
    caps_of,
    clock_under,
    clocks_under,
    cluster_watts,
    weights_of,
)
from tests.commands import tangram

HWDB = Hwdb.load()
MIXED = "H100x4:1+A100-80GBx4:1"
JOB = ts.Job(global_batch=16, seq=2048)
NAMES = ("H100-SXM5-80GB", "A100-SXM4-80GB")
WATTS = st.floats(150.0, 900.0)


def under(**power):
    return Run(power=PowerOptions(**power))


def estimated(**power):
    layout = ts.Uniform(pp=2, tp=2, dp=2)
    question = EstimateQuestion("gpt3-1.3b", MIXED, JOB, run=under(**power), layout=layout)
    return question.answer()


def planned(objective="time", **power):
    return PlanQuestion("gpt3-1.3b", MIXED, JOB, run=under(**power), objective=objective).answer()


@pytest.fixture(scope="module")
def free():
    return estimated()


@given(cap_w=st.floats(1.0, 2000.0), name=st.sampled_from(sorted(HWDB.gpu_names())))
def test_clocks_rise_with_caps_and_are_undone_by_the_power_limit_to_set(cap_w, name):
    gpu = HWDB.gpu(name)
    if not gpu.power_w:
        return
    power = gpu_power(gpu, HWDB)
    clock = clock_under(power, cap_w)
    assert 0.0 <= clock <= clock_under(power, cap_w * 1.01) <= 1.0
    assert (clock == 1.0) == (cap_w >= gpu.power_w) or clock == pytest.approx(1.0)
    if 0.0 < clock < 1.0:
        assert cap_at(power, clock) == pytest.approx(cap_w)


@given(h100_w=st.floats(700.0, 2000.0), a100_w=st.floats(400.0, 2000.0))
@settings(max_examples=5, deadline=None)
def test_a_cap_that_does_not_bind_changes_nothing(free, h100_w, a100_w):
    found = estimated(power_cap=(f"H100={h100_w}", f"A100-80GB={a100_w}"))
    ours = ("power", "question")
    assert found.document.model_dump(exclude=ours) == free.document.model_dump(exclude=ours)
    power = found.document.power
    assert power.slower == 0.0 and power.saved == 0.0 and not any(kind.capped for kind in power.kinds)


@given(caps=st.tuples(WATTS, WATTS), lower=st.tuples(st.floats(0.9, 1.0), st.floats(0.9, 1.0)))
@settings(max_examples=25, deadline=None)
def test_a_lower_cap_is_never_faster_and_never_draws_more(caps, lower):
    def held(watts):
        return estimated(power_cap=tuple(f"{n}={w}" for n, w in zip(NAMES, watts, strict=True))).document

    above, below = held(caps), held([max(145.0, w * f) for w, f in zip(caps, lower, strict=True)])
    assert below.step_s >= above.step_s * (1 - 1e-9)
    assert below.power.chosen.site_kw <= above.power.chosen.site_kw * (1 + 1e-9)
    for found in (above, below):
        for kind, watts in zip(found.power.kinds, caps, strict=True):
            assert kind.mean_w <= kind.cap_w * (1 + 1e-9) and kind.cap_w <= watts * (1 + 1e-9)


@given(kw=st.floats(3.5, 9.0), pue=st.floats(1.0, 1.5))
@settings(max_examples=15, deadline=None)
def test_a_site_is_held_below_its_power_or_the_reason_is_said(kw, pue):
    try:
        found = estimated(site_power=kw, pue=pue).document
    except InfeasibleError as error:
        assert "cannot be met" in str(error) and "lowest clock" in str(error)
        least = estimated(power_cap=tuple(f"{n}={_least(n)}" for n in NAMES), pue=pue).document.power
        assert least.chosen.site_kw > kw
        return
    assert found.power.chosen.site_kw <= kw * (1 + 1e-9)
    if any(kind.capped for kind in found.power.kinds):
        assert found.power.chosen.site_kw > 0.97 * kw  # clocks are no lower than they must be
    assert all(kind.clock >= LEAST_CLOCK - 1e-9 for kind in found.power.kinds)


def _least(name):
    return cap_at(gpu_power(HWDB.gpu(name), HWDB), LEAST_CLOCK)


@pytest.mark.parametrize("limits", [{}, {"site_power": 5.0}, {"power_cap": ("350W",)}])
def test_no_objective_is_worse_by_its_own_measure_than_another(limits):
    found = {name: planned(name, **limits).document for name in ("time", "energy", "cost")}
    measures = {
        "time": lambda document: document.step_s,
        "energy": lambda document: document.power.chosen.joules_per_token if document.power else None,
        "cost": lambda document: document.power.chosen.usd_per_million_tokens if document.power else None,
    }
    if (
        found["time"].power is None
    ):  # nothing about power was asked: asked with an option that changes nothing
        found["time"] = planned(carbon=1.0).document
    for name in ("energy", "cost"):
        assert measures[name](found[name]) <= measures[name](found["time"]) * (1 + 1e-9)
        assert found["time"].step_s <= found[name].step_s * (1 + 1e-9)


def test_the_energy_objective_saves_energy_where_gpus_draw_their_limit():
    power = planned("energy").document.power
    assert power.saved > 0.02 and power.slower > 0.0 and any(kind.capped for kind in power.kinds)
    best = min(power.tried, key=lambda point: point.joules_per_token)
    assert power.chosen.joules_per_token <= best.joules_per_token


def test_electricity_makes_the_cheapest_clock_a_lower_one():
    free, dear = (planned("cost", usd_per_kwh=price).document.power for price in (0.0, 100.0))
    assert min(kind.clock for kind in dear.kinds) < 1.0 == min(kind.clock for kind in free.kinds)


def test_watts_of_idle_gpus_are_those_of_idle_boards(free):
    cluster = load_cluster(f"{MIXED}+A100-80GBx4:1", HWDB)
    watts = cluster_watts(free.document, cluster, HWDB)
    inside = cluster_watts(free.document, load_cluster(MIXED, HWDB), HWDB)
    added = watts.kinds[NAMES[1]].gpu_w - inside.kinds[NAMES[1]].gpu_w
    assert added == pytest.approx(4 * 0.12 * 400)


def test_carbon_and_pue_count_in_the_run_and_change_no_plan(free):
    question = EstimateQuestion("gpt3-1.3b", MIXED, JOB, layout=ts.Uniform(pp=2, tp=2, dp=2))
    run = replace(question.run, tokens=1e9)
    plain = replace(question, run=run).answer().document
    with_terms = (
        replace(question, run=replace(run, power=PowerOptions(pue=1.4, carbon=350))).answer().document
    )
    assert with_terms.step_s == plain.step_s
    assert with_terms.run.mwh == pytest.approx(1.4 * plain.run.mwh)
    assert with_terms.run.co2_t == pytest.approx(with_terms.run.mwh * 0.35)
    grams = with_terms.power.co2_g_per_million_tokens
    assert grams == pytest.approx(with_terms.power.chosen.joules_per_token / 3.6 * 350)


def test_a_capped_plan_replays_from_its_file(tmp_path):
    path = tmp_path / "plan.json"
    made = planned(power_cap=("300W",))
    path.write_text(made.document.model_dump_json())
    again = ts.simulate(path)
    assert again.step_s == pytest.approx(made.step_s, rel=1e-9)
    assert not [finding for finding in again.document.findings if "replay" in finding.code]


def test_caps_weights_and_clocks_that_cannot_be_are_refused():
    cluster = load_cluster(MIXED, HWDB)
    for words in ("H100=400W,H100-SXM5-80GB=300W", "fast"):
        with pytest.raises(BadInputError):
            caps_of(words.split(","), HWDB)
    with pytest.raises(UnknownNameError):
        clocks_under(cluster, caps_of(["L40S=200W"], HWDB), HWDB)
    with pytest.raises(InfeasibleError, match="higher cap"):
        clocks_under(cluster, caps_of(["20W"], HWDB), HWDB)
    for words in ("time=0", "time=1,time=2", "energy=-1", "energy=nan"):
        with pytest.raises(BadInputError):
            weights_of(words)
    with pytest.raises(UnknownNameError):
        weights_of("speed")
    assert dict(weights_of("time=1,energy=3")) == {"time": 0.25, "energy": 0.75}


def test_the_command_line_names_the_capped_gpus_and_json_has_the_figures():
    asked = ["estimate", "gpt3-1.3b", MIXED, "--pp", "2", "--dp", "4", "--power-cap", "H100=400W"]
    text = tangram(*asked).out
    assert "capped: 4 x H100-SXM5-80GB at 400 W" in text and "next to no caps" in text
    power = tangram(*asked, "--site-power", "1MW", "--json").json["power"]
    assert power["site_limit_kw"] == 1000.0 and [kind["capped"] for kind in power["kinds"]] == [True, False]
    refused = tangram(*asked, "--site-power", "2")
    assert refused.code != 0 and "cannot be met" in refused.err


@given(kw=st.floats(3.0, 5.0))
@settings(max_examples=4, deadline=None)
def test_the_curve_rises_in_both_and_no_clock_that_was_tried_beats_it(kw):
    power = estimated(site_power=kw).document.power
    assert len(power.curve) > 3
    for above, below in pairwise(power.curve):
        assert above.step_s <= below.step_s and above.site_kw > below.site_kw
    for at in (*power.tried, power.chosen):
        assert any(on.step_s <= at.step_s and on.site_kw <= at.site_kw * (1 + 1e-12) for on in power.curve)
    tokens = JOB.global_batch * JOB.seq
    assert power.chosen.tokens_per_s == pytest.approx(tokens / power.chosen.step_s)


@pytest.mark.parametrize("things", [{"slow": ("n0=1.5",)}, {"without": ("n1",)}, {"losses": 0.5}])
def test_plans_around_slow_lost_and_losing_nodes_are_held_below_the_power_of_the_site(things):
    asked = PlanQuestion("gpt3-1.3b", MIXED, JOB, **things)
    free = replace(asked, run=under(pue=1.2)).answer().document
    limit_kw = 0.8 * free.power.chosen.site_kw
    held = replace(asked, run=under(pue=1.2, site_power=limit_kw)).answer().document
    assert free.power.chosen.step_s == free.step_s
    assert held.power.chosen.step_s == held.step_s > free.step_s
    assert held.power.chosen.site_kw <= limit_kw * (1 + 1e-9)
    assert any(kind.capped for kind in held.power.kinds)
    assert "power-clocks-assumed" in [finding.code for finding in held.findings]
    assert (held.slow is None) == (free.slow is None) == ("slow" not in things)
    assert (held.liveput is None) == ("losses" not in things)


def test_what_runs_slow_changes_nothing_where_no_power_is_asked_about():
    asked = PlanQuestion("gpt3-1.3b", MIXED, JOB, slow=("n0=1.5",))
    plain, powered = asked.answer().document, replace(asked, run=under(pue=1.2)).answer().document
    assert plain.power is None and powered.step_s == plain.step_s
    assert powered.pipelines == plain.pipelines


def test_a_report_draws_throughput_against_power():
    page = plan_report(estimated(site_power=4.0).document, HWDB)
    assert "Throughput against power" in page and "kW of the site" in page
    assert "Throughput against power" not in plan_report(estimated().document, HWDB)
