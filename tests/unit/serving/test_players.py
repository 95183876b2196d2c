"""The two players of a replica agree, and keep the laws of queues, tokens and blocks."""

from dataclasses import replace

import numpy as np
import pytest

from tangram_sim.serving.batching import BatchingRules
from tangram_sim.serving.fleet import FAST, REFERENCE, FleetReplica, PlayedService, play
from tangram_sim.serving.outcome import ServiceOutcome, Slo
from tangram_sim.serving.plain_tables import linear_table
from tangram_sim.serving.router import RoundRobin
from tangram_sim.serving.stepcost import StepTable
from tangram_sim.serving.synthetic import arrivals
from tangram_sim.serving.workload import Workload, plain
from tests.unit.serving.players import assert_same, random_case, run
from tests.unit.serving.services import assert_same_service, random_service


@pytest.mark.parametrize("seed", range(10))
def test_fast_equals_reference(seed: int) -> None:
    """Preemption, prefix cache, KV from elsewhere, instances that vanish; 20 cases each."""
    for case in range(20 * seed, 20 * seed + 20):
        assert_same(random_case(case))


def test_fast_equals_reference_on_services() -> None:
    """Routers, instances that come and go, prefill and decode apart; `agreement` tries thousands."""
    ran = [(service, assert_same_service(service)) for service in map(random_service, range(60))]
    assert sum(service.link is not None for service, _ in ran) > 10
    assert sum(bool(played.failed) for _, played in ran) > 5
    assert sum(int(played.ledger.preemptions.sum()) for _, played in ran) > 5


def test_the_cases_try_what_they_are_for() -> None:
    ran = [(case, run(case, fast=True)) for case in map(random_case, range(200))]
    assert sum(int(item.ledger.preemptions.sum()) for _, item in ran) > 20
    assert sum(int(item.ledger.cached.sum()) for _, item in ran) > 1000
    assert sum(bool(item.left) for _, item in ran) > 10
    assert sum(bool(case.imported.any()) for case, _ in ran) > 20
    assert sum(case.held for case, _ in ran) > 100


@pytest.mark.parametrize("seed", range(4))
def test_tokens_add_up_and_blocks_stay_within_capacity(seed: int) -> None:
    """Worked on = prompts + outputs but the last, less what was cached, and what was worked on in vain."""
    for number in range(50 * seed, 50 * seed + 50):
        case = replace(random_case(number), halt_s=float("inf"))
        case = replace(case, imported=np.zeros_like(case.imported))
        ran, work = run(case, fast=True), case.workload
        assert not np.isnan(ran.ledger.finish_s).any()
        wanted = work.input_tokens + work.output_tokens - 1 - ran.ledger.cached + ran.ledger.wasted
        assert ran.replica.processed_tokens == wanted.sum()
        assert ran.replica.peak_blocks <= case.rules.blocks
        assert (ran.ledger.generated == work.output_tokens).all()
        assert (ran.ledger.start_s >= ran.ledger.ready_s - 1e-9).all()
        sent = slice(len(work) - case.held)
        np.testing.assert_array_equal(ran.ledger.ready_s[sent], work.arrival_s[sent])
        assert (ran.ledger.first_s > ran.ledger.start_s).all()
        assert (ran.ledger.finish_s >= ran.ledger.first_s).all()


# Laws of queues

WIDE = BatchingRules(10**6, 4096, 16, 10**7, True, "whole_prompt", "recompute", prefix_cache=False)


def played(
    table: StepTable, rules: BatchingRules, work: Workload, replicas: int = 1, engine: str = FAST
) -> PlayedService:
    fleet = [FleetReplica(f"r{k}", rules, table) for k in range(replicas)]
    return play(fleet, work, RoundRobin(), engine=engine)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "count"), [(0.3, 200_000), (0.6, 400_000), (0.9, 1_200_000)])
def test_one_seat_is_the_queue_m_d_1(load: float, count: int) -> None:
    """Outputs of one token, one seat: mean wait rho D / (2 (1 - rho)) (Pollaczek and Khinchine)."""
    work = plain(arrivals(count, load, seed=3), np.full(count, 10), np.ones(count, dtype=np.int64))
    waits = ServiceOutcome(played(linear_table(1, step_s=1.0), replace(WIDE, seats=1), work)).queue_s
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.02)
    # Lindley's recursion, W' = max(0, W + 1 - gap), unrolled.
    drift = np.concatenate([[0.0], np.cumsum(1.0 - np.diff(work.arrival_s))])
    np.testing.assert_allclose(waits, drift - np.minimum.accumulate(drift), atol=1e-6)


def test_constant_steps_and_endless_seats_are_the_queue_m_g_infinity() -> None:
    """Nobody waits but for the iteration under way: number in system = rate x time in it."""
    count, rate, step = 40_000, 50.0, 1e-3
    outputs = np.random.default_rng(5).geometric(1 / 100, count)
    work = plain(arrivals(count, rate, seed=4), np.ones(count, dtype=np.int64), outputs)
    outcome = ServiceOutcome(played(linear_table(4096, step_s=step), WIDE, work))
    assert outcome.e2e_s.mean() == pytest.approx(step * (outputs.mean() + 0.5), rel=0.02)
    area, sojourn = outcome.little()
    assert area == pytest.approx(sojourn, rel=1e-9)
    assert area / work.span_s == pytest.approx(rate * step * (outputs.mean() + 0.5), rel=0.03)


def test_saturated_throughput_is_the_closed_form() -> None:
    """All at once, equal requests: full batches of `seats` one after the other."""
    seats, count, inputs, outputs = 8, 800, 100, 50
    table = linear_table(seats, step_s=0.01, decode_s=1e-3, context_s=1e-6, prompt_s=1e-4)
    work = plain(np.zeros(count), np.full(count, inputs), np.full(count, outputs))
    got = ServiceOutcome(played(table, replace(WIDE, seats=seats), work)).duration_s
    contexts = sum(seats * (inputs + 1 + k) for k in range(outputs - 1))
    batch = (outputs - 1) * (0.01 + seats * 1e-3) + 1e-6 * contexts + 0.01 + seats * inputs * 1e-4
    assert got == pytest.approx(count / seats * batch, rel=0.01)


def test_times_scale_with_costs_and_arrivals() -> None:
    work = plain(arrivals(500, 20.0, seed=1), np.full(500, 300), np.full(500, 40))
    table = linear_table(64, step_s=0.01, decode_s=1e-4, context_s=1e-7, prompt_s=5e-5)
    rules = replace(WIDE, seats=64, blocks=600)
    slower = linear_table(64, step_s=0.02, decode_s=2e-4, context_s=2e-7, prompt_s=1e-4)
    played_service = played(table, rules, work)
    two = played(slower, rules, replace(work, arrival_s=2 * work.arrival_s))
    np.testing.assert_allclose(two.ledger.finish_s, 2 * played_service.ledger.finish_s, rtol=1e-9)


@pytest.mark.parametrize("engine", [FAST, REFERENCE])
def test_two_replicas_are_two_runs(engine: str) -> None:
    count = 120
    rng = np.random.default_rng(9)
    work = plain(arrivals(count, 30.0, seed=2), rng.integers(1, 400, count), rng.integers(1, 60, count))
    table = linear_table(16, step_s=0.01, prompt_s=1e-4, context_s=1e-6)
    rules = replace(WIDE, seats=16, blocks=200)
    both = played(table, rules, work, replicas=2, engine=engine)
    for part in (0, 1):
        mine = np.arange(part, count, 2)
        alone = plain(work.arrival_s[mine], work.input_tokens[mine], work.output_tokens[mine])
        played_service = played(table, rules, alone, engine=engine)
        np.testing.assert_allclose(both.ledger.finish_s[mine], played_service.ledger.finish_s, rtol=1e-12)


def test_a_faster_replica_finishes_no_later_without_preemption() -> None:
    rng = np.random.default_rng(11)
    work = plain(arrivals(300, 20.0, seed=6), rng.integers(1, 500, 300), rng.integers(1, 80, 300))
    ends = [
        played(linear_table(32, step_s=step, prompt_s=1e-4), replace(WIDE, seats=32), work).end_s
        for step in (0.02, 0.015, 0.01, 0.005)
    ]
    assert ends == sorted(ends, reverse=True)


def test_good_requests_keep_both_limits() -> None:
    work = plain(np.array([0.0, 0.0]), np.array([10, 10]), np.array([1, 100]))
    outcome = ServiceOutcome(played(linear_table(4, step_s=0.1), replace(WIDE, seats=4), work))
    assert outcome.good(Slo()) == 2
    assert outcome.good(Slo(tpot_s=0.05)) == 1  # of the request with one token nothing is asked
    assert outcome.good(Slo(ttft_s=0.05)) == 0
