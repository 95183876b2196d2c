"""Every verb that prints a table, in windows of 80 and 120 characters and with more or less to say."""

import shlex
from pathlib import Path
from unittest.mock import patch

import pytest

from tangram_sim.cli import console
from tangram_sim.cli.tables import ConsoleTable
from tangram_sim.cli.verbosity import Verbosity, saying
from tests.commands import tangram
from tests.fuzz.inputs import COMMANDS, write

# Verbs whose answer is a file to be copied, or lines of a log, as wide as they are.
FILES = ("export", "models template", "trace generate", "calibrate collectives", "cluster")
TABLES = [command.replace(" --json", "") for command in COMMANDS if not command.startswith(FILES)]
WINDOWS = (80, 120)
# Verbs that take longer than those that are fuzzed.
LOAD = "--fleet few.yaml --workload 128:16 --requests 60"
TABLES += [
    "serve replan rate.json --trace market.csv --until 10800",
    f"serve compare my-llama/config.json {LOAD} --budget 2 --planners melange",
    f"serve what-if my-llama/config.json {LOAD} --rate 4 --slo ttft=2,tpot=0.08 --add L40S:1",
]
FEW = """\
gpus:
  L40S: {price_per_hour: 0.9, available: 2}
  T4: {price_per_hour: 0.3, available: 2}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("windows")
    write(made)
    (made / "few.yaml").write_text(FEW)
    return made


@pytest.mark.parametrize("command", TABLES)
def test_tables_and_prose_fit_the_window(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run once in the narrow window; what it drew is drawn again in the wide one."""
    monkeypatch.chdir(folder)
    drawn: list[list[ConsoleTable]] = []
    real = console.print_widest

    def noted(variants: list[ConsoleTable]) -> None:
        drawn.append(variants)
        real(variants)

    with (
        patch.object(console, "print_widest", noted),
        patch("tangram_sim.cli.plan_table.print_widest", noted),
    ):
        finished = tangram(*shlex.split(command), columns=WINDOWS[0])
    assert finished.code == 0, finished.err
    assert drawn, "no table"
    copied = finished.out.split("complete this and give it")[0]  # lines to be copied are never wrapped
    assert max(map(len, copied.splitlines())) <= WINDOWS[0]
    monkeypatch.setenv("COLUMNS", str(WINDOWS[1]))
    for variants in drawn:
        real(variants)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= WINDOWS[1]


def test_a_narrow_window_names_the_columns_it_leaves_out(folder: Path) -> None:
    out = tangram("islands", folder / "lab-mix.yaml", columns=80).out
    assert "left out in this window: memory sold, planned, inside a node (--verbose, --json)" in out
    assert "memory sold" not in out.split("left out")[0]
    for words, columns in ((("--verbose",), 80), ((), 200), ((), 0)):
        out = tangram("islands", folder / "lab-mix.yaml", *words, columns=columns).out
        assert "left out" not in out
        assert "planned" in out


def test_a_plan_names_what_its_narrower_tables_lose(folder: Path) -> None:
    for columns, lost in ((200, ""), (120, "sync, to next"), (80, "sync, to next")):
        out = tangram("simulate", folder / "plan.json", columns=columns).out
        assert (f"left out in this window: {lost} (--verbose, --json)" in out) == bool(lost), out
    whole = tangram("simulate", folder / "plan.json", "--verbose", columns=120).out
    assert "sync" in whole and "left out in this window" not in whole


def test_quiet_says_the_answer_and_verbose_all_notes(folder: Path) -> None:
    words = ("simulate", folder / "plan.json", "--slow", folder / "slow.yaml")
    normal, quiet, verbose = (tangram(*words, *extra).out for extra in ((), ("--quiet",), ("--verbose",)))
    assert "note:" not in quiet and "limited by" in quiet
    assert quiet.splitlines()[1] == normal.splitlines()[1]
    assert normal.count("note:") == verbose.count("note:") == 5
    both = tangram(*words, "--quiet", "--verbose")
    assert (both.code, both.out) == (2, "")
    assert "contradict each other" in both.err


def test_json_is_the_same_however_much_is_said(folder: Path) -> None:
    words = ("islands", folder / "lab-mix.yaml", "--json")
    assert tangram(*words).out == tangram(*words, "--quiet").out == tangram(*words, "--verbose").out


@pytest.mark.parametrize(("notes", "shown"), [(6, 6), (7, 5), (40, 5)])
def test_the_gravest_notes_are_shown_and_the_rest_counted(
    notes: int, shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One note more than the most is not worth a line that says so."""
    told = [f"number {place}" for place in range(notes)]
    console.print_notes(told)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:shown] == [f"note: {item}" for item in told[:shown]]
    assert lines[shown:] == ([f"and {notes - shown} more notes: --verbose"] if shown < notes else [])
    with saying(Verbosity.VERBOSE):
        console.print_notes(told)
    assert capsys.readouterr().out.count("note:") == notes
