"""What a person or a pipe sees: widths, quiet ends, whole files, the same bytes every time, a light start."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tangram_sim import datafiles
from tangram_sim.cli import progress
from tangram_sim.errors import BadInputError
from tests.commands import files, tangram

COMMAND = f"{sys.executable} -m tangram_sim.cli.main"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return files(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("columns", [80, 120, 200, 0])
def test_tables_stay_inside_the_window_and_say_what_matters(inputs: tuple[Path, Path], columns: int) -> None:
    out = tangram("plan", *inputs, "--global-batch", 16, columns=columns).out
    assert max(map(len, out.splitlines())) <= (columns or 200)
    words = (
        "embedding+0",
        "head",
        "A100-SXM4-40GB",
        "%",
        "slowest",
        "bubble",
        "MFU",
        "of 12 GPUs",
        "lower bound",
    )
    assert all(word in " ".join(out.split()) for word in words)
    assert not any(line != line.rstrip() for line in out.splitlines())


@pytest.mark.parametrize("columns", [80, 200])
def test_layouts_and_gpu_names_are_never_cut(inputs: tuple[Path, Path], columns: int) -> None:
    out = tangram("estimate", *inputs, "--tp", 2, "--dp", 2, "--pp", 3, "--zero", 1, columns=columns).out
    assert out.count("tp2 dp2 zero1") == 3
    assert "4 x A100-SXM4-40GB" in out


def test_interleaved_stages_show_their_chunks(inputs: tuple[Path, Path]) -> None:
    """Chunks lie between those of other stages: first and last block alone would overlap."""
    arguments = ("estimate", *inputs, "--tp", 4, "--pp", 2, "--vpp", 2, "--global-batch", 8)
    out = tangram(*arguments).out
    assert "embedding+0,2" in out and "1,3+head" in out
    stages = tangram(*arguments, "--json").json["stages"]
    assert [stage["chunks"] for stage in stages] == [[[0, 1], [2, 3]], [[1, 2], [3, 4]]]
    assert [stage["layers"] for stage in stages] == [[0, 3], [1, 4]]


def test_an_island_that_fixed_degrees_keep_idle_is_named(inputs: tuple[Path, Path]) -> None:
    """tp=8 fits two T4 nodes and not the only A100 node: a note says which and why."""
    found = tangram("plan", *inputs, "--fix", "tp=8", "--global-batch", 8, "--seq", 1024, "--json").json
    assert {stage["island"] for stage in found["stages"]} == {"g0"}
    (note,) = [item for item in found["notes"] if "tp=8" in item]
    assert note.startswith("g1 (1 x 4 A100-SXM4-40GB) stays idle") and "8 GPUs" in note
    free = tangram("plan", *inputs, "--fix", "tp=4", "--global-batch", 8, "--seq", 1024, "--json").json
    assert not any("stays idle" in item for item in free["notes"])


def test_what_does_not_fit_is_said_with_numbers() -> None:
    out = tangram("estimate", "gpt3-6.7b", "azure-c1", "--tp", 4, "--pp", 4, "--dp", 2).out
    assert "DOES NOT FIT" in out
    assert "too full" in out
    assert "GiB of" in out


def test_reasons_of_islands_have_lines_of_their_own(inputs: tuple[Path, Path]) -> None:
    lines = tangram("islands", inputs[1], columns=80).out.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("g")] == ["g0", "g1"]
    assert max(map(len, lines)) <= 80


def test_every_file_asked_for_is_written(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    plan, trace, table = tmp_path / "p.json", tmp_path / "t.json", tmp_path / "c.csv"
    options = ("-o", plan, "--trace", trace, "--candidates", table, "--global-batch", 16, "--dtype", "fp16")
    finished = tangram("plan", *inputs, *options)
    assert finished.code == 0
    assert all(str(path) in finished.out for path in (plan, trace, table))
    assert sorted(tmp_path.iterdir()) == sorted([plan, trace, table])
    with table.open() as stream:
        rows = list(csv.DictReader(stream))
    assert {"start", "stop", "island", "nodes", "layout", "seconds"} <= rows[0].keys()
    assert {row["island"] for row in rows} == {"g0", "g1", "g0+g1"}  # stages over both, too


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted between writing and renaming, the old file stands and nothing else lies about."""
    target = tmp_path / "plan.json"
    target.write_text("old")

    def interrupted(self: Path, _: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        datafiles.write_whole(target, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert target.read_text() == "old"


def test_devices_and_links_are_written_through_not_replaced(tmp_path: Path) -> None:
    pipe, real, link = tmp_path / "pipe", tmp_path / "real", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(real)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        datafiles.write_whole(pipe, "text")
        assert os.read(reader, 10) == b"text"
        assert pipe.is_fifo()
    finally:
        os.close(reader)
    datafiles.write_whole(link, "text")
    assert link.is_symlink()
    assert real.read_text() == "text"


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(BadInputError, match="cannot be written"):
        datafiles.write_whole(tmp_path / "a", "text")


def _shell(script: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_that_leaves_ends_the_command_quietly(reader: str) -> None:
    """Neither an error message nor a failing exit code, however early the reader leaves."""
    finished = _shell(
        f"for verb in 'hw list' 'models show gpt3-6.7b --json'; do {COMMAND} $verb | {reader}; done"
    )
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_full_disk_behind_standard_output_is_one_message() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    finished = _shell(f"{COMMAND} hw list > /dev/full")
    assert finished.returncode == 2
    assert finished.stderr == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.slow
def test_same_input_same_bytes_on_any_hash_seed(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    found = set()
    for seed in "01":
        path = tmp_path / f"plan{seed}.json"
        script = f"{COMMAND} plan {inputs[0]} {inputs[1]} --global-batch 16 --top 3 -o {path}"
        assert _shell(script, PYTHONHASHSEED=seed).returncode == 0
        found.add(path.read_bytes())
    assert len(found) == 1


def test_a_light_start() -> None:
    """`import tangram_sim` and `--help` load nothing that computes."""
    heavy = "{'torch', 'pandas', 'numba', 'numpy', 'scipy', 'simpy'}"
    script = "; ".join(
        [
            "import sys, tangram_sim",
            f"assert not {heavy} & set(sys.modules), 'import'",
            "from tangram_sim.cli.main import app",
            "app(['plan', '--help'], standalone_mode=False)",
            f"assert not {heavy} & set(sys.modules), 'help'",
        ]
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize(
    ("terminal", "patience_s", "drawn"), [(True, 0.0, True), (True, 2.0, False), (False, 0.0, False)]
)
def test_the_progress_bar_waits_two_seconds_and_wants_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, patience_s: float, drawn: bool
) -> None:
    assert progress.PATIENCE_S == 2.0
    monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with progress.SlowProgress("planning") as bar:
        bar.report(1, 2, "half")
        bar.report(0, 0, "nobody knows how much there is")
        assert bar.drawn == drawn


def test_a_front_on_the_way_is_heard_by_who_listens() -> None:
    heard: list[tuple[object, ...]] = []
    with progress.listening(lambda *far: heard.append(far)), progress.SlowProgress("purchase") as bar:
        bar.report(1, 3, "mixes")
        bar.say("for the eye alone")
        bar.say("nothing 5 tokens/s", [("nothing", 0.0, 5.0)])
    assert heard == [(1, 3, "mixes"), (1, 3, "mixes", [("nothing", 0.0, 5.0)])]


@pytest.mark.parametrize(
    ("verb", "named"),
    [(("rl", "plan"), ("qwen2.5-1.5b", "H800x8:1+H20x8:1")), (("serve", "tune"), ("fleet.yaml",))],
)
def test_help_offers_a_report_only_where_there_is_one(verb: tuple[str, str], named: tuple[str, ...]) -> None:
    """Answers that another verb reads are JSON alone; what-ifs of services have a page, too."""
    assert "report.html" not in tangram(*verb, "--help").out and "--output" in tangram(*verb, "--help").out
    assert "give a .json file" in tangram(*verb, *named, "--output", "report.html").err
    assert "report.html" in tangram("serve", "what-if", "--help").out
