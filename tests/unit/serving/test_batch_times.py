"""Batches as a fluid: what the simulator plays, the laws that any batch keeps, and pipelines side by side."""

import numpy as np
import pytest

from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.batch_times import BATCH_SECONDS, BatchCurve, batch_curve, steady_shares
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import Load
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.workload import Floats, plain
from tangram_sim.serving_planners.offers import OfferPricer
from tangram_sim.serving_planners.pipelines import batches
from tangram_sim.studies.serving_simulation import simulate_service

HWDB = Hwdb.load()
LOAD = Load.of(np.array([1500.0, 300.0]), np.array([400.0, 30.0]))
MIX = np.array([0.5, 0.5])
REPLICAS = [
    [("A100-SXM4-80GB", 1, 32)],
    [("L40S", 1, 32)],
    [("H100-SXM5-80GB", 1, 32)],
    [("A100-SXM4-80GB", 1, 21), ("L40S", 1, 11)],
]


def curves(engine: str = "vllm", mix: Floats = MIX) -> dict[int, BatchCurve]:
    """A curve for each of REPLICAS, priced together with those of its depth and engine."""
    pricer = OfferPricer(load_model("llama3-8b"), HWDB, engine, "bf16", LOAD, Slo())
    priced, _ = batches(
        [pricer.deployment(replica) for replica in REPLICAS], HWDB, CalibrationTable.load(HWDB)
    )
    found = {}
    for batch in priced:
        mixes = np.tile(mix, (len(batch.numbers), 1))
        curve = batch_curve(batch.cost, batch.cost.deployment, batch.capacity(1), LOAD, mixes)
        for row, number in enumerate(batch.numbers.tolist()):
            found[number] = BatchCurve(
                curve.requests[row : row + 1], curve.seconds[row : row + 1], curve.rate[row : row + 1]
            )
    return found


def played_s(number: int, requests: int, engine: str) -> float:
    """A batch of so many requests, the types in turn, in the simulator."""
    stages = [{"gpu": gpu, "tp": tp, "layers": layers} for gpu, tp, layers in REPLICAS[number]]
    fleet = read_fleet({"model": "llama3-8b", "engine": engine, "replicas": [{"stages": stages}]}, HWDB)
    kind = np.random.default_rng(3).permutation(np.arange(requests) % 2)
    tokens = (np.array([1500, 300])[kind], np.array([400, 30])[kind])
    run, _ = simulate_service(fleet, plain(np.zeros(requests), *tokens), router="round_robin")
    return run.duration_s


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("number", range(len(REPLICAS)))
def test_a_batch_takes_as_long_as_the_simulator_plays(number: int, engine: str) -> None:
    """From a batch that is through with its prompts at once to one of many times the seats."""
    curve = curves(engine)[number]
    for requests in (40, 400, 2000):
        told = float(curve.seconds_of(requests)[0])
        assert told == pytest.approx(played_s(number, requests, engine), rel=0.1)


def test_more_requests_take_longer_and_while_all_find_seats_each_of_them_less() -> None:
    for curve in curves().values():
        counts = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000]
        seconds = np.array([float(curve.seconds_of(count)[0]) for count in counts])
        assert (np.diff(seconds) > 0).all()
        assert (np.diff(seconds / counts)[:4] < 0).all(), "later, full memory pushes requests out again"
        many = float((curve.seconds_of(20_000) - curve.seconds_of(10_000))[0])
        assert many == pytest.approx(10_000 / curve.rate[0])


def test_requests_within_seconds_and_seconds_of_requests_are_inverse() -> None:
    for curve in curves().values():
        for requests in (5.0, 250.0, 50_000.0):
            assert curve.requests_in(curve.seconds_of(requests))[0, 0] == pytest.approx(requests)


def test_shares_of_steady_throughput_rise_and_fall_by_little_where_memory_fills() -> None:
    """Preempted requests are computed twice: shares are no monotone law, which bounds of plans respect."""
    fallen = []
    for curve in curves().values():
        rps = np.array([[1.0, 7.0]])
        share = steady_shares(curve, MIX[None, :], rps)[0]
        assert share[0] == 0.0, "no request is through in a tenth of a second"
        served = share > 0
        fallen.append(1.0 - float((share[served] / np.maximum.accumulate(share[served])).min()))
        early = served & (curve.seconds[0, 3] > BATCH_SECONDS)  # all find seats
        assert (np.diff(share[early]) > 0).all()
        assert share[-1] == pytest.approx(curve.rate[0] * (0.5 + 0.5 / 7.0), rel=1e-3)
    assert 0.05 < max(fallen) < 0.13


def test_a_mix_of_short_outputs_is_through_sooner() -> None:
    mixed, short = curves(), curves(mix=np.array([0.1, 0.9]))
    for number, curve in mixed.items():
        assert curve.seconds_of(500)[0] > short[number].seconds_of(500)[0]
