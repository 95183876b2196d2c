"""A limit is a limit: what is done though time is over is bounded, and one Ctrl-C ends a whole command."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.limits import HARD
from tangram_sim.cli import command_clock
from tangram_sim.cli.main import app
from tangram_sim.planners.deadline import BY_LIMIT, BY_SHARE, LEAST_GRACE_S, Deadline
from tangram_sim.studies import comparison
from tests.commands import quickest

LIMIT_S, PAST_S = 0.2, 1.0


def test_grace_is_counted_from_the_end_of_the_limit_not_from_when_somebody_asks(monkeypatch):
    """Falling back twice takes no longer than once, but for a least that is worth an answer."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    deadline = Deadline(10.0)
    part = deadline.share(5.0)
    assert part.grace(0.7).left_s() == pytest.approx(0.7)  # the rest is not its own
    now[0] = 110.2
    assert deadline.over()
    assert deadline.grace(0.7).left_s() == pytest.approx(0.5)
    assert part.grace(0.7).left_s() == pytest.approx(0.5)
    now[0] = 200.0
    assert deadline.grace(0.7).left_s() == pytest.approx(LEAST_GRACE_S)
    assert deadline.grace(0.1).left_s() == pytest.approx(0.1)


def test_seconds_that_were_gone_before_count(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    deadline = Deadline(10.0, used_s=4.0)
    assert deadline.left_s() == pytest.approx(6.0)
    assert pickle.loads(pickle.dumps(deadline)).left_s() == pytest.approx(6.0)
    assert deadline.share(20.0).asked_s == 10.0
    with command_clock.since(now[0] - 1.5):
        assert command_clock.deadline(10.0).left_s() == pytest.approx(8.5)
    assert command_clock.deadline(10.0).left_s() == pytest.approx(10.0)


def test_searches_end_earlier_where_answering_will_take_longer():
    """As much as it takes beyond its CPU seconds at the pace so far; never most of the limit."""
    assert command_clock.early_s(10.0, used_s=1.2, cpu_s=1.2) == 0.0
    assert command_clock.early_s(10.0, used_s=1.0, cpu_s=1.2) == 0.0  # two processes at work
    assert command_clock.early_s(10.0, used_s=2.4, cpu_s=1.2) == pytest.approx(0.8)
    assert command_clock.early_s(1.0, used_s=2.4, cpu_s=1.2) == pytest.approx(0.3)
    assert command_clock.early_s(10.0, used_s=2.4, cpu_s=0.1) == 0.0  # too little to tell


def test_a_process_began_before_it_used_the_seconds_that_it_used():
    """And at one time, whenever it is asked; a command that is asked at once began just then."""
    told = command_clock.process_start_s()
    assert told <= time.monotonic() - time.process_time() + 0.05
    code = (
        "import time; from tangram_sim.cli.command_clock import process_start_s as started_s; "
        "print(time.monotonic() - started_s())"
    )
    before = time.monotonic()
    age_s = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert 0 < age_s <= time.monotonic() - before + 0.05


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="a clock of Linux")
def test_what_a_script_waited_for_before_it_became_the_command_is_not_of_its_limit(monkeypatch):
    """`sh -c "sleep 20; exec tangram plan ... --time-limit 10"` has ten seconds to search."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "process_time", lambda: 0.3)
    ages = []
    for waited_s in (20.0, 0.0):
        told = f"7 (sh) S {' '.join(['0'] * 18)} {int((now - waited_s - 0.5) * os.sysconf('SC_CLK_TCK'))} 0"
        monkeypatch.setattr(Path, "read_text", lambda *_, told=told, **__: told)
        ages.append(time.monotonic() - command_clock.process_start_s())
    assert ages[0] == pytest.approx(0.3, abs=0.1)
    assert 0.49 <= ages[1] < 1.5


def test_a_part_of_a_limit_that_is_over_names_the_limit_that_was_asked_for(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    deadline = Deadline(10.0)
    part = deadline.share(2.5)
    now[0] = 103.0
    assert part.over()
    assert part.findings() == [BY_SHARE(share_s=2.5, limit_s=10.0)]
    now[0] = 111.0
    assert deadline.over()
    assert part.findings() == [BY_LIMIT(limit_s=10.0)]
    assert part.why() == "time limit of 10 s"


def test_ctrl_c_ends_all_planners_of_a_comparison(monkeypatch):
    """The one at work gives its best so far; those after it are asked for want of any plan only."""
    asked = []

    def interrupted(planner, price, margin, told):
        if not asked:
            os.kill(os.getpid(), signal.SIGINT)
        asked.append(planner.name)
        while not price.deadline.over():
            time.sleep(0.001)
        return comparison.PlannerAnswer(planner.name, comparison.CANNOT, 0.0, 0.0, reason="in vain")

    monkeypatch.setattr(comparison, "answer", interrupted)
    run = CliRunner().invoke(
        app, ["compare", "gpt3-1.3b", "azure-c1", "--planners", "uniform,amp,tangram", "--seq", "512"]
    )
    assert asked == ["tangram", "uniform", "amp"]
    assert "uniform: cannot answer: in vain" in str(run.exception)


@pytest.mark.parametrize("verb", ["plan", "what-if"])
def test_verbs_keep_their_limit_where_there_is_much_to_search(verb, tmp_path):
    """By the CPU's clock, since another process may have the core: 14 nodes of three kinds, with a plan."""
    model, text = HARD["three-kinds"]
    (tmp_path / "three.yaml").write_text(text)
    line = [verb, model, str(tmp_path / "three.yaml"), "--time-limit", str(LIMIT_S), "--json"]
    line += ["--add", "p5.48xlarge:2", "--no-cache", "--jobs", "1"] if verb == "what-if" else []
    spent_s, printed = quickest(line, LIMIT_S + PAST_S)
    assert spent_s < LIMIT_S + PAST_S
    told = json.loads(printed)
    assert told["step_s" if verb == "plan" else "candidates"]


@pytest.mark.parametrize(("host", "left_s"), [("here", 3.0), ("elsewhere", 10.0)])
def test_a_deadline_goes_on_while_it_waits_for_a_process(
    host: str, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine; another one has a clock of its own."""
    now, node = [100.0], ["here"]
    monkeypatch.setattr("tangram_sim.planners.deadline.time.monotonic", lambda: now[0])
    monkeypatch.setattr("tangram_sim.planners.deadline.platform.node", lambda: node[0])
    sent = [pickle.dumps(deadline) for deadline in (Deadline(10.0), Deadline(20.0).share(10.0), Deadline())]
    now[0], node[0] = 107.0, host
    assert [pickle.loads(item).left_s() for item in sent] == [left_s, left_s, float("inf")]
    now[0] = 120.0
    assert [pickle.loads(item).over() for item in sent[:2]] == [host == "here"] * 2
