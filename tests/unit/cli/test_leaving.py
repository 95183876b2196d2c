"""How a command leaves: without a last look for garbage, and whether or not anybody hears what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import files

_LEAVING = """
import atexit, gc, sys
atexit.register(lambda: print(gc.get_freeze_count() > 10_000, file=sys.stderr))
from tangram_sim.cli.main import main
sys.argv = ["tangram", "hw", "list"]
main()
"""


def test_what_a_command_made_is_let_go_at_once():
    ended = subprocess.run([sys.executable, "-c", _LEAVING], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.strip().endswith("True")


@pytest.mark.parametrize(
    "closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>/dev/full"]
)
def test_closed_streams_change_no_exit_code_and_no_file(tmp_path: Path, closed: str) -> None:
    if "/dev/full" in closed and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    model, cluster = files(tmp_path)
    command = f"{sys.executable} -m tangram_sim.cli.main"
    plan = tmp_path / "plan.json"
    words = f"{command} estimate {model} {cluster} --tp 1 --pp 2 --dp 4 --global-batch 8 -o {plan} {closed}"
    ended = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    assert ended.returncode == (2 if ">/dev/full 2" in closed else 0)
    assert json.loads(plan.read_text())["gpus_used"] == 8
    assert "Traceback" not in ended.stderr
    refused = subprocess.run(
        ["bash", "-c", f"{command} hw show T5000 {closed}"], capture_output=True, check=False
    )
    assert refused.returncode == 2
