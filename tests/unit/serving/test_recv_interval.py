"""Engines that look for new requests after some iterations only (SGLang's --scheduler-recv-interval)."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.batching import BatchingRules
from tangram_sim.serving.closed_form import unseen_s
from tangram_sim.serving.fleet import FAST, REFERENCE, FleetReplica, play
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import ServiceOutcome
from tangram_sim.serving.plain_tables import linear_table
from tangram_sim.serving.router import RoundRobin
from tangram_sim.serving.workload import plain

STEP_S = 0.01
RULES = BatchingRules(8192, 64, 16, 10**6, False, "reserve_ratio", "retract", False, recv_interval=10)


def started(arrival_s: list[float], outputs: list[int], interval: int, engine: str) -> np.ndarray:
    """Seconds from arrival to admission, beside requests of one prompt token."""
    work = plain(np.array(arrival_s), np.ones(len(outputs), dtype=np.int64), np.array(outputs))
    table = linear_table(64, step_s=STEP_S)
    fleet = [FleetReplica("one", replace(RULES, recv_interval=interval), table)]
    return ServiceOutcome(play(fleet, work, RoundRobin(), engine=engine)).queue_s


@pytest.mark.parametrize("engine", [FAST, REFERENCE])
def test_a_request_waits_for_the_next_look(engine: str) -> None:
    """Looks: when idle, after the iteration with a prompt (0.01 s), then after ten of decodes each."""
    waits = started([0.0, 0.155, 0.2151], [60, 1, 1], 10, engine)
    # The second is prompted from 0.21 s to 0.22 s, and at its end the third is seen.
    np.testing.assert_allclose(waits, [0.0, 0.055, 0.0049], atol=1e-9)
    np.testing.assert_allclose(started([0.0, 0.155], [60, 1], 1, engine), [0.0, 0.005], atol=1e-9)


@pytest.mark.parametrize("interval", [1, 30])
def test_the_closed_form_is_what_is_played(interval: int) -> None:
    """Single requests beside a long one: half an iteration, and half of the others before the look."""
    gaps = np.random.default_rng(1).uniform(1.0, 2.0, 400)
    waits = started([0.0, *np.cumsum(gaps)], [80_000, *[1] * 400], interval, FAST)[1:]
    step = np.array([STEP_S])
    expected = STEP_S / 2 + unseen_s(interval, step, step * 0.0, step * 0.0 + 99.0)[0]
    assert waits.mean() == pytest.approx(expected, rel=0.06)
    assert unseen_s(interval, step, step, step * 0.0) == 0.0  # nobody waits where nothing runs


def test_a_fleet_file_says_it_for_sglang_alone() -> None:
    hwdb = Hwdb.load()
    replica = {"gpu": "H100-SXM5-80GB", "recv_interval": 30}
    told = {"model": "llama-3.1-8b", "engine": "sglang", "replicas": [replica]}
    (fleet_replica,) = read_fleet(told, hwdb).replicas
    assert fleet_replica.rules.recv_interval == 30
    with pytest.raises(BadInputError, match="recv_interval: vllm has no such setting"):
        read_fleet({**told, "engine": "vllm"}, hwdb)
