"""The emulated cluster: it is built and removed whole, also when killed, and predictions hold on it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.places import ROOT

pytest.importorskip("torch", reason="real runs need the [validate] extra")

from tangram_validate.testbed import network
from tangram_validate.testbed.emulated import Device, Speed, work_of
from tangram_validate.testbed.errors import TestbedError
from tangram_validate.testbed.launch import Ranks
from tangram_validate.testbed.network import IslandNet, Network
from tangram_validate.testbed.scenario import load_scenario, scenario_names

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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_no_rank_no_link_and_no_result(how, tmp_path):
    """Ranks end with their launcher, links with ranks; results are written whole or not at all."""
    command = ("validate", "testbed", "--suite", "minute", "--anywhere", "-o", str(tmp_path))
    run = subprocess.Popen(
        [sys.executable, "-m", "tangram_sim.cli.main", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "validate")))},
    )
    assert run.stderr is not None
    said = b""
    while b" ranks in " not in said:
        said += run.stderr.readline()
        assert run.poll() is None, said.decode()
    family, children = Path(f"/proc/{run.pid}/task/{run.pid}/children"), list[str]()
    while len(children) < 4:  # the ranks, and the janitor where links are shaped
        assert run.poll() is None, run.stderr.read().decode()
        children = family.read_text().split()
        time.sleep(0.05)
    run.send_signal(how)
    run.wait(20)
    run.stderr.close()
    tag, deadline = f"{network.PREFIX}{run.pid:06x}", time.monotonic() + 10

    def left() -> list[str]:
        return _left(tag) + [child for child in children if Path(f"/proc/{child}").exists()]

    while left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left() and not list(tmp_path.iterdir())


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
    from tangram_validate.testbed.transformer import require_supported

    scenario = load_scenario(name)
    assert sum(node["gpus"] for node in scenario.cluster()["nodes"]) == len(scenario.kinds)
    for work in scenario.facts.work:
        require_supported(scenario.model(work.model))


def test_suites_hold_enough_plans_and_clusters():
    """The target: 30 emulated plans over 4 clusters of 2 to 8 ranks, 10 real ones."""
    from tangram_validate.testbed.suite import SUITES

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
    from tangram_validate.testbed.calibration import Calibration, Line, write_overlay

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
    from tangram_validate.testbed.calibration import Calibration, Line
    from tangram_validate.testbed.suite import distinct, predict

    scenario = load_scenario("pair")
    rates = {
        kind: {"flop_per_s": facts.gflop_per_s * 1e9, "launch_s": 0.0, "memory_bytes_per_s": 5e10}
        for kind, facts in scenario.facts.kinds.items()
    }
    found = Calibration(rates, {}, 1.0, 1.0, [(100.0, Line(2e-4, 0.95 * 12.5e6))])
    every = list(predict(scenario, found, tmp_path, []))
    once = distinct(every)
    names = [name for item in once for name in item.name.split(" = ")]
    assert len(once) < len(every) and sorted(names) == sorted(item.name for item in every)


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
    from tangram_validate.testbed.report import plan_row, runs_csv, score_of
    from tangram_validate.testbed.suite import run_suite

    made = run_suite("minute", tmp_path)
    assert len(made.outcomes) == 5
    found = score_of(made)["emulated"]
    assert found["median_ape"] < 0.15
    assert found["kendall_tau"] > 0.3
    assert runs_csv(made).count("\n") == 1 + 5 * 3
    assert plan_row(made.outcomes[0])["kind"] == "emulated"


def test_a_measured_attention_rate_has_its_exponentials_in_it():
    """Rows distilled from timings give the time that was measured, whatever the architecture's row says."""
    from tangram_validate.testbed.kernels import Timing, distil

    found = [
        Timing("gemm", "forward", "fp32", (64, 64, 64), 2e9, 1e6, (1e-3,)),
        Timing("attention", "forward", "fp32", (1, 4, 64, 64), 1e9, 1e6, (1e-3,)),
        Timing("attention", "backward", "fp32", (1, 4, 64, 64), 3e9, 1e6, (4e-3,)),
        Timing("copy", "forward", "fp32", (64,), 0, 1e6, (1e-3,)),
        Timing("dispatch", "forward", "fp32", (8,), 0, 0, (1e-6,)),
    ]

    def attention(columns):
        rows = (row.split(",") for row in distil(found, "one", "fp32", 4e12, 1e10, "", columns))
        return {row[5]: float(row[6]) for row in rows if row[2] == "attention"}

    assert attention(0.0) == {"efficiency": 0.2, "exponent_columns": 0.0, "share": 1.0}  # 4e9 in 5 ms
    assert attention(32.0)["efficiency"] == pytest.approx(0.2 * (1 + 32 / 64))


def test_reductions_that_compute_hides_in_part(tmp_path):
    """All hidden: as predicted; nothing: behind the last backward; a share lies between, in proportion."""
    from tangram_validate.testbed import overlap
    from tangram_validate.testbed.calibration import Calibration, Line
    from tangram_validate.testbed.suite import predict

    from tangram_sim.hwdb import Hwdb

    scenario = load_scenario("real-pair")
    rates = {
        kind: {"flop_per_s": 5e10 / facts.repeats, "launch_s": 0.0, "memory_bytes_per_s": 3e10}
        for kind, facts in scenario.facts.kinds.items()
    }
    found = Calibration(rates, {}, 1.0, 1.0, [(400.0, Line(2e-4, 0.95 * 50e6))])
    every = {item.name: item for item in predict(scenario, found, tmp_path, [])}
    replicas, pipeline = every["replicas-fours"], every["even"]
    hwdb = Hwdb.load((tmp_path,))

    def seconds(one, hidden):
        return overlap.step_s(one.result.forecast.plan, one.predicted_s, hidden, hwdb)

    assert seconds(replicas, 1.0) == replicas.predicted_s < seconds(replicas, 0.0)
    halfway = (seconds(replicas, 1.0) + seconds(replicas, 0.0)) / 2
    assert seconds(replicas, 0.5) == pytest.approx(halfway)
    assert seconds(pipeline, 0.0) == pytest.approx(pipeline.predicted_s)  # it reduces nothing


def test_ranks_measure_what_a_reduction_hides():
    from tangram_validate.testbed.overlap import bench_hidden

    with Ranks(2) as ranks:
        shares = ranks.run(bench_hidden, [0, 1], 1 << 20)
    assert all(0.0 <= share <= 1.0 for share in shares)


def test_a_gpus_rows_come_from_a_tiny_and_a_large_pass(tmp_path, monkeypatch):
    """The road of `--device cuda` on the processor: the host's seconds per kernel, and a factor."""
    import torch
    from tangram_validate.testbed import device, device_rows, kernels

    monkeypatch.setattr(device_rows, "KERNEL_PASS", (2, 128))
    model = device.models("cpu")["dense"]
    shapes = device_rows.shapes_of(model, (32, 64, 64), "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timings = {"fp32": kernels.measure("cpu", "fp32", shapes, repeats=1)}
        device_rows.overlay("cpu", model, timings, tmp_path)
        header, *rows = (tmp_path / "efficiency/device.csv").read_text().splitlines()
        bare = [header, *device_rows.without_dispatch(row for row in rows if ",passes of" not in row)]
        made = device_rows.passes_cuda(model, ("fp32",), bare, tmp_path, device="cpu")
    finally:
        torch.set_num_threads(threads)
    host, scale = (float(row.split(",")[6]) for row in made)
    assert [row.split(",")[2] for row in made] == ["dispatch", "stack"]
    assert 1e-6 < host < 1e-2 and 0.2 <= scale <= 10


@pytest.mark.slow
def test_the_device_suite_runs_here(tmp_path):
    """The code path that a GPU takes, on the processor."""
    import json

    from tangram_validate.testbed.device import configurations, run_suite

    every = list(configurations("cuda"))
    assert len(every) >= 40 and len(set(every)) == len(every)
    assert {item.recompute for item in every} == {"none", "selective", "full"}
    found = run_suite("cpu", tmp_path, most=4, trace=tmp_path / "trace.json")
    assert all(item.step_s > 0 and item.measured_bytes > 0 and item.predicted_s > 0 for item in found)
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert {"date", "torch", "device"} <= set(trace)
    assert {item["dtype"] for item in trace["timings"]} == {"fp32", "bf16"}
