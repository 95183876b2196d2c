"""Fleets: routers, instances that come and go, prefill and decode apart, and what the command prints."""

import csv
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tangram_sim.errors import TangramError
from tangram_sim.serving.batching import BatchingRules
from tangram_sim.serving.disaggregated import KvLink, play_disaggregated
from tangram_sim.serving.fleet import (
    FAIL,
    FAST,
    LOST,
    NO_REPLICA,
    REFERENCE,
    TOO_LONG,
    FleetReplica,
    Presence,
    play,
)
from tangram_sim.serving.plain_tables import linear_table
from tangram_sim.serving.router import ROUTERS, RoundRobin, Weighted, named_router
from tangram_sim.serving.shared_link import arrivals_over
from tangram_sim.serving.synthetic import arrivals
from tangram_sim.serving.trace_file import read_trace
from tangram_sim.serving.workload import Workload, plain
from tests.commands import tangram

RULES = BatchingRules(2048, 16, 16, 400, True, "whole_prompt", "recompute", prefix_cache=True)
TABLE = linear_table(16, step_s=0.01, decode_s=1e-4, context_s=1e-7, prompt_s=5e-5)


def workload(count: int = 200, rate: float = 30.0, seed: int = 1) -> Workload:
    rng = np.random.default_rng(seed)
    work = plain(arrivals(count, rate, seed), rng.integers(1, 600, count), rng.integers(1, 80, count))
    prefix = rng.integers(-1, 6, count)
    shared = np.where(prefix >= 0, work.input_tokens // 2, 0)
    return replace(work, prefix=prefix, prefix_tokens=shared)


@pytest.mark.parametrize("lag", [0.0, 0.5])
@pytest.mark.parametrize("name", ROUTERS)
def test_both_players_under_every_router(name: str, lag: float) -> None:
    """With an instance that goes and comes back; nothing is lost on the way."""
    work = workload()
    fleet = [
        FleetReplica("a", RULES, TABLE),
        FleetReplica(
            "b", RULES, TABLE, presences=(Presence(0.0, 2.0), Presence(4.0, boot_s=0.5)), notice_s=0.2
        ),
    ]
    ran = [
        play(
            fleet,
            work,
            named_router(name, work, {0: (2.0,), 1: (1.0,), 2: (1.0,)}, [0] * 200, 7),
            engine=engine,
            lag_s=lag,
        )
        for engine in (FAST, REFERENCE)
    ]
    np.testing.assert_array_equal(ran[0].instance, ran[1].instance)
    np.testing.assert_allclose(ran[0].ledger.finish_s, ran[1].ledger.finish_s, rtol=1e-9)
    assert not np.isnan(ran[0].ledger.finish_s).any()
    processed = sum(instance.player.processed_tokens for instance in ran[0].instances)
    ledger = ran[0].ledger
    assert processed == (work.input_tokens + work.output_tokens - 1 - ledger.cached + ledger.wasted).sum()


def test_lost_requests_fail_where_nobody_sends_them_on() -> None:
    work = workload()
    fleet = [FleetReplica("a", RULES, TABLE, presences=(Presence(0.0, 2.0),))]
    found = play(fleet, work, RoundRobin(), on_loss=FAIL)
    reasons = Counter(found.failed.values())
    assert reasons.keys() == {LOST, NO_REPLICA}
    served = int((~np.isnan(found.ledger.finish_s)).sum())
    assert served + sum(reasons.values()) == len(work)
    assert np.nanmax(found.ledger.finish_s) <= 2.0


def test_requests_wait_for_an_instance_that_comes() -> None:
    work = workload(20)
    found = play(
        [FleetReplica("a", RULES, TABLE, presences=(Presence(5.0, boot_s=1.0),))], work, RoundRobin()
    )
    assert found.ledger.start_s.min() >= 6.0
    assert not found.failed


def test_what_no_replica_can_hold_is_refused() -> None:
    work = plain(np.array([0.0, 0.1]), np.array([10, 400 * 16 + 1]), np.array([5, 5]))
    found = play([FleetReplica("a", RULES, TABLE)], work, RoundRobin())
    assert found.failed == {1: TOO_LONG}


def test_equal_replicas_are_exchangeable_and_weights_are_kept() -> None:
    weights = {0: (3.0,), 1: (1.0,)}
    router = Weighted(weights, [0] * 400)
    chosen = Counter(router.choose(k, [0, 1], lambda _: 0) for k in range(400))
    assert chosen == {0: 300, 1: 100}


def test_a_link_is_shared_fairly() -> None:
    """Two transfers of 1 s together take 2 s; one that comes later gets half the rate while both last."""
    both = arrivals_over(np.array([0.0, 0.0]), np.array([1.0, 1.0]), 1.0, 0.25)
    np.testing.assert_allclose(both, [2.25, 2.25])
    late = arrivals_over(np.array([0.0, 0.5, 9.0]), np.array([1.0, 1.0, 1.0]), 1.0, 0.0)
    np.testing.assert_allclose(late, [1.5, 2.0, 10.0])


def test_prefill_and_decode_apart() -> None:
    """No output before its KV has come; both players agree; a fast link and idle pools cost nothing."""
    work = replace(workload(100), prefix=np.full(100, -1), prefix_tokens=np.zeros(100, dtype=np.int64))
    pools = (
        [FleetReplica("p", RULES, TABLE)],
        [FleetReplica("d0", RULES, TABLE), FleetReplica("d1", RULES, TABLE)],
    )
    ran = [
        play_disaggregated(*pools, KvLink(1e6, 0.01, 100.0), work, lambda _: RoundRobin(), engine=engine)
        for engine in (FAST, REFERENCE)
    ]
    np.testing.assert_allclose(ran[0].ledger.finish_s, ran[1].ledger.finish_s, rtol=1e-9)
    ledger, more = ran[0].ledger, work.output_tokens > 1
    sending = work.input_tokens * 100.0 / 1e6 + 0.01
    assert (ledger.finish_s - ledger.first_s >= sending + 0.01 * (work.output_tokens - 1) - 1e-9)[more].all()
    assert set(ran[0].instance[more]) == {1, 2}
    processed = sum(instance.player.processed_tokens for instance in ran[0].instances)
    assert processed == (work.input_tokens + work.output_tokens - 1 - ledger.cached + ledger.wasted).sum()


# Files and the command

FLEET = """\
replicas:
  - {name: small, count: 2, usd_per_hour: 1.0, costs: {step_s: 0.01, prompt_s: 5.0e-5, kv_blocks: 2000}}
  - {name: large, usd_per_hour: 3.0, costs: {step_s: 0.005, prompt_s: 2.0e-5, kv_blocks: 9000}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return file


def test_simulate_json_has_the_promised_keys_and_adds_up(fleet: Path, tmp_path: Path) -> None:
    rows = tmp_path / "requests.csv"
    told = tangram(
        *("serve", "simulate", fleet, "--rate", 20, "--requests", 300, "--isl", 200, "--osl", 30),
        *("--slo", "ttft=1,tpot=0.02", "--requests-out", rows, "--json"),
    ).json
    assert told.keys() >= {
        *("requests", "duration_s", "throughput_rps", "output_tok_s", "ttft_s", "tpot_s", "e2e_s", "queue_s"),
        *(
            "tokens",
            "kv",
            "little",
            "goodput_rps",
            "cost_usd",
            "events",
            "engine",
            "simulate_cpu_s",
            "replicas",
        ),
    }
    assert told["requests"]["arrived"] == 300 == told["requests"]["completed"]
    assert told["little"]["area"] == pytest.approx(told["little"]["sojourn"], rel=1e-9)
    assert told["cost_usd"] == pytest.approx(5.0 * max(item["up_s"] for item in told["replicas"]) / 3600)
    assert sum(item["requests"] for item in told["replicas"]) == 300
    with rows.open() as file:
        written = list(csv.DictReader(file))
    assert list(written[0]) == [
        *("request_id", "arrival_s", "replica", "input_tokens", "output_tokens", "cached_tokens"),
        *("first_token_s", "finish_s", "preemptions"),
    ]
    mean = np.mean([float(row["finish_s"]) - float(row["arrival_s"]) for row in written])
    assert told["e2e_s"]["mean"] == pytest.approx(mean)


def test_both_engines_print_the_same(fleet: Path) -> None:
    arguments = (
        "serve",
        "simulate",
        fleet,
        "--rate",
        20,
        "--requests",
        100,
        "--router",
        "least_outstanding",
        "--json",
    )
    item, two = (tangram(*arguments, "--engine", engine).json for engine in ("fast", "reference"))
    for key in ("requests", "tokens", "kv"):
        assert item[key] == two[key]
    for key in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
        assert item[key] == pytest.approx(two[key], rel=1e-9)


def test_overload_is_said(fleet: Path) -> None:
    told = tangram(
        "serve", "simulate", fleet, "--rate", 4000, "--requests", 4000, "--osl", 200, "--json"
    ).json
    assert told["overloaded"]
    found = re.match(r"cannot keep up: serves ([\d.,]+) of ([\d.,]+) requests/s", told["verdict"])
    assert found
    finished, arriving = (float(group.replace(",", "")) for group in found.groups())
    assert arriving == pytest.approx(told["offered_rps"], rel=1e-3)
    # While all come no output is through yet: what is finished then says nothing of what would be.
    assert finished == pytest.approx(told["throughput_rps"], rel=0.4)


def test_requests_beyond_the_models_context_are_named(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("model: llama3-8b\nreplicas: [{gpu: A100-SXM4-80GB}]\n")
    asked = ("serve", "simulate", file, "--rate", 1, "--requests", 3, "--json")
    assert not tangram(*asked, "--isl", 100).json["notes"]
    assert "3 requests are longer" in tangram(*asked, "--isl", 200_000).json["notes"][-1]


def test_availability_over_time(fleet: Path, tmp_path: Path) -> None:
    spot = tmp_path / "spot.csv"
    spot.write_text("time_s,gpu,count\n0,small,2\n3,small,0\n6,small,1\n")
    told = tangram("serve", "simulate", fleet, "--rate", 20, "--requests", 200, "--spot", spot, "--json").json
    assert told["requests"]["completed"] == 200
    assert [item["name"][:3] for item in told["replicas"]] == ["0.0", "0.0", "0.1", "1: "]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival_s,input_tokens,output_tokens\n0,5,0\n", "line 2, output_tokens: 0 given"),
        ("arrival_s,input_tokens,output_tokens\n-1,5,2\n", "before time 0"),
        ("arrival_s,input_tokens,output_tokens\n0,5,2\n1,,2\n", "line 3, input_tokens: '' is no number"),
        ("arrival_s,input_tokens,output_tokens\n0,5\n", "line 2: 2 cells"),
        ("arrival_s,input_tokens,output_tokens\n", "no requests"),
        ("arrival_s,tokens\n0,5\n", "no column input_tokens"),
        ("input_tokens,output_tokens\n3,5\n", "lengths only"),
        ("arrival_s,input_tokens,output_tokens\nnan,5,2\n", "not a finite number"),
    ],
)
def test_bad_traces_are_refused_in_words(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(TangramError, match=words):
        read_trace(file)


def test_unsorted_rows_are_sorted_and_said_and_hits_are_read(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    head = "arrival_s,input_tokens,output_tokens,prefix_id,prefix_tokens,session_id"
    file.write_text(f"{head}\n5,10,2,,4,s1\n1,20,3,p,8,\n")
    found = read_trace(file)
    assert found.arrival_s.tolist() == [1.0, 5.0]
    assert found.keeps.tolist() == [False, True]
    assert found.prefix_tokens.tolist() == [8, 4]
    assert "sorted" in found.notes[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("replicas: []", "replicas"),
        ("replicas: [{gpu: T4}]", "`model` is missing"),
        ("replicas: [{costs: {step_s: 0, kv_blocks: 4}}]", "step_s"),
        ("replicas: [{costs: {step_s: 1, kv_blocks: 4}, up: [[5, 3]]}]", "must go after it came"),
        ("replicas: [{costs: {step_s: 1, kv_blocks: 4}, role: prefill}]", "others for decode"),
        ("replicas: [{colour: red}]", "replicas.0.colour: unknown key; known are name, model, count"),
        ("replicas: [{gpu: T4, contt: 2}]", "did you mean count?"),
        ("replicas: [{gpu: T4, engine: sglang}]", "write it beside `replicas`"),
        ("types: [[512, 128], {prompt: 1}]", "types.1: prompt and output tokens above zero are wanted"),
    ],
)
def test_bad_fleets_are_refused_in_words(change: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(change)
    shown = tangram("serve", "simulate", file, "--rate", 1)
    assert shown.code == 2
    assert words in shown.err


def test_a_workload_is_described(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    rows = [f"{0.5 * k},{100 + 900 * (k % 2)},{20 + 180 * (k % 4 == 0)}" for k in range(100)]
    file.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows))
    told = tangram("serve", "workload", "describe", file, "--json").json
    assert (told["requests"], told["rate_rps"]) == (100, pytest.approx(2.0))
    assert told["burstiness_cv"] == pytest.approx(0.0, abs=1e-9)
    assert sum(item["share"] for item in told["types"]) == pytest.approx(1.0)
    assert json.dumps(told)
    assert tangram("serve", "workload", "describe", file).code == 0


@pytest.mark.parametrize("engine", [FAST, REFERENCE])
@pytest.mark.parametrize("name", ROUTERS)
def test_no_request_reaches_an_engine_before_all_that_came_with_it_or_before_it_are_read(
    name: str, engine: str
) -> None:
    """50 at once, 4 ms each, are there after 0.2 s, as is one that comes meanwhile; another after 4 ms."""
    work = plain(np.array([0.0] * 50 + [0.01, 3.0]), np.full(52, 100), np.full(52, 10))
    fleet = [FleetReplica("a", RULES, replace(TABLE, request_s=0.004))]
    ran = play(fleet, work, named_router(name, work, {0: (1.0,)}, [0] * 52, 7), engine=engine)
    np.testing.assert_allclose(ran.ledger.ready_s, [0.2] * 51 + [3.004], rtol=1e-12)
