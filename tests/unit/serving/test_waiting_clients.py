"""Closed loops: clients who send their next request when the last one has been answered."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tangram_sim.errors import BadInputError
from tangram_sim.serving.batching import BatchingRules
from tangram_sim.serving.fleet import FAST, REFERENCE, FleetReplica, Presence
from tangram_sim.serving.outcome import ServiceOutcome
from tangram_sim.serving.plain_tables import linear_table
from tangram_sim.serving.waiting_clients import TOO_LONG_HERE, play_clients
from tangram_sim.serving.workload import Workload, plain
from tests.commands import tangram

RULES = BatchingRules(8192, 64, 16, 4000, True, "whole_prompt", "recompute", prefix_cache=False)
TABLE = linear_table(64, step_s=0.01, decode_s=1e-4, context_s=1e-8, prompt_s=2e-5, request_s=0.004)


def work(count: int = 300, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    return plain(np.zeros(count), rng.integers(100, 900, count), rng.integers(1, 120, count))


def in_flight(arrival_s: np.ndarray, finish_s: np.ndarray) -> int:
    """The most requests between their arrival and their answer at once; an answer goes before an arrival."""
    times = np.concatenate([finish_s, arrival_s])
    change = np.concatenate([-np.ones(len(finish_s)), np.ones(len(arrival_s))])
    return int(np.cumsum(change[np.lexsort((change, np.round(times, 9)))]).max())


@pytest.mark.parametrize("clients", [1, 7, 40])
def test_so_many_requests_are_in_flight_and_each_client_waits(clients: int) -> None:
    fleet = [FleetReplica("a", RULES, TABLE)]
    ran = [play_clients(fleet, work(), clients, engine=engine) for engine in (FAST, REFERENCE)]
    for played_service in ran:
        assert in_flight(played_service.workload.arrival_s, played_service.ledger.finish_s) == clients
        assert (np.diff(played_service.workload.arrival_s) >= 0).all()
    np.testing.assert_allclose(ran[0].ledger.finish_s, ran[1].ledger.finish_s, rtol=1e-9)
    np.testing.assert_allclose(ran[0].workload.arrival_s, ran[1].workload.arrival_s, rtol=1e-9, atol=1e-9)
    later = np.sort(ran[0].workload.arrival_s)[clients:]
    answered = np.sort(ran[0].ledger.finish_s)[: len(later)]
    np.testing.assert_allclose(later, answered, atol=1e-9)
    area, sojourn = ServiceOutcome(ran[0]).little()
    assert area == pytest.approx(sojourn, rel=1e-9)


def test_equal_requests_settle_at_the_closed_form() -> None:
    """One client alone: every answer takes the prompt's iteration and so many steps, one after another."""
    alone = plain(np.zeros(20), np.full(20, 500), np.full(20, 50))
    played = play_clients([FleetReplica("a", RULES, TABLE)], alone, 1, pause_s=0.1)
    prompt_s = 0.01 + 500 * 2e-5
    decode_s = 49 * (0.01 + 1e-4) + 1e-8 * sum(501 + k for k in range(49))
    e2e = ServiceOutcome(played).e2e_s
    np.testing.assert_allclose(e2e, 0.004 + prompt_s + decode_s, rtol=1e-9)
    np.testing.assert_allclose(np.diff(played.workload.arrival_s), e2e[0] + 0.1, rtol=1e-9)


def test_clients_are_spread_over_replicas_and_too_long_requests_fail_by_name() -> None:
    fleet = [FleetReplica("a", RULES, TABLE), FleetReplica("b", replace(RULES, blocks=40), TABLE)]
    played = play_clients(fleet, work(), 10)
    assert set(played.failed.values()) == {TOO_LONG_HERE}
    served = int((~np.isnan(played.ledger.finish_s)).sum())
    assert served + len(played.failed) == 300
    assert np.bincount(played.instance[played.instance >= 0]).tolist()[0] == 150


def test_what_cannot_be_a_closed_loop_is_refused() -> None:
    coming = FleetReplica("a", RULES, TABLE, presences=(Presence(1.0),))
    with pytest.raises(BadInputError, match="always there"):
        play_clients([coming], work(), 4)
    with pytest.raises(BadInputError, match="1 clients for 2 replicas"):
        play_clients([FleetReplica("a", RULES, TABLE)] * 2, work(), 1)


def test_the_command_plays_clients(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("replicas:\n  - {name: a, costs: {step_s: 0.01, prompt_s: 2.0e-5, kv_blocks: 4000}}\n")
    asked = ("serve", "simulate", str(fleet), "--clients", "8", "--isl", "200", "--osl", "20")
    told = tangram(*asked, "--requests", "80", "--json").json
    assert told["clients"] == 8
    assert told["router"] == "clients"
    assert told["requests"]["completed"] == 80
    for more, words in (("--rate 3", "leave --rate"), ("--router prefix", "leave --router")):
        refused = tangram(*asked, *more.split())
        assert refused.code == 2
        assert words in refused.err
