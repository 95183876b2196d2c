"""Logs of requests: every request's arrival, lengths and times, held against the same requests played.

A log is a table with a row for each request (`arrival_s, input_toks, output_toks`, some of `ttft_ms, tpot_ms,
e2e_ms`). Its requests are grouped by what served them; each group is one measured run, whose means and 99th
percentiles the simulator is asked for.
"""

from collections.abc import Sequence

import numpy as np

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.batching import batching_rules
from tangram_sim.serving.fleet import FleetReplica, play
from tangram_sim.serving.outcome import ServiceOutcome
from tangram_sim.serving.router import RoundRobin
from tangram_sim.serving.stepcost import StepTable
from tangram_sim.serving.workload import Floats, plain
from tangram_validate.serving.lengths import sharegpt_lengths
from tangram_validate.serving.replicas import DeploymentRuns
from tangram_validate.serving.runs import SHAREGPT, LoggedRequest, ServedRun

NEEDED = ("arrival_s", "input_toks", "output_toks")
# What served a request: rows that agree in these are one run.
SETUP = (
    *("gpu", "model", "tp", "pp", "vllm", "engine", "engine_version", "precision"),
    *("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "source"),
)
TIMES = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2e"}
_P99 = 99.0


def is_request_log(columns: set[str]) -> bool:
    """Whether a table with these columns has a row for each request."""
    return set(NEEDED) <= columns and bool(TIMES.keys() & columns)


def by_setup(rows: Sequence[dict[str, str]]) -> list[list[tuple[int, dict[str, str]]]]:
    """(line, row) of every request, grouped by what served it, in order of lines."""
    groups: dict[tuple[str, ...], list[tuple[int, dict[str, str]]]] = {}
    for line, row in enumerate(rows, start=2):
        key = tuple(row.get(name, "") for name in SETUP)
        groups.setdefault(key, []).append((line, row))
    return list(groups.values())


def summary(seconds: Sequence[float], metric: str) -> dict[str, float]:
    """The mean of a metric and its 99th percentile; of requests without it nothing."""
    if not len(seconds):
        return {}
    return {metric: float(np.mean(seconds)), f"{metric}_p99": float(np.percentile(seconds, _P99))}


def replayed(replica: DeploymentRuns, hwdb: Hwdb) -> dict[str, Floats]:
    """Every run's requests played on its replica: means and percentiles by metric. Arrays over the runs."""
    return _columns(
        [
            _played(replica, run.requests, _table(replica, len(run.requests), hwdb), hwdb)
            for run in replica.runs
        ]
    )


def bursts(replica: DeploymentRuns, hwdb: Hwdb) -> dict[str, Floats]:
    """The same of so many equal requests at once, or at an even rate, where a run says no more of them."""
    told = []
    table = _table(replica, max(int(run.sent or run.clients) for run in replica.runs), hwdb)
    for run in replica.runs:
        apart = 1.0 / run.rate if run.rate else 0.0
        count = int(run.sent or run.clients)
        prompts, outputs = np.full(count, run.isl), np.full(count, run.osl)
        if run.dataset == SHAREGPT:
            prompts, outputs = sharegpt_lengths(count, run.isl, run.osl)
        sent = [
            LoggedRequest(k * apart, max(round(isl), 1), max(round(osl), 1))
            for k, (isl, osl) in enumerate(zip(prompts.tolist(), outputs.tolist(), strict=True))
        ]
        told.append(_played(replica, sent, table, hwdb))
    return _columns(told)


def _columns(told: Sequence[dict[str, float]]) -> dict[str, Floats]:
    names = dict.fromkeys(name for item in told for name in item)
    return {name: np.array([item.get(name, np.nan) for item in told]) for name in names}


def _table(replica: DeploymentRuns, requests: int, hwdb: Hwdb) -> StepTable:
    """The step table for at most so many requests at once."""
    rules = batching_rules(replica.deployment.engine, replica.capacity(hwdb))
    return replica.cost.table(min(rules.seats, requests), rules.budget_tokens)


def _played(
    replica: DeploymentRuns, requests: Sequence[LoggedRequest], table: StepTable, hwdb: Hwdb
) -> dict[str, float]:
    rules = batching_rules(replica.deployment.engine, replica.capacity(hwdb))
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    work = plain(
        np.array([logged_request.arrival_s for logged_request in ordered]),
        np.array([logged_request.input_tokens for logged_request in ordered]),
        np.array([logged_request.output_tokens for logged_request in ordered]),
    )
    fleet_replica = FleetReplica("log", rules, table)
    outcome = ServiceOutcome(play([fleet_replica], work, RoundRobin()))
    tokens = sum(request.output_tokens for request in requests)
    return {
        "output_tok_s": outcome.rate(tokens),
        **summary(outcome.ttft_s.tolist(), "ttft"),
        **summary(outcome.tpot_s[outcome.several].tolist(), "tpot"),
        **summary(outcome.e2e_s.tolist(), "e2e"),
    }


def weight(run: ServedRun) -> int:
    """Rows of the table that a run stands for."""
    return max(1, len(run.requests))
