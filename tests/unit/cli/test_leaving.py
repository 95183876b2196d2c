"""How a command leaves: without a last look for garbage among millions of objects."""

import subprocess
import sys

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
