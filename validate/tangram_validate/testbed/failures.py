"""Failures for real: a rank is killed in mid-run; restart from a checkpoint, or go on with fewer replicas.

Data-parallel ranks (torch.distributed, gloo) train a small network; rank 0 writes checkpoints. Runs without
failures give the constants; the replay behind `tangram replay-trace` predicts the failing runs from them,
account by account, and both stand side by side. Ranks that are killed leave their logs.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tangram_sim.availability import Availability, NodeEvent
from tangram_sim.reliability.spot.engine import Outcome, Policy, replay
from tangram_sim.reliability.spot.policies import Restart, Shrink
from tangram_sim.reliability.spot.speeds import LayoutTable
from tangram_sim.reliability.spot.transitions import FixedTransitions
from tangram_validate.testbed.errors import RankDiedError

ACCOUNTS = ("useful", "checkpoint", "lost_work", "detection", "restart", "total")
_PATIENCE_S = 180.0  # for any run: ranks that hang are ended
Event = tuple[float, str, int]  # time of day, what, step


@dataclass(frozen=True, slots=True)
class FailingRun:
    """Settings of a run: ranks, steps in all and between checkpoints, which rank is killed in which step."""

    ranks: int = 3
    steps: int = 60
    every: int = 10
    killed_at: int = 47
    victim: int = 1
    width: int = 512
    batch: int = 384  # rows of a step, shared evenly by the ranks there are
    row_s: float = 0.0015  # that an emulated GPU computes on a row


@dataclass(frozen=True, slots=True)
class FailureConstants:
    """Seconds of steps, checkpoints and starts, measured in runs without failures."""

    step_s: float
    fewer_step_s: float  # with one rank less
    checkpoint_s: float
    start_s: float  # ending ranks, and from launching others until their first step
    join_s: float  # forming a group among ranks that run


@dataclass(frozen=True, slots=True)
class ScoredAccount:
    """One account of one policy, predicted and measured. Seconds."""

    policy: str
    account: str
    predicted_s: float
    measured_s: float


def run_failures(run: FailingRun, say: Callable[[str], None]) -> tuple[FailureConstants, list[ScoredAccount]]:
    """Measure the constants, then both policies for real, and predict them."""
    with tempfile.TemporaryDirectory(prefix="tangram-failures-") as scratch:
        folder = Path(scratch)
        say("without failures")
        whole = _launched(folder / "whole", run, run.ranks)
        say("with one rank less")
        fewer = _launched(folder / "fewer", run, run.ranks - 1)
        say("a rank is killed, all restart from the checkpoint")
        place = folder / "restart"
        before = _launched(place, run, run.ranks, kill=True)
        restarted = sorted(before + _launched(place, run, run.ranks))
        say("a rank is killed, the others go on")
        shrunk = _launched(folder / "shrink", run, run.ranks, kill=True, shrink=True)
    constants = FailureConstants(
        _steps_s(whole),
        _steps_s(fewer),
        _saves_s(whole),
        _first(whole, "ready")
        - _first(whole, "launched")
        + _first(whole, "stopped")
        - _last(whole, "formed"),
        _last(whole, "formed") - _last(whole, "forming"),
    )
    scored = []
    for policy, events in (("restart", restarted), ("shrink", shrunk)):
        predicted, measured = predict(policy, run, constants), _accounts(events, run)
        scored += [ScoredAccount(policy, name, predicted[name], measured[name]) for name in ACCOUNTS]
    return constants, scored


def predict(policy: str, run: FailingRun, constants: FailureConstants) -> dict[str, float]:
    """Seconds by account until the last step is done, by the replay of one loss.

    A restart finds a spare, the machine of the killed process; a loss is noticed half a step later in the
    mean, at the collective of the running step.
    """
    restart = policy == "restart"
    rates = {(run.ranks, 1): 1 / constants.step_s, (run.ranks - 1, 1): 1 / constants.fewer_step_s}
    table = LayoutTable({key: rate for key, rate in rates.items() if not restart or key[0] == run.ranks}, 1.0)
    costs = FixedTransitions(
        restart_s=constants.start_s,
        migrate_s=constants.join_s,
        detect_s=constants.step_s / 2,
        block_s=constants.checkpoint_s,
        every_steps=run.every,
        keeps_all=False,
    )
    saves = run.killed_at // run.every
    at = constants.start_s + (run.killed_at + 0.5) * constants.step_s + saves * constants.checkpoint_s
    nodes = [f"n{index}" for index in range(run.ranks + (1 if restart else 0))]
    events = (*(NodeEvent(0.0, "add", node) for node in nodes), NodeEvent(at, "remove", nodes[0]))
    low, high = at, at + 1e4 * constants.step_s + 100 * constants.start_s
    for _ in range(60):  # when the last step is done
        middle = (low + high) / 2
        if (
            replay(Availability(events, middle), _policy(restart, run, table, costs), costs).samples
            < run.steps
        ):
            low = middle
        else:
            high = middle
    found: Outcome = replay(Availability(events, high), _policy(restart, run, table, costs), costs)
    accounts = dict(found.accounts)
    worked = accounts["useful"] + accounts["degraded"]
    # The first start is not counted.
    changed = accounts["restart"] + accounts["migration"] - constants.start_s
    return {
        "useful": worked,
        "checkpoint": accounts["checkpoint"],
        "lost_work": accounts["lost_work"],
        "detection": accounts["detection"],
        "restart": changed,
        "total": found.duration_s - constants.start_s,
    }


def _policy(restart: bool, run: FailingRun, table: LayoutTable, costs: FixedTransitions) -> Policy:
    """The policy, before any change; shrinking starts from all ranks."""
    if restart:
        return Restart(table, costs)
    whole = (run.ranks, 1)
    return Shrink(table, costs, plan=table.option((("", run.ranks),), whole, table.rates[whole]))


def _launched(
    folder: Path, run: FailingRun, ranks: int, kill: bool = False, shrink: bool = False
) -> list[Event]:
    """Start all ranks, wait for their end, and read what they logged since.

    Raises RankDiedError where a rank that was not killed fails, with the end of what it said.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = {path: path.stat().st_size for path in folder.glob("rank*.jsonl")}
    port = _free_port()
    launched = time.time()
    ended: list[tuple[int, int, str]] = []
    processes = []
    for rank in range(ranks):
        setting = {
            **asdict(run),
            "rank": rank,
            "ranks": ranks,
            "port": port,
            "kill": kill,
            "shrink": shrink,
            "folder": str(folder),
        }
        path = folder / f"setting{rank}.json"
        path.write_text(json.dumps(setting), encoding="utf-8")
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "tangram_validate.testbed.failing_rank", str(path)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
        )
    try:
        for rank, process in enumerate(processes):
            left = max(1.0, launched + _PATIENCE_S - time.time())
            _, said = process.communicate(timeout=left)
            ended.append((rank, process.returncode, said))
    except subprocess.TimeoutExpired:
        raise RankDiedError(f"ranks did not end within {_PATIENCE_S:.0f} s and were ended") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    stopped = time.time()
    for rank, code, said in ended:
        expected = (-9,) if kill and rank == run.victim else (0, 3) if kill and not shrink else (0,)
        if code not in expected:
            raise RankDiedError(f"rank {rank} ended with code {code}: {said.strip()[-300:]}")
    found: list[Event] = [(launched, "launched", -1), (stopped, "stopped", -1)]
    for path in sorted(folder.glob("rank*.jsonl")):
        with path.open(encoding="utf-8") as file:
            file.seek(known.get(path, 0))
            rows = [json.loads(line) for line in file]
        found += [(row["time_s"], f"{row['event']}", row["step"]) for row in rows]
    return sorted(found)


def _free_port() -> int:
    """A port that is free, and whose successor is."""
    for _ in range(50):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
    raise RankDiedError("no two free ports beside each other on 127.0.0.1")


def _first(events: list[Event], name: str) -> float:
    return min(time_s for time_s, event, _ in events if event == name)


def _last(events: list[Event], name: str) -> float:
    return max(time_s for time_s, event, _ in events if event == name)


def _ends(events: list[Event], name: str) -> dict[int, float]:
    """The last time that any rank logged an event of each step."""
    found: dict[int, float] = {}
    for time_s, event, step in events:
        if event == name:
            found[step] = max(found.get(step, 0.0), time_s)
    return found


def _steps_s(events: list[Event]) -> float:
    """The median step: from its first start to its last end."""
    begun: dict[int, float] = {}
    for time_s, event, step in events:
        if event == "step":
            begun[step] = min(begun.get(step, time_s), time_s)
    return median(end - begun[step - 1] for step, end in _ends(events, "done").items() if step - 1 in begun)


def _saves_s(events: list[Event]) -> float:
    done, saved = _ends(events, "done"), _ends(events, "saved")
    return median(saved[step] - done[step] for step in saved)


def _accounts(events: list[Event], run: FailingRun) -> dict[str, float]:
    """Measured seconds by account, from the first step to the last."""
    killed, noticed = _last(events, "killed"), _last(events, "noticed")
    again = max(time_s for time_s, event, _ in events if event == "ready")
    begin, end = _ready_once(events, killed), _last(events, "end")
    resumed = max(step for time_s, event, step in events if event == "ready" and time_s > killed)
    saves = _checkpoints(events)
    before = sum(seconds for at, seconds in saves if at <= killed)
    after = sum(seconds for at, seconds in saves if at > killed)
    worked = (killed - begin - before) + (end - again - after)
    kept_since = max((at for at, _ in saves if at <= killed), default=begin)
    running = max(
        (
            time_s
            for time_s, event, step in events
            if event == "step" and step == run.killed_at and time_s <= killed
        ),
        default=killed,
    )
    lost = killed - (kept_since if resumed < run.killed_at else running)
    return {
        "useful": worked - lost,
        "checkpoint": before + after,
        "lost_work": lost,
        "detection": noticed - killed,
        "restart": again - noticed,
        "total": end - begin,
    }


def _ready_once(events: list[Event], killed: float) -> float:
    """Time at which the last rank was first ready; events from `killed` on are left out."""
    return max(time_s for time_s, event, _ in events if event == "ready" and time_s < killed)


def _checkpoints(events: list[Event]) -> list[tuple[float, float]]:
    """(end, seconds) of every checkpoint that all ranks passed."""
    found = []
    saved: dict[int, list[float]] = {}
    for time_s, event, step in events:
        if event == "saved":
            saved.setdefault(step, []).append(time_s)
    done = {step: [t for t, event, s in events if event == "done" and s == step] for step in saved}
    for step, times in saved.items():
        end = max(times)
        found.append((end, end - max(t for t in done[step] if t <= end)))
    return sorted(found)
