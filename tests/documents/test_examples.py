"""The examples run as they stand, anywhere, and print what their `.out` files show.

`make examples` rewrites those after a change that is meant to move numbers.
"""

import runpy
import subprocess
import sys

import pytest

from tests.places import ROOT

FOLDER = ROOT / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
# They plan for more than a few seconds.
SLOW = {
    "night_and_day",
    "own_cluster",
    "own_gpu",
    "own_parallelizer",
    "plan_in_five_lines",
    "post_training",
    "read_timeline",
    "what_if",
}


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem in SLOW else []) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_an_example_prints_what_is_shown(example, tmp_path, monkeypatch, capfd):
    """Run here as a program of its own would be: a process for each would start and load code for seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(example)])
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    runpy.run_path(str(example), run_name="__main__")
    printed = capfd.readouterr()
    assert printed.err == ""
    assert printed.out == example.with_suffix(".out").read_text(encoding="utf-8")
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_an_example_runs_in_a_process_of_its_own(tmp_path):
    example = FOLDER / "export_a_plan.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == example.with_suffix(".out").read_text(encoding="utf-8")


def test_every_example_has_its_output_and_the_reverse():
    shown = {path.stem for path in FOLDER.glob("*.out")}
    assert shown == {path.stem for path in EXAMPLES} > SLOW
