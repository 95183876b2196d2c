"""The emulated cluster: it is built and removed whole, also when killed, and predictions hold on it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="real runs need the [validate] extra")

from tangram_validate import network
from tangram_validate.emulated import Device, Speed, work_of
from tangram_validate.errors import TestbedError
from tangram_validate.launch import Ranks
from tangram_validate.network import IslandNet, Network
from tangram_validate.scenario import load_scenario, scenario_names

ROOT = Path(__file__).resolve().parents[2]
WHY = network.missing_means()
with_namespaces = pytest.mark.skipif(bool(WHY), reason=WHY or "namespaces can be made")
TWO = (IslandNet(1, 100, 50), IslandNet(1, 100, 50))


def _left(tag: str) -> list[str]:
    return [name for names in network._names() for name in names if name.startswith(tag)]


@with_namespaces
def test_a_network_is_removed_whole():
    with Network(TWO) as net:
        assert len(_left(net.tag)) == 2 + 2 + 2 + 4 + 1  # namespaces, rank links, bridges, uplinks, core
    assert not _left(net.tag)


@with_namespaces
def test_a_name_that_exists_is_named_and_nothing_is_left():
    net = Network(TWO, owner=os.getpid())
    taken = f"{net.tag}b1"
    subprocess.run(["ip", "link", "add", taken, "type", "bridge"], check=True)
    with pytest.raises(TestbedError, match=f"{taken}.*exists already"), net:
        pass
    assert not _left(net.tag)


@with_namespaces
def test_a_plan_larger_than_the_testbed_is_refused():
    with (
        Network(TWO) as net,
        pytest.raises(TestbedError, match="needs 4 ranks, the testbed offers 2"),
        Ranks(4, net),
    ):
        pass


@with_namespaces
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_a_testbed_is_killed(how):
    held = subprocess.Popen(
        [sys.executable, str(ROOT / "validate/testbed.py"), "pair"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert held.stdout is not None
    assert b"namespace" in held.stdout.readline()
    tag = f"{network.PREFIX}{held.pid:06x}"
    assert _left(tag)
    held.send_signal(how)
    held.wait(10)
    held.stdout.close()
    deadline = time.monotonic() + 10
    while _left(tag) and time.monotonic() < deadline:  # SIGKILL: the janitor needs a moment
        time.sleep(0.1)
    assert not _left(tag)


@with_namespaces
def test_leftovers_of_a_dead_owner_are_swept():
    ended = subprocess.Popen(["true"])
    ended.wait()
    name = f"{network.PREFIX}{ended.pid:06x}b0"
    subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
    assert name[:-2] in network.sweep()
    assert not _left(name)


@pytest.mark.parametrize("name", scenario_names())
def test_scenarios_fit_together(name):
    """Every shipped file reads, its cluster names every rank, and its models can be run."""
    from tangram_validate.transformer import require_supported

    scenario = load_scenario(name)
    assert sum(node["gpus"] for node in scenario.cluster()["nodes"]) == len(scenario.kinds)
    for work in scenario.facts.work:
        require_supported(scenario.model(work.model))


def test_suites_hold_enough_plans_and_clusters():
    """The target: 30 emulated plans over 4 clusters of 2 to 8 ranks, 10 real ones."""
    from tangram_validate.suite import SUITES

    found = [load_scenario(name) for name in SUITES["full"]]
    plans = {
        emulated: sum(
            len(work.plans) + len(work.planners)
            for scenario in found
            if scenario.emulated == emulated
            for work in scenario.facts.work
        )
        for emulated in (True, False)
    }
    assert plans[True] >= 30 and plans[False] >= 10
    assert {len(scenario.kinds) for scenario in found} >= {2, 8}


def test_overlays_reduce_round_rings_at_the_rates_that_were_measured(tmp_path):
    """gloo has no trees, and nothing of NCCL's rows for other links leaks into a calibrated testbed."""
    from tangram_validate.calibration import Calibration, Line, write_overlay

    from tangram_sim.clusters import Link
    from tangram_sim.hwdb import Hwdb

    rates = {"swift": {"flop_per_s": 1e10, "launch_s": 0.0, "memory_bytes_per_s": 5e10}}
    line = Line(2e-4, 0.95 * 12.5e6)
    write_overlay(Calibration(rates, {100.0: line}, 1.0, 1.0, [(100.0, line)]), tmp_path)
    hwdb = Hwdb.load((tmp_path,))
    ring = hwdb.collective("ring", hwdb.link("testbed-100M"))
    assert ring is not None
    assert (ring.base_s, ring.hop_s, ring.fill_s, ring.copy_share) == (0.0, 2e-4, 0.0, 0.0)
    assert ring.rate_share == pytest.approx(0.95, rel=1e-3)
    between = hwdb.collective("network", Link("network", "network", 0.0, 0.0))
    assert between is not None
    assert between.fill_s == 0.0 and between.tree_share <= 1e-3
    assert between.rate_share == pytest.approx(0.95, rel=1e-3)


def test_a_plan_under_two_names_runs_once(tmp_path):
    """Where a planner's plan is one of the written ones it is the same run."""
    from tangram_validate.calibration import Calibration, Line
    from tangram_validate.suite import distinct, predict

    scenario = load_scenario("pair")
    rates = {
        kind: {"flop_per_s": facts.gflop_per_s * 1e9, "launch_s": 0.0, "memory_bytes_per_s": 5e10}
        for kind, facts in scenario.facts.kinds.items()
    }
    found = Calibration(rates, {}, 1.0, 1.0, [(100.0, Line(2e-4, 0.95 * 12.5e6))])
    every = list(predict(scenario, found, tmp_path, []))
    once = distinct(every)
    names = [name for one in once for name in one.name.split(" = ")]
    assert len(once) < len(every) and sorted(names) == sorted(one.name for one in every)


def test_root_without_the_rights_is_no_testbed(monkeypatch):
    """A container's root may be refused namespaces: said in words, before a suite begins."""
    monkeypatch.setattr(network, "_ip", lambda *command: network._run("false", *command))
    network._refusal.cache_clear()
    try:
        assert "cannot be made here" in network._refusal()
    finally:
        network._refusal.cache_clear()


def test_waits_in_a_row_keep_time():
    device = Device(Speed(1e9, 1e9))
    device.start()
    begun = time.monotonic()
    for _ in range(20):
        device.wait(0.004)
    assert device.busy_s == pytest.approx(0.08)
    assert time.monotonic() - begun >= 0.0799  # never early; how late is the machine's affair


def test_work_counts_products_and_no_parameter_twice():
    """Three passes of a block's products, against 6 x weights x tokens plus the attention scores."""
    scenario = load_scenario("pair")
    model = scenario.model("tiny8")
    work = work_of(model, 3, 1, 128)
    weights = 12 * 192 * 192
    scores = 2 * 2 * 128 * 128 * 192
    assert work.forward == 2 * weights * 128 + scores
    assert work.weight_gradient == 2 * weights * 128
    assert work.input_gradient == 2 * weights * 128 + 2 * scores


@with_namespaces
@pytest.mark.slow
def test_predictions_rank_emulated_plans(tmp_path):
    """A minute of the testbed: generous bounds here, the targets are the suite's own."""
    from tangram_validate.report import plan_row, runs_csv, score_of
    from tangram_validate.suite import run_suite

    made = run_suite("minute", tmp_path)
    assert len(made.outcomes) == 5
    found = score_of(made)["emulated"]
    assert found["median_ape"] < 0.15
    assert found["kendall_tau"] > 0.3
    assert runs_csv(made).count("\n") == 1 + 5 * 3
    assert plan_row(made.outcomes[0])["kind"] == "emulated"


@pytest.mark.slow
def test_the_device_suite_runs_here(tmp_path):
    """The code path that a GPU takes, on the processor."""
    from tangram_validate.device import configurations, run_suite

    assert len(list(configurations("cuda"))) >= 40
    found = run_suite("cpu", tmp_path, most=4)
    assert all(one.step_s > 0 and one.measured_bytes > 0 and one.predicted_s > 0 for one in found)
