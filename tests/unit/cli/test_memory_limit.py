"""`--memory-limit`: a search ends there with the best plan so far; what grows past it ends with a message."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tangram_sim import memory_limit
from tangram_sim.errors import BadInputError
from tangram_sim.memory_limit import bytes_of, free_bytes, reached, used_bytes, watched
from tests.commands import tangram


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 2**32), ("4g", 2**32), ("512MB", 2**29), ("1.5T", 1.5 * 2**40), ("1073741824", 2**30)],
)
def test_a_limit_is_read_with_its_unit(text: str, size: float) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-4G", "nan", "1M", "inf", "1e99", "4X"])
def test_what_is_no_limit_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInputError, match="4G"):
        bytes_of(text)
    done = tangram("plan", "gpt3-350m", "azure-c1", "--memory-limit", text)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_memory_of_processes_that_were_started_counts() -> None:
    before = used_bytes()
    child = subprocess.Popen(
        [sys.executable, "-c", "x = b'1' * 200_000_000; print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert used_bytes() - before > 190e6
        child.communicate(b"\n")
    assert 0 < used_bytes() < 64 * 2**30
    assert free_bytes() > 0


def test_a_search_at_its_limit_answers_with_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as reached as soon as the search hears interrupts."""

    def grown() -> float:
        searching = getattr(signal.getsignal(signal.SIGINT), "__name__", "") == "heard"
        return 400 * 2**20 if searching else 2.0**20

    monkeypatch.setattr(memory_limit, "used_bytes", grown)
    asked = ["plan", "llama3-8b", "dgx-a100-h100", "--effort", "exhaustive", "--json"]
    told = tangram(*asked, "--memory-limit", "350M").json
    assert told["step_s"] > 0
    first = told["findings"][0]
    assert first["code"] == "stopped-by-memory-limit"
    assert "memory limit of 0.342 GiB" in first["text"]
    assert reached() == ""


def test_what_has_no_answer_at_its_limit_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "used_bytes", lambda: 2.0**30)
    with (
        pytest.raises(BadInputError, match=r"memory limit of 1 GiB was reached.*effort=quick"),
        watched(2.0**30 - 1),
    ):
        time.sleep(5)
    with pytest.raises(BadInputError, match="memory limit"), watched(2.0**40):
        np.zeros(2**60, np.int8)


def test_ctrl_c_stays_what_it_is() -> None:
    with pytest.raises(KeyboardInterrupt), watched(2.0**50):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)


def test_a_command_that_grows_on_is_ended_with_a_message() -> None:
    code = (
        "import signal, time\n"
        "from tangram_sim.memory_limit import watched\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "kept = []\n"
        "with watched(300 * 2**20):\n"
        "    for _ in range(600):\n"
        "        kept.append(b'1' * 10_000_000)\n"
        "        time.sleep(0.05)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "memory limit of 0.293 GiB was reached" in done.stderr
