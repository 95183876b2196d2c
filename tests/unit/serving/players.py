"""Small random cases for both players, and what they must agree on."""

import random
from dataclasses import dataclass, fields, replace

import numpy as np

from tangram_sim.serving.batching import BatchingRules
from tangram_sim.serving.fast import FastReplica, FastRun
from tangram_sim.serving.reference import ReferenceReplica
from tangram_sim.serving.replica import ReplicaPlayer, RequestLedger
from tangram_sim.serving.stepcost import StepTable
from tangram_sim.serving.workload import Workload

POLICIES = (
    *(("whole_prompt", "recompute"),) * 3,
    *(("reserve_ratio", "retract"),) * 2,
    ("reserve_longest", "never"),
    ("whole_prompt", "retract"),
    ("reserve_ratio", "recompute"),
)


@dataclass(frozen=True)
class Case:
    """Requests on one replica: some come with their KV, it may vanish, a router looks in at `looks`."""

    workload: Workload
    rules: BatchingRules
    table: StepTable
    imported: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
    halt_s: float
    looks: list[float]
    held: int = 0  # of the requests: the last ones, of clients who wait for others to be served
    pause_s: float = 0.0


def table_of(chance: random.Random, seats: int, window: int) -> StepTable:
    batch = np.arange(seats + 1.0)
    some = (batch > 0).astype(float)
    bucket = 0.01 + 0.0007 * np.ceil(batch / 4) * 4  # batches of a multiple of 4, as with captured graphs
    return StepTable(
        decode_s=some * bucket * chance.uniform(0.5, 2),
        context_s=some * 1e-6 * chance.uniform(0.1, 5),
        window_s=some * (3e-6 if window else 0.0),
        window_tokens=window,
        row_knots=np.array([1.0, 64, 256, 2048, 8192]),
        rows_s=np.array([0.012, 0.013, 0.02, 0.1, 0.5]) * chance.uniform(0.5, 2),
        score_s=1e-9 * chance.uniform(0, 30),
        mixed_context_s=1e-6 * chance.uniform(0, 3),
        mixed_window_s=2e-6 if window else 0.0,
        beside_s=some * 1e-5 * chance.uniform(0, 3) * batch,
        # Of every second table a bound that some iterations meet and others do not.
        least_s=chance.choice([0.0, 1.0]) * np.array([1e-3, 5e-5, 1e-9, 5e-5, 1e-6, 1e-9, 1e-6]),
    )


def random_case(seed: int) -> Case:
    chance = random.Random(seed)
    count, seats, block = (
        chance.randint(1, 40),
        chance.choice([1, 2, 4, 16, 64]),
        chance.choice([1, 2, 4, 16]),
    )
    span = chance.choice([0.1, 1, 5])
    arrival = np.sort(np.array([chance.uniform(0, span) for _ in range(count)]))
    inputs = np.array([chance.randint(1, chance.choice([5, 60, 400])) for _ in range(count)])
    outputs = np.array([chance.choice([1, 2, chance.randint(1, 100)]) for _ in range(count)])
    texts = chance.choice([0, 0, 1, 3])
    prefix = np.array([chance.randrange(-1, texts) if texts else -1 for _ in range(count)])
    shared = np.array(
        [chance.randint(0, n) if text >= 0 else 0 for n, text in zip(inputs, prefix, strict=True)]
    )
    keeps = np.array([bool(text >= 0 and chance.random() < 0.4) for text in prefix])
    cached = np.array([chance.randint(0, n) if chance.random() < 0.1 else 0 for n in inputs])
    work = Workload(arrival, inputs, outputs, prefix, shared, keeps, cached)
    longest = -(-int((inputs + outputs - 1).max()) // block)
    admission, exhaustion = chance.choice(POLICIES)
    rules = BatchingRules(
        budget_tokens=max(seats, chance.choice([1, 8, 64, 512, 8192])),
        seats=seats,
        block_tokens=block,
        blocks=longest + chance.choice([0, 0, 1, 5, 50, 1000]),
        mixed=chance.random() < 0.6,
        admission=admission,
        exhaustion=exhaustion,
        prefix_cache=chance.random() < 0.7,
    )
    some = chance.random() < 0.3
    imported = np.array([some and chance.random() < 0.5 for _ in range(count)]) & (outputs > 1)
    halt_s = chance.uniform(0.05, 6) if chance.random() < 0.15 else float("inf")
    looks = [chance.uniform(0, 8) for _ in range(chance.choice([0, 0, 5]))]
    table = table_of(chance, seats, chance.choice([0, 0, 30]))
    held = chance.randrange(count) if chance.random() < 0.25 else 0
    if held:  # the other requests are there from the beginning
        work = replace(work, arrival_s=np.zeros(count))
    pause_s = chance.choice([0.0, 0.003])
    rules = replace(rules, recv_interval=chance.choice([1, 1, 2, 7, 30, 1500]))
    return Case(work, rules, table, imported, halt_s, looks, held, pause_s)


@dataclass(frozen=True)
class Ran:
    ledger: RequestLedger
    replica: ReplicaPlayer
    left: list[int]
    finished_tokens: list[int]


def run(case: Case, *, fast: bool) -> Ran:
    work, ledger = case.workload, RequestLedger.empty(len(case.workload))
    ledger.imported[:] = case.imported
    ledger.generated[:] = case.imported
    replica: ReplicaPlayer
    shared = FastRun(work, ledger)
    if fast:
        replica = FastReplica(case.rules, case.table, work, ledger, shared)
    else:
        replica = ReferenceReplica(case.rules, case.table, work, ledger)
    replica.halt_at(case.halt_s)
    sent = len(work) - case.held
    replica.hold(np.arange(sent, len(work)), case.pause_s)
    moments = [(float(at), 0, k) for k, at in enumerate(work.arrival_s[:sent])]
    moments += [(at, 1, -1) for at in case.looks]
    seen = []
    for at, look, request in sorted(moments):
        if case.looks:
            replica.advance(at)
        if look:
            seen.append(replica.finished_tokens(at))
        else:
            replica.push(request, at)
    replica.advance(float("inf"))
    left = replica.unfinished()
    if fast:
        shared.write()
    return Ran(ledger, replica, left, seen)


def assert_same(case: Case) -> None:
    """Both players: the same finishes in the same order, the same counts, times within 1e-9."""
    slow, fast = run(case, fast=False), run(case, fast=True)
    for field in fields(RequestLedger):
        mine, other = getattr(fast.ledger, field.name), getattr(slow.ledger, field.name)
        if mine.dtype == np.float64:
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9, err_msg=field.name)
        else:
            np.testing.assert_array_equal(mine, other, err_msg=field.name)
    assert fast.left == slow.left
    assert fast.finished_tokens == slow.finished_tokens
    assert fast.replica.peak_blocks == slow.replica.peak_blocks
    assert fast.replica.processed_tokens == slow.replica.processed_tokens
    assert fast.replica.busy_s == np.float64(slow.replica.busy_s) or np.isclose(
        fast.replica.busy_s, slow.replica.busy_s, rtol=1e-9
    )
